"""Hubs that datasets are published on, Hugging Face and GitLab: errors that name the hub, messages without secrets."""

import re
from collections.abc import Iterable

from nemo_gym.common.redaction import Redactor
from nemo_gym.errors import GymError

_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]*")
_MOST_CHARACTERS = 500
_PAGE = re.compile(
    rb"(\xef\xbb\xbf)?\s*((<!--.*?-->|<\?xml.*?\?>)\s*)*<(!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
_PAGE_HEAD_BYTES = 4096


class HubError(GymError):
    """A hub refused a request, or could not be reached. `status` is 0 if there was no answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def safe_text(text: object, secrets: Iterable[str | None] = ()) -> str:
    """Remove tokens, and the signatures of links, from a message of a hub."""
    redactor = Redactor(secret for secret in secrets if secret)
    return _QUERY.sub(r"\1", redactor.text(str(text)))[:_MOST_CHARACTERS]


def refuse_page(head: bytes, hub: str) -> None:
    """Raise `HubError` if a file starts like a web page: login and proxy pages also have status 200."""
    if _PAGE.match(head[:_PAGE_HEAD_BYTES]):
        raise HubError(f"{hub} answered with a web page instead of the file. Check your token and your proxy.")
