"""`python -m dorfl` is the command `dorfl`."""

from dorfl.cli import app

app()
