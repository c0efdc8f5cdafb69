"""Cookies are read from headers by one rule."""

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.common.cookies import parse_cookies, parse_set_cookies

NAMES = st.text("abc-_", min_size=1)
VALUES = st.text("abc=.:-_ ", max_size=9).map(str.strip)


def test_attributes_and_what_is_no_cookie_are_left_out() -> None:
    assert parse_set_cookies(["a=1; path=/; HttpOnly", "b=x=y", "junk", "=1", "a=2"]) == {"a": "2", "b": "x=y"}
    assert parse_cookies(b"a=1; b=x=y;; junk ;=1") == {"a": "1", "b": "x=y"}
    assert parse_cookies(b"") == {}


@given(st.dictionaries(NAMES, VALUES))
def test_what_was_sent_is_read(cookies: dict[str, str]) -> None:
    header = "; ".join(f"{name}={value}" for name, value in cookies.items())
    assert parse_cookies(header.encode()) == cookies
    assert parse_set_cookies(f"{name}={value}; path=/" for name, value in cookies.items()) == cookies
