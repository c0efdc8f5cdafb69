"""Mask secrets in log lines and error texts, and escape control characters in text from outside.

`nemo_gym.config.secrets` decides which values are secret. The redactor of the process is set when a configuration is
loaded, and handed to workers over their private pipe. What models and tools said is stored as it was.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

MASK = "****"

MIN_SECRET_LENGTH = 8
"""A shorter value is not searched for in text: it would replace unrelated words."""

_MIN_LINE_LENGTH = 16
"""A line of this length in a secret of several lines is treated as a secret."""

_JSON_ESCAPE = re.compile(r"\\u00([2-7][0-9A-Fa-f])")
_URL_USER_INFO = re.compile(r"(?<=://)[^/\s?#\"'<>]+@")
_URL_QUERY = re.compile(r"(://[^\s?#\"'<>]*)\?([^\s#\"'<>]+?)(?=[).,;:!\]}]*(?:[\s#\"'<>]|$))")
"""Matches the query of a URL, without the punctuation that follows a URL in a sentence."""
_QUERY_VALUE = re.compile(r"(^|&)([^&=]*=)?[^&]+")
_MASKED_VALUE = rf"\1\2{MASK}"
_AUTHORIZATION = re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic)\s+)[^\s\"',;}]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_OR_NEWLINE = re.compile(rf"{_CONTROL.pattern}|[\n\t]")


class Redactor:
    """Finds secrets in text: as they are, escaped as in JSON, Python or a URL, in hexadecimal, and in base64."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        texts = {text for secret in secrets for text in _searched_texts(secret)}
        forms = sorted({form for text in texts for form in _forms(text)}, key=len, reverse=True)
        self._forms = re.compile("|".join(map(re.escape, forms))) if forms else None

    def text(self, text: str) -> str:
        """Mask secrets, and user info, query values and credentials in URLs and headers."""
        text = _AUTHORIZATION.sub(rf"\1{MASK}", self._values(text))
        if "://" not in text:
            return text
        text = _URL_USER_INFO.sub(f"{MASK}@", text)
        return _URL_QUERY.sub(lambda url: f"{url[1]}?{_QUERY_VALUE.sub(_MASKED_VALUE, url[2])}", text)

    def _values(self, text: str) -> str:
        """Mask secrets. If one is in the text with characters escaped, these escapes are decoded in the result."""
        if self._forms is None:
            return text
        masked = self._forms.sub(MASK, text)
        for decode in (_without_json_escapes, _without_percent_signs):
            decoded = decode(masked)
            if decoded != masked and self._forms.search(decoded):
                masked = self._forms.sub(MASK, decoded)
        return masked

    def value(self, value: Any) -> Any:
        """Mask the strings in a JSON value as `text` does."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, list | tuple) else value


def _without_json_escapes(text: str) -> str:
    return _JSON_ESCAPE.sub(lambda code: chr(int(code[1], 16)), text) if "\\u00" in text else text


def _without_percent_signs(text: str) -> str:
    return unquote(text) if "%" in text else text


def _searched_texts(secret: str) -> Iterator[str]:
    """The secret, if it is long enough, and its long lines if it has several."""
    secret = secret.strip().encode(errors="replace").decode()
    if len(secret) < MIN_SECRET_LENGTH:
        return
    yield secret
    if "\n" in secret:
        lines = map(str.strip, secret.splitlines())
        yield from (line for line in lines if len(line) >= _MIN_LINE_LENGTH and not line.startswith("-----"))


def _forms(text: str) -> Iterator[str]:
    """Return the forms in which a text may be written. URL-encoded text is decoded before it is searched."""
    raw = text.encode()
    yield from (text, repr(text)[1:-1], repr(raw)[2:-1], raw.hex(), raw.hex().upper())
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    for before in range(3):  # the characters that the base64 of any text with the secret in it has
        encoded = base64.b64encode(bytes(before) + raw)
        core = encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6].decode()
        if len(core) >= MIN_SECRET_LENGTH:
            yield from (core, core.replace("+", "-").replace("/", "_"))


_process_redactor = Redactor()


def set_process_redactor(redactor: Redactor) -> None:
    """Use `redactor` for all output of this process."""
    global _process_redactor  # noqa: PLW0603 - one per process, like the logging configuration
    _process_redactor = redactor


def process_redactor() -> Redactor:
    return _process_redactor


def redact(text: str) -> str:
    """`text` without the secrets of this process."""
    return _process_redactor.text(text)


def printable(text: str) -> str:
    """`text` with control characters escaped. Line breaks and tabs stay."""
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """`text` with control characters and line breaks escaped, for text from outside in a message of ours."""
    return _CONTROL_OR_NEWLINE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()
