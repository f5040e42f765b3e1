"""Every object on the page of the API documents its parameters, attributes and methods."""

import importlib
import inspect
import re

import pytest

import pages

LISTED = re.findall(
    r"^   (dorfl\.[\w.]+)$", (pages.ROOT / "docs/api.rst").read_text(encoding="utf-8"), re.MULTILINE
)
HERE = [name for name in LISTED if not re.search(r"networks|flower|solvers|FitWarning", name)]


def found(name):
    parts = name.split(".")
    for k in range(len(parts) - 1, 0, -1):
        try:
            there = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in parts[k:]:
            there = getattr(there, part)
        return there
    raise AssertionError(name)


def undocumented(name, there, of=None):
    """Names without numpydoc sections; a method without a docstring inherits that of its base."""
    text = there.__doc__
    if text is None and of is not None:
        return []
    parameters = [p for p in inspect.signature(there).parameters if p not in ("self", "cls")]
    has = any(f"{section}\n" in (text or "") for section in ("Parameters", "Attributes"))
    return [name] if parameters and not has else []


@pytest.mark.parametrize("name", HERE)
def test_every_parameter_is_documented(name):
    there = found(name)
    lacking = undocumented(name, there)
    if inspect.isclass(there):
        own = vars(there).items()
        inherited = {key for base in there.__mro__[1:] for key in vars(base)}
        for key, member in own:
            if not key.startswith("_") and callable(member) and key not in inherited:
                lacking += undocumented(f"{name}.{key}", member, of=there)
    assert not lacking
