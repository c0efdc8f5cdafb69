"""Markup that hides text."""

import re

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def without_comments(text: str) -> str:
    """Remove HTML comments. One without an end reaches to the end of the text."""
    return _COMMENT.sub("", text)
