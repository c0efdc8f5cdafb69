"""Instructions about the language of a text. Detecting it takes tens of milliseconds: do it off the event loop."""

from collections.abc import Callable
from typing import Literal

# fmt: off
Language = Literal[
    "en", "es", "pt", "ar", "hi", "fr", "ru", "de", "ja", "it", "bn", "uk", "th", "ur", "ta",
    "te", "bg", "ko", "pl", "he", "fa", "vi", "ne", "sw", "kn", "mr", "gu", "pa", "ml", "fi",
]
# fmt: on


def language_of(text: str) -> str | None:
    """The code of the most likely language of the text; None if none is detected."""
    from langdetect import DetectorFactory, LangDetectException, detect  # type: ignore[import-untyped]

    DetectorFactory.seed = 0  # it samples, so results would differ between runs
    try:
        return str(detect(text))
    except LangDetectException:
        return None


def is_in_language(text: str, /, *, language: Language) -> bool:
    return language_of(text) == language


def is_english_in_capitals(text: str, /) -> bool:
    return text.isupper() and language_of(text) == "en"


def is_english_in_lower_case(text: str, /) -> bool:
    return text.islower() and language_of(text) == "en"


CHECKS: dict[str, Callable[..., bool]] = {
    "language:response_language": is_in_language,
    "change_case:english_capital": is_english_in_capitals,
    "change_case:english_lowercase": is_english_in_lower_case,
}
