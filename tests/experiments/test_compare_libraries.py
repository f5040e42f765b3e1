"""docs/comparison.md has every library on every data set."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
LIBRARIES = ("dorfl", "scikit-learn", "dro")


def shown():
    """The tables of the page, by name."""
    text = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- table: ([\w-]+) -->\n(.*?)<!-- /table -->", text, re.DOTALL))


def test_the_page_has_every_library_on_every_data_set_and_no_empty_cell():
    for table in shown().values():
        rows = [line.strip("|").split("|") for line in table.strip().splitlines()]
        assert all(cell.strip() for row in rows for cell in row)
        methods = [row[0].strip() for row in rows[2:]]
        assert methods[0] == "*constant*"
        assert all(any(name.startswith(f"{one} ") for name in methods) for one in LIBRARIES)
