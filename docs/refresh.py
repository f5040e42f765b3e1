"""Put the tables and pictures of a finished study into the README: python docs/refresh.py results

A table stands between `<!-- table: name -->` and `<!-- /table -->`; the pictures the README shows
are those in docs/figures.
"""

import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent


def main(results: Path) -> None:
    """Replace what is between the marks, and copy the pictures."""
    readme = DOCS.parent / "README.md"

    def table(place: re.Match[str]) -> str:
        text = (results / "tables" / f"{place[1]}.md").read_text(encoding="utf-8").strip()
        return f"<!-- table: {place[1]} -->\n{text}\n<!-- /table -->"

    pattern = r"<!-- table: ([\w-]+) -->.*?<!-- /table -->"
    text = re.sub(pattern, table, readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    readme.write_text(text, encoding="utf-8")
    for name in re.findall(r"docs/figures/([\w-]+\.png)", text):
        shutil.copyfile(results / "figures" / name, DOCS / "figures" / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
