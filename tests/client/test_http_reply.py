"""Plain replies are read without a parser; whatever is not certainly one is left to it."""

import pytest

from nemo_gym.client.connection import parse_plain_reply

START = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("lines", "headers"),
    [
        (b"content-length: 2\r\n", {"content-length": "2"}),
        (b"Content-Length:2 \r\nX-A: b: c\r\n", {"content-length": "2", "x-a": "b: c"}),
        (b"connection: keep-alive\r\ncontent-length: 2\r\n", {"connection": "keep-alive", "content-length": "2"}),
        (b"x:\r\ncontent-length: 2\r\n", {"x": "", "content-length": "2"}),
    ],
)
def test_a_plain_reply(lines: bytes, headers: dict[str, str]) -> None:
    reply = parse_plain_reply(START + lines + b"\r\n{}", max_headers=9)
    assert reply is not None
    assert (reply.status, reply.content(), {name.lower(): text for name, text in reply.headers.items()}) == (
        *(200, b"{}"),
        headers,
    )


def test_cookies_and_the_pause_are_read_from_the_lines_as_they_came() -> None:
    lines = b"Set-Cookie: a=1; path=/\r\nset-cookie: b=2\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n"
    reply = parse_plain_reply(b"HTTP/1.1 429 Slow down\r\n" + lines, max_headers=9)
    assert reply is not None
    assert (reply.status, reply.content(), reply.cookies, reply.retry_after_s) == (429, b"", {"a": "1", "b": "2"}, 7.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 100 Continue\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 204 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 304 No\r\ncontent-length: 2\r\n\r\n{}",
        START + b"\r\n{}",
        START + b"content-length: 3\r\n\r\n{}",
        START + b"content-length: 1\r\n\r\n{}",
        START + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
        START + b"content-length: +2\r\n\r\n{}",
        START + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        START + b"content-length: 2\r\nContent-Encoding: gzip\r\n\r\n{}",
        START + b"content-length: 2\r\nconnection: close\r\n\r\n{}",
        START + b"content-length: 2\r\nupgrade: h2c\r\n\r\n{}",
        START + b"content-length : 2\r\n\r\n{}",
        START + b"content-length: 2\r\n folded\r\n\r\n{}",
        START + b"content-length: 2\n\r\n{}",
        START + b"x: a\rcontent-length: 2\r\n\r\n{}",
        START + b"x: \0\r\ncontent-length: 2\r\n\r\n{}",
        START + b"a:\r\nb:\r\nc:\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_anything_else_needs_the_parser(data: bytes) -> None:
    assert parse_plain_reply(data, max_headers=3) is None
