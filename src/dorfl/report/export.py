"""Files for a paper: the figures and tables of a page."""

from __future__ import annotations

from pathlib import Path

from dorfl.report import figures, tables
from dorfl.report.content import Figure, Page, blocks, numbers
from dorfl.support.files import write_whole

_FORMATS = {"csv": tables.as_csv, "md": tables.as_markdown, "tex": tables.as_latex}


def export(page: Page, folder: Path) -> list[Path]:
    """Write `figures/*.png|svg|pdf`, their numbers as CSV, and `tables/*.csv|md|tex`."""
    paths = []
    for block in blocks(page):
        if isinstance(block, Figure):
            paths += figures.draw(block, folder / "figures")
            files = {folder / "figures" / f"{block.name}.csv": tables.as_csv(numbers(block))}
        else:
            files = {
                folder / "tables" / f"{block.name}.{suffix}": write(block)
                for suffix, write in _FORMATS.items()
            }
        for path, text in files.items():
            write_whole(path, text.encode())
        paths += files
    return paths
