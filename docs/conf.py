"""How Sphinx builds the site: `make docs` writes it to site/. Warnings, such as a link to nowhere, are errors."""

project = "NeMo Gym"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = project
html_favicon = "../nemo_gym/viewer/static/icon.svg"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#4a7a00", "color-brand-content": "#0b62c4"},
    "dark_css_variables": {"color-brand-primary": "#9fd93b", "color-brand-content": "#7ab7ff"},
}
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 3
