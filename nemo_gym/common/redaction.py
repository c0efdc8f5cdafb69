"""Replace secrets in text, and escape control characters, before either reaches a log, a file, a screen or a caller.

`nemo_gym.config.secrets` decides which values are secret. The redactor of the process is set when a configuration is
loaded, and handed to workers over their private pipe.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MASK = "****"

MASKED_FIELD = "_masked"
"""True in a stored record that masking has changed. Its text is not what the model, a tool or the dataset said."""

MIN_SECRET_LENGTH = 8
"""A shorter value is not searched for in text: it would replace unrelated words."""

ORDINARY_WORD = re.compile(r"[A-Z]?[a-z]{7,15}|[A-Z]{8,16}")
"""A secret that looks like a word of a language. Inside a longer word it is that word, and stays."""

_MIN_LINE_LENGTH = 16
"""A line of this length in a secret of several lines is treated as a secret."""

_JSON_LEVELS = 2
"""JSON text inside a JSON string inside a JSON string is searched, too."""

_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPED = b"\\u00"
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")
_JSON_ESCAPE = re.compile(r"\\u00([2-7][0-9A-Fa-f])")
_URL_USER_INFO = re.compile(r"(?<=://)[^/\s?#\"'<>]+@")
_URL_QUERY = re.compile(r"(://[^\s?#\"'<>]*)\?([^\s#\"'<>]+?)(?=[).,;:!\]}]*(?:[\s#\"'<>]|$))")
"""Without the punctuation that follows a URL in a sentence."""
_QUERY_VALUE = re.compile(r"(^|&)([^&=]*=)?[^&]+")
_MASKED_VALUE = rf"\1\2{MASK}"
_MASKED_END = f',"{MASKED_FIELD}":true}}\n'.encode()
_BEARER = "Bearer "
_UNESCAPED = re.compile(r"[A-Za-z0-9_.-]+")
_MIN_ANCHOR_LENGTH = 4
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_OR_NEWLINE = re.compile(rf"{_CONTROL.pattern}|[\n\t]")


class Redactor:
    """Finds secrets in text in the forms in which they travel: plain, JSON-escaped, URL-encoded, base64, HTML."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        texts = {text for secret in secrets for text in _searched_texts(secret)}
        self._forms = {form for text in texts for form in _forms(text)}
        self._anchors = {anchor for text in texts for anchor in _anchors(text)}
        self._byte_anchors = tuple(anchor.encode() for anchor in self._anchors)

    def text(self, text: str) -> str:
        """`text` without secrets, and without user info and query values of URLs."""
        text = self.values(text)
        if "://" not in text:
            return text
        text = _URL_USER_INFO.sub(f"{MASK}@", text)
        return _URL_QUERY.sub(lambda url: f"{url[1]}?{_QUERY_VALUE.sub(_MASKED_VALUE, url[2])}", text)

    def values(self, text: str) -> str:
        """`text` without secrets. If one is in it with characters escaped as in JSON or a URL, the text is returned
        without these escapes."""
        masked = self._masked(text)
        for decode in (_without_json_escapes, _without_percent_signs) if self._anchors else ():
            decoded = decode(masked)
            found = decoded if decoded == masked else self._masked(decoded)
            masked = masked if found == decoded else found
        return masked

    def _masked(self, text: str) -> str:
        if not any(anchor in text for anchor in self._anchors):
            return text
        return _replace_spans(text, sorted(span for form in self._forms for span in _spans(text, form)))

    def json(self, data: bytes) -> bytes:
        """JSON documents without secrets. Only strings are changed, so the result is still JSON."""
        if not self.may_contain_secret(data):
            return data
        return _JSON_STRING.sub(lambda literal: self._json_string(literal[0]), data)

    def json_lines(self, lines: list[bytes]) -> bytes:
        """Lines with a JSON object each, without secrets. A line that masking changed says so in its last field."""
        joined = b"".join(lines)
        if not self.may_contain_secret(joined):
            return joined
        return b"".join(map(self._json_line, lines))

    def _json_line(self, line: bytes) -> bytes:
        redacted = self.json(line)
        return line if redacted == line else redacted[:-2] + _MASKED_END

    def may_contain_secret(self, data: bytes) -> bool:
        """False if JSON documents certainly have no secret in them."""
        if not self._byte_anchors:
            return False
        has_escapes = _ESCAPED in data and _ESCAPED_ASCII.search(data)  # a plain search takes a tenth of the time
        return bool(has_escapes) or any(anchor in data for anchor in self._byte_anchors)

    def _json_string(self, literal: bytes) -> bytes:
        try:
            text: str = json.loads(literal.decode(errors="replace"), strict=False)
        except ValueError:  # not a valid escape sequence
            text = literal[1:-1].decode(errors="replace")
        redacted = self.values(text)
        return literal if redacted == text else _json_literal(redacted)

    def value(self, value: Any) -> Any:
        """A string, or the strings in dicts and lists, as `text` returns them."""
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
    """The secret and, if it has several lines, each long one. A short secret is found only in a header's value."""
    secret = secret.strip().encode(errors="replace").decode()
    if len(secret) < MIN_SECRET_LENGTH:
        if secret:
            yield _BEARER + secret
        return
    yield secret
    if "\n" in secret:
        lines = map(str.strip, secret.splitlines())
        yield from (line for line in lines if len(line) >= _MIN_LINE_LENGTH and not line.startswith("-----"))


