"""What a client of an endpoint sends, once each, and what of it an error may show: nothing."""

from typing import Any

import pytest

from nemo_gym.client.load_balancer import MAX_TEXT_BYTES, NeMoGymAsyncOpenAI
from nemo_gym.client.pool import HttpClient
from nemo_gym.errors import UpstreamError
from tests.raw_server import raw_server
from tests.stub_endpoint import Request, completion, stub_endpoint

KEY = "sk-0123456789"


async def sent_headers(base_url: str, **options: Any) -> list[str]:
    """The header lines that arrive at an endpoint; a dict would hide a header that is sent twice."""
    seen: list[str] = []

    async def handle(reader: Any, writer: Any) -> None:
        seen.extend((await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async with raw_server(handle) as port, HttpClient() as http:
        url = base_url.format(port=port)
        await NeMoGymAsyncOpenAI(base_url=url, api_key=KEY, http=lambda: http, **options).create_models()
    return seen


@pytest.mark.parametrize(
    ("base_url", "headers", "expected"),
    [
        ("http://127.0.0.1:{port}/v1", {}, f"bearer {KEY}"),
        ("http://me:pass@127.0.0.1:{port}/v1", {}, "basic bwu6cgfzcw=="),
        ("http://127.0.0.1:{port}/v1", {"authorization": "Basic x"}, "basic x"),
        ("http://me:pass@127.0.0.1:{port}/v1", {"AUTHORIZATION": "Basic x"}, "basic x"),
    ],
)
async def test_one_authorization_header_is_sent(base_url: str, headers: dict[str, str], expected: str) -> None:
    lines = await sent_headers(base_url, default_headers=headers)
    assert [line for line in lines if line.startswith("authorization")] == [f"authorization: {expected}"]


async def test_headers_of_the_configuration_replace_those_of_the_client() -> None:
    headers = {"User-Agent": "mine", "host": "other", "accept-encoding": "identity"}
    lines = await sent_headers("http://127.0.0.1:{port}/v1", default_headers=headers)
    names = [line.partition(":")[0] for line in lines if line]
    assert len(names) == len(set(names))
    assert {"user-agent: mine", "host: other", "accept-encoding: identity"} <= set(lines)


@pytest.mark.parametrize(
    ("query", "options", "expected"),
    [("", {}, "/v1/models"), ("?a=b", {}, "/v1/models?a=b"), ("?a=b", {"c": "d"}, "/v1/models?a=b&c=d")],
)
async def test_the_query_of_a_base_url_follows_the_path(query: str, options: dict[str, str], expected: str) -> None:
    lines = await sent_headers("http://127.0.0.1:{port}/v1/" + query, default_query=options)
    assert lines[0] == f"get {expected} http/1.1"


def echo(request: Request) -> Any:
    return 400, {"error": f"bad request with {request.headers} to {request.path}?{request.query}"}


@pytest.mark.parametrize("key", [KEY, "EMPTY", "k"])
async def test_no_error_shows_what_was_sent(key: str) -> None:
    headers = {"x-api-key": "another-secret", "Cookie": "session=abcdefgh"}
    async with stub_endpoint(echo) as stub, HttpClient() as http:
        url = stub.url.replace("//", "//me:password@")
        for base_url in (stub.url, url):
            client = NeMoGymAsyncOpenAI(
                base_url=base_url,
                api_key=key,
                default_headers=headers,
                default_query={"api-key": "query-secret", "api-version": "2024-10-21"},
                http=lambda: http,
            )
            with pytest.raises(UpstreamError) as caught:
                await client.create_chat_completion(messages=[])
            text = f"{caught.value} {caught.value.body}"
            assert not [value for value in (f"Bearer {key}", "another-secret", "abcdefgh", "query-") if value in text]
            assert "password" not in text
            assert "bWU6cGFzc3dvcmQ=" not in text
            assert "2024-10-21" in text
            assert "bad request with" in text


async def test_a_redirect_or_a_reply_without_an_object_is_an_error_and_never_data() -> None:
    replies = iter([(302, completion(), {"Location": "/login"}), (200, "[]"), (200, "<html>")])
    async with stub_endpoint(lambda _: next(replies)) as stub, HttpClient() as http:
        client = NeMoGymAsyncOpenAI(base_url=stub.url, api_key=KEY, http=lambda: http)
        for _ in range(3):
            with pytest.raises(UpstreamError):
                await client.create_chat_completion(messages=[])
        assert len(stub.requests) == 3


async def test_no_error_shows_the_query_of_a_base_url() -> None:
    async with stub_endpoint(echo) as stub, HttpClient() as http:
        client = NeMoGymAsyncOpenAI(base_url=f"{stub.url}?sig=abcd+efgh", api_key=KEY, max_tries=1, http=lambda: http)
        with pytest.raises(UpstreamError) as caught:
            await client.create_chat_completion(messages=[])
    assert "efgh" not in f"{caught.value} {caught.value.body}"


def test_a_key_at_the_end_of_what_is_kept_is_masked_whole() -> None:
    client = NeMoGymAsyncOpenAI(base_url="http://host", api_key=KEY)
    for cut in range(1, len(KEY)):
        assert "sk-" not in client.text_of(b"x" * (MAX_TEXT_BYTES - cut) + KEY.encode() + b"y")
