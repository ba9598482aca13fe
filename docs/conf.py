"""Sphinx settings of the site; `python3 nox.py -s docs` builds it, and needs no network for it."""

from typing import Any

project = "nrl"
html_title = "nrl"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "examples"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # `clock=time.monotonic`, not the function's repr
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
default_role = "code"  # docstrings write `names` as Markdown does
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # else an attribute is described twice, by its class and by itself


def drop_module_docstring(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Leave a module's docstring out of the API pages: it is Markdown, and the guides say more."""
    del app, name, obj, options
    if what == "module":
        lines.clear()


def keep_colon(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Put an attribute's "One thing: another" together again, of which napoleon made a type and a text."""
    del app, name, obj, options
    if what in {"attribute", "data", "property"} and lines and lines[-1].startswith(":type: "):
        first = lines.pop().removeprefix(":type: ")
        lines[0] = f"{first}: {lines[0]}"


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", drop_module_docstring)
    app.connect("autodoc-process-docstring", keep_colon, priority=600)  # napoleon's is 500
