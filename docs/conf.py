"""How the documentation is built: `make docs` leaves docs/_build/html, which is read offline."""

import re
from typing import Any

import latex2mathml.converter
from docutils import nodes

import dorfl

project, author = "dorfl", "The dorfl authors"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx's own name for it
version = release = dorfl.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "gallery"]
suppress_warnings = [
    "config.cache",
    "myst.xref_missing",  # links to source files, true on disk
    "ref.python",  # shapes such as (clients,) are no references
]

templates_path = ["_templates"]
autosummary_generate = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["flwr", "torch"]  # described without them
python_maximum_signature_line_length = 80  # a longer one has a line per parameter
napoleon_google_docstring, napoleon_numpy_docstring = True, True
napoleon_use_ivar = True  # fields of records are listed once
default_role = "code"

sphinx_gallery_conf = {
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["auto_examples"],
    "filename_pattern": r"/plot_",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
}

html_theme = "furo"
html_title = f"dorfl {version}"
html_static_path = ["_static"]
html_css_files = ["dorfl.css"]
html_copy_source = False


def _mathml(formula: str, display: str) -> str:
    return latex2mathml.converter.convert(formula, display=display)


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def _gallery(_: Any, name: str, source: list[str]) -> None:
    """Turn links to the gallery's scripts, which a repository has, into links to its pages."""
    if not name.startswith("auto_examples"):
        text = source[0].replace("](gallery/README.rst)", "](auto_examples/index.rst)")
        source[0] = re.sub(r"\]\(gallery/(plot_\w+)\.py\)", r"](auto_examples/\1.rst)", text)


def _skip(_: Any, __: str, ___: str, member: Any, skip: bool, ____: Any) -> bool:
    """Leave out fields of named tuples, which their class lists, and scikit-learn's methods."""
    elsewhere = str(getattr(member, "__module__", "")).startswith("sklearn")
    return skip or elsewhere or type(member).__name__ == "_tuplegetter"


def setup(app: Any) -> None:
    """Write formulas as MathML, which browsers show without a script, and map the gallery."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("source-read", _gallery)
    app.connect("autodoc-skip-member", _skip)


html_math_renderer = "mathml"
