"""Put the tables and pictures of a finished study into the README: python docs/refresh.py results

A table stands between `<!-- table: name -->` and `<!-- /table -->`; the pictures the README shows
are those in docs/figures.
"""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parent


def fill(file: Path, table: Callable[[str], str]) -> str:
    """Replace what is between the marks of a file by the tables of these names."""

    def made(place: re.Match[str]) -> str:
        return f"<!-- table: {place[1]} -->\n{table(place[1]).strip()}\n<!-- /table -->"

    pattern = r"<!-- table: ([\w-]+) -->.*?<!-- /table -->"
    text = re.sub(pattern, made, file.read_text(encoding="utf-8"), flags=re.DOTALL)
    file.write_text(text, encoding="utf-8")
    return text


def main(results: Path) -> None:
    """Replace what is between the marks, and copy the pictures."""
    made = results / "tables"
    text = fill(
        DOCS.parent / "README.md", lambda name: (made / f"{name}.md").read_text(encoding="utf-8")
    )
    for name in re.findall(r"docs/figures/([\w-]+\.png)", text):
        shutil.copyfile(results / "figures" / name, DOCS / "figures" / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
