"""How Sphinx builds the site: `make docs` writes it to site/. Warnings, such as a link to nowhere, are errors."""

project = "NeMo Gym"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 3
