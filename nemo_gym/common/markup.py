"""Markup that hides text, and letters that look like others."""

import re

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)

_CYRILLIC = "\u0430\u0432\u0435\u0455\u0456\u0458\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u04bb\u0501"
_GREEK = "\u03b1\u03b2\u03b5\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7"
TO_LATIN = str.maketrans(_CYRILLIC + _GREEK, "abesijkmhopctyxhd" + "abeikvoptux")
"""Small letters that look like Latin ones, as small or as capital letters."""


def without_comments(text: str) -> str:
    """Remove HTML comments. One without an end reaches to the end of the text."""
    return _COMMENT.sub("", text)
