"""The documentation site: `make docs` builds it into docs/_build/html.

Sphinx with MyST and Furo: pages stay plain Markdown that GitHub shows as well, the reference comes from docstrings, links are checked,
and the result asks no other server for anything.
"""

project = "Corro"
author = "The Corro authors"
copyright = "2026, the Corro authors"  # noqa: A001 (Sphinx's name)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# In docstrings, as in Markdown, `this` is code.
default_role = "code"
# Their pages are made without them: they are in no environment that has the other frameworks.
autodoc_mock_imports = ["mxnet", "pyspark", "ray"]
# `op: int = Average`, not `op: int = 0`; long signatures one argument a line.
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# The frameworks' own classes would bring their own, very long, documentation with them.
autodoc_default_options = {"members": True, "inherited-members": False}

html_theme = "furo"
html_title = "Corro"
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_dark_style = "github-dark"
html_theme_options = {"source_repository": "https://github.com/corro-project/corro/", "source_branch": "main", "source_directory": "docs/"}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
