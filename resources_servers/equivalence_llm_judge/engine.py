"""Extract a part of a text by a regex from the data. It may never finish, so this runs in a compute worker."""

import re

from nemo_gym.answers import last_match


def extract(pattern: str, text: str) -> str | None:
    """The first non-blank group of the last match, else the whole match; None without a match."""
    match = last_match(pattern, text, re.MULTILINE | re.DOTALL)
    if match is None:
        return None
    groups = (group.strip() for group in match.groups() if group is not None)
    return next(filter(None, groups), match.group().strip())
