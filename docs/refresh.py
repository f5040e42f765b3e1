"""Put the tables and figures of a finished study into the README and docs/results.md.

`python docs/refresh.py results` reads the folder that `make run` writes. A table stands between
`<!-- table: name -->` and `<!-- /table -->`. Figures are those that the two pages show.
"""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = (DOCS.parent / "README.md", DOCS / "results.md")
MARKED = re.compile(r"<!-- table: ([\w-]+) -->\n(.*?)\n<!-- /table -->", re.DOTALL)


def fill(file: Path, table: Callable[[str], str]) -> str:
    """Replace the tables of a file, each by `table(name)`, and return the new text."""

    def replacement(place: re.Match[str]) -> str:
        return f"<!-- table: {place[1]} -->\n{table(place[1]).strip()}\n<!-- /table -->"

    text = MARKED.sub(replacement, file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    return text


def shorter(table: str) -> str:
    r"""Return a table of methods without its reference rows, but for the constant.

    >>> print(shorter("| *constant* | 1 |\n| ERM | 2 |\n| *Bayes rule* | 3 |"))
    | *constant* | 1 |
    | ERM | 2 |
    """
    lines = table.strip().splitlines()
    return "\n".join(line for line in lines if not re.match(r"\| \*(?!constant)", line))


def verdicts(table: str) -> str:
    r"""Return the summary of a study as a list: where dorfl helps, does nothing and hurts.

    >>> rows = "| far rows | helps: +5 ± 1 | hurts: −2 ± 1 |"
    >>> print(verdicts(f"| a | b | c |\n| - | - | - |\n{rows}"))
    - **Helps**: far rows (+5 ± 1).
    - **Does nothing**: none of these.
    - **Hurts**: none of these.
    - **The paper's form hurts**: far rows (−2 ± 1).
    """
    rows = [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()[2:]]
    lines = []
    for name, verdict, column in (
        ("Helps", "helps", 2), ("Does nothing", "nothing", 2), ("Hurts", "hurts", 2),
        ("Undecided", "undecided", 2), ("The paper's form hurts", "hurts", 3),
    ):  # fmt: skip
        found = [row for row in rows if row[column].startswith(verdict)]
        if name == "Undecided" and not found:
            continue
        cases = [f"{row[1]} ({row[column].partition(': ')[2]})" for row in found]
        lines.append(f"- **{name}**: {'; '.join(cases) or 'none of these'}.")
    return "\n".join(lines).replace("synthetic: ", "")


SHORT = {"synthetic-methods": ("synthetic", shorter), "verdict-list": ("summary", verdicts)}


def find(read: Callable[[str], str]) -> Callable[[str], str]:
    """Return a table by name, those of `SHORT` made from the full ones that `read` returns."""

    def table(name: str) -> str:
        full, shorten = SHORT.get(name, (name, str))
        return shorten(read(full))

    return table


def main(results: Path) -> None:
    """Replace the tables of both pages, and copy their figures."""
    table = find(lambda name: (results / "tables" / f"{name}.md").read_text(encoding="utf-8"))
    for page in PAGES:
        for name in re.findall(r"figures/([\w-]+\.png)", fill(page, table)):
            shutil.copyfile(results / "figures" / name, DOCS / "figures" / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
