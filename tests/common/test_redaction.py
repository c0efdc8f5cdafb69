"""Secrets are found in every form in which they travel, and control characters do not reach a terminal."""

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.common.redaction import MASK, Redactor, one_line, printable

PLAIN = "sk-proj-abcdefgh12345678"
SECRETS = [
    PLAIN,
    'with "quotes" and \\ and /slash',
    "пароль-пароль",
    "pässwörd-ünd-mehr",
    "two\nlines of a secret",
    "+/+/+/+/==??",
    "12345678",
]


def written(secret: str) -> list[str]:
    raw = secret.encode()
    inside = [base64.b64encode(before + raw + b"!").decode() for before in (b"", b"u:", b"us:", b"use:")]
    urls = [quote(secret), quote(secret, safe=""), f"https://h/?k={quote(secret, safe='')}"]
    quoted = [json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), repr(raw)]
    return [secret, f"Bearer {secret}", raw.hex(), *inside, *urls, *quoted]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_found_in_every_form(secret: str) -> None:
    redactor = Redactor([secret])
    for text in written(secret):
        shown = redactor.text(f"before {text} after")
        assert MASK in shown, text
        assert shown.startswith("before "), shown
        assert shown.endswith(" after"), shown
        assert all(form not in shown for form in written(secret))


@pytest.mark.parametrize("escape", ["\\u{:04x}", "\\u{:04X}", "%{:02x}", "%{:02X}"])
@pytest.mark.parametrize("escaped", ["+/", "all"])
def test_characters_that_are_escaped_in_a_text_hide_nothing(escape: str, escaped: str) -> None:
    secret = "Zk+proj/Q7xW9-abcdefGHIJ0123"
    hidden = "".join(escape.format(ord(each)) if escaped == "all" or each in escaped else each for each in secret)
    assert Redactor([secret]).text(f'{{"oops": "key {hidden}"}}') == '{"oops": "key ****"}'


@pytest.mark.parametrize("text", ["100 % of \\u0041", "a%20b", "\\u00e9 %zz"])
def test_escapes_that_hide_no_secret_stay(text: str) -> None:
    assert Redactor([PLAIN]).text(text) == text


def test_a_secret_that_contains_another_leaves_nothing() -> None:
    redactor = Redactor(["abcdefgh", "abcdefgh-12345678"])
    assert redactor.text("abcdefgh-12345678") == MASK
    assert redactor.text("abcdefgh abcdefgh") == f"{MASK} {MASK}"


def test_a_short_secret_is_masked_only_in_a_header() -> None:
    redactor = Redactor(["a"])
    text = "a Bearer arrived at last"
    assert redactor.text(text) == text
    assert redactor.text("Authorization: Bearer a") == f"Authorization: Bearer {MASK}"
    assert redactor.text('{"authorization": "Basic YQ=="}') == f'{{"authorization": "Basic {MASK}"}}'


def test_a_long_line_of_a_secret_is_a_secret() -> None:
    lines = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQ", "-----END PRIVATE KEY-----"]
    redactor = Redactor(["\n".join(lines) + "\n"])
    assert redactor.text(f"first {lines[1]}") == f"first {MASK}"
    assert redactor.text(lines[0]) == lines[0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pass@host:80/a", f"http://{MASK}@host:80/a"),
        ("http://me:p@ss@host", f"http://{MASK}@host"),
        ("postgres://:pass@host", f"postgres://{MASK}@host"),
        ("see http://a:b@c and http://d:e@f", f"see http://{MASK}@c and http://{MASK}@f"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("http://h/?api_key=x&page=2#t", f"http://h/?api_key={MASK}&page={MASK}#t"),
        ('{"url": "http://h/v1?x=1", "b": 2}', f'{{"url": "http://h/v1?x={MASK}", "b": 2}}'),
        ("http://h/?secret", f"http://h/?{MASK}"),
        ("Is it http://h? Yes", "Is it http://h? Yes"),
    ],
)
def test_user_info_and_query_of_urls_are_replaced(text: str, shown: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == shown
    assert redactor.text(shown) == shown


def test_values_inside_dicts_and_lists_are_replaced() -> None:
    shown = Redactor([PLAIN]).value({"detail": [PLAIN, 3, {PLAIN: f"x {PLAIN}"}]})
    assert shown == {"detail": [MASK, 3, {MASK: f"x {MASK}"}]}


@given(secret=st.text(min_size=8).filter(lambda text: len(text.strip()) >= 8), before=st.text(), after=st.text())
def test_no_secret_survives(secret: str, before: str, after: str) -> None:
    secret = secret.encode(errors="replace").decode().strip()
    assert secret not in Redactor([secret]).text(before + secret + after)


def test_control_characters_are_escaped() -> None:
    text = "a\x1b[31m\r\nb\u202e\x00\tü\x85\ud800"
    assert printable(text) == "a\\x1b[31m\\r\nb\\u202e\\x00\tü\\x85\\ud800"
    assert one_line(text) == "a\\x1b[31m\\r\\nb\\u202e\\x00\\tü\\x85\\ud800"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("asked http://host/v1?key=abc, then gave up", "asked http://host/v1?key=****, then gave up"),
        ("(http://host/v1?key=abc).", "(http://host/v1?key=****)."),
        ("http://host/v1?key=a.b,c&x=1", "http://host/v1?key=****&x=****"),
    ],
)
def test_the_mask_of_a_query_does_not_eat_the_punctuation_after_it(text: str, masked: str) -> None:
    assert Redactor().text(text) == masked
