"""The text of a web page, and the answer in a reply. Pages and replies are hostile, and reading a long one takes a
while: run this where it can be killed."""

from nemo_gym.answers import boxes, final_declaration, shown, without_fonts
from nemo_gym.errors import GymError

LONG_PAGE_WORDS = 10_000
SHOWN_CHARS = 5_000
"""Characters that are kept of each end of a longer page."""

NOTHING_FETCHED = "No HTML found"
NO_TEXT = "No text found"


class PageError(GymError):
    """A page that cannot be read."""


def warm_up() -> None:
    """Load the library, before any page and its time limit."""
    import trafilatura  # noqa: F401


def page_text(page: bytes) -> str:
    """The main text of a page, without what surrounds it, cut if it is long."""
    import trafilatura

    try:
        text = trafilatura.extract(page)
    except Exception as error:  # a page can be broken in more ways than the library has names for
        raise PageError(str(error) or type(error).__name__) from None
    return shortened(text or "")


def shortened(text: str) -> str:
    """The text; of a long one its beginning and its end."""
    if not text:
        return NO_TEXT
    if len(text.split()) <= LONG_PAGE_WORDS:
        return text
    return f"{text[:SHOWN_CHARS]}...{text[-SHOWN_CHARS:]}"


def parsed_option(text: str) -> str | None:
    """Return the content of the final box, with backslashes doubled as Python prints them."""
    spoken = shown(text)
    found = final_declaration(spoken, boxes(spoken))
    if found is None:
        return "" if r"\boxed{}" in spoken else None
    return repr(without_fonts(found.content))[1:-1]
