"""How the documentation is built: `make docs` leaves docs/_build/html."""

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
suppress_warnings = ["config.cache", "myst.xref_missing"]  # links to source files, true on disk

autodoc_typehints = "none"  # signatures say them
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch"]  # networks are described without
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

html_theme = "pydata_sphinx_theme"
html_title = "dorfl"
html_theme_options = {
    "show_prev_next": True,
    "navbar_align": "left",
    "header_links_before_dropdown": 4,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