def _forms(text: str) -> Iterator[str]:
    """How the text may be written."""
    yield from _base64_forms(text)
    for variant in {text, text.replace("\n", "\r\n"), text.encode().decode("latin-1")}:
        yield from (variant, quote_plus(variant), html.escape(variant))
        yield from (repr(variant)[1:-1], repr(variant.encode())[2:-1])
        for quoted in (quote(variant), quote(variant, safe="")):
            yield from (quoted, re.sub("%..", lambda code: code[0].lower(), quoted))
        yield from _json_forms(variant)


def _anchors(text: str) -> Iterator[str]:
    """A few strings of which one is in every form of the text. Nothing else is searched for until one is found."""
    yield from _base64_forms(text)
    longest = max(_UNESCAPED.findall(text), key=len, default="")
    if len(longest) >= _MIN_ANCHOR_LENGTH:
        yield longest
    else:
        yield from _forms(text)
        yield from (escaped for form in _forms(text) for escaped in _json_escaped(form))


def _json_forms(text: str) -> Iterator[str]:
    forms = {text}
    for _ in range(_JSON_LEVELS):
        forms = {inner for form in forms for inner in _json_escaped(form)}
        yield from forms


def _json_literal(text: str) -> bytes:
    try:
        return json.dumps(text, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(text).encode()


def _json_escaped(text: str) -> set[str]:
    ascii_only = json.dumps(text)[1:-1]
    upper = re.sub(r"\\u\w{4}", lambda code: rf"\u{code[0][2:].upper()}", ascii_only)
    return {ascii_only, upper, json.dumps(text, ensure_ascii=False)[1:-1], ascii_only.replace("/", r"\/")}


def _base64_forms(secret: str) -> Iterator[str]:
    """The characters that the base64 of any text with the secret in it has, for each of the three alignments."""
    raw = secret.encode()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw)
        first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
        core = encoded[first:last].decode()
        if len(core) >= MIN_SECRET_LENGTH:
            yield from (core, core.replace("+", "-").replace("/", "_"))


def _spans(text: str, form: str) -> Iterator[tuple[int, int]]:
    start, is_word = text.find(form), bool(ORDINARY_WORD.fullmatch(form))
    while start >= 0:
        end = start + len(form)
        if not form.startswith(_BEARER):
            if not (is_word and (text[max(start - 1, 0) : start].isalpha() or text[end : end + 1].isalpha())):
                yield start, end
        elif not text[end : end + 1].isalnum():
            yield start + len(_BEARER), end
        start = text.find(form, start + 1)


def _replace_spans(text: str, spans: list[tuple[int, int]]) -> str:
    """Overlapping secrets are replaced together, so that no part of one is left over."""
    parts, position = [], 0
    for start, end in spans:
        if start >= position:
            parts += [text[position:start], MASK]
        position = max(position, end)
    return "".join([*parts, text[position:]])


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
