"""Proxies, redirects, compressed replies and certificates work as users of HTTP clients expect."""

import asyncio
import gzip
import random
import shutil
import ssl
import subprocess
import sys
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme

from nemo_gym.client.pool import MAX_REDIRECTS, HttpClient, Request
from nemo_gym.client.url import Origin, Proxy, is_loopback, proxy_for, shown_url
from nemo_gym.errors import ConfigError, UpstreamError
from tests.raw_server import raw_server

PROXY = {"http_proxy": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("host", "is_tls", "environment", "expected"),
    [
        ("api.example", False, {}, None),
        ("api.example", False, PROXY, Proxy("proxy", 3128)),
        ("api.example", False, {"HTTP_PROXY": "proxy:3128"}, Proxy("proxy", 3128)),
        ("api.example", False, {"http_proxy": "", "ALL_PROXY": "http://proxy"}, Proxy("proxy", 80)),
        ("api.example", True, PROXY, None),
        ("api.example", True, {"HTTPS_PROXY": "http://a:b%40c@proxy:1"}, Proxy("proxy", 1, "Basic YTpiQGM=")),
        ("api.example", True, {"https_proxy": "http://one:1", "all_proxy": "http://two:2"}, Proxy("one", 1)),
        *(("api.example", False, {**PROXY, "no_proxy": listed}, None) for listed in ("*", "example", ".example")),
        *(
            ("api.example", False, {**PROXY, "NO_PROXY": listed}, None)
            for listed in ("x, api.example:80", "*.example")
        ),
        ("api.example", False, {**PROXY, "no_proxy": "pi.example, api.example:81,other"}, Proxy("proxy", 3128)),
        ("10.1.2.3", False, {**PROXY, "no_proxy": "10.0.0.0/8"}, None),
        ("11.1.2.3", False, {**PROXY, "no_proxy": "10.0.0.0/8"}, Proxy("proxy", 3128)),
        ("fd00::1", False, {**PROXY, "no_proxy": "[fd00::1]"}, None),
        *((host, False, PROXY, None) for host in ("127.0.0.1", "127.9.9.9", "localhost", "::1", "a.localhost")),
        *((host, False, {"ALL_PROXY": "proxy:1"}, None) for host in ("0.0.0.0", "::ffff:127.0.0.1", "::")),
    ],
)
def test_the_environment_decides_which_proxy_is_used(
    host: str, is_tls: bool, environment: Mapping[str, str], expected: Proxy | None
) -> None:
    assert proxy_for(Origin(host, 443 if is_tls else 80, is_tls), environment) == expected


@pytest.mark.parametrize("value", ["socks5://proxy:1080", "https://proxy", "http://me:secret@proxy:x", "http://"])
def test_a_proxy_that_cannot_be_used_is_an_error_without_its_password(value: str) -> None:
    with pytest.raises(ConfigError, match="all_proxy") as caught:
        proxy_for(Origin("api.example", 80, False), {"all_proxy": value})
    assert "secret" not in str(caught.value)


@dataclass
class RealProxy:
    """An HTTP proxy that forwards everything to one server, whatever host it is asked for."""

    target_port: int
    seen: list[str] = field(default_factory=list)
    port: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen.append(head.decode())
        ahead_reader, ahead_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        if head.startswith(b"CONNECT "):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            ahead_writer.write(head)
        async with asyncio.TaskGroup() as both:
            both.create_task(copy(reader, ahead_writer))
            both.create_task(copy(ahead_reader, writer))


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


@dataclass
class Echo:
    """Replies with the request's first line and headers."""

    seen: list[dict[str, str]] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            pairs = (line.partition(": ") for line in lines)
            head = {"request": first} | {name.lower(): value for name, _, value in pairs}
            self.seen.append(head)
            await reader.readexactly(int(head.get("content-length", 0)))
            body = orjson.dumps(head)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


ASK = """
import asyncio, sys
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient, get_from_head
from nemo_gym.common import event_loop

async def ask():
    async with HttpClient() as http:
        for _ in range(2):
            headers = {"Authorization": "Bearer k"}
            reply = await http.fetch("POST", sys.argv[1], body=b"{}", headers=headers, timeout_s=10)
            print(reply.content().decode())
        client = ServerClient(addresses={"far": sys.argv[2]}, http=http, token="run-secret")
        print(await client.poll_for_status("far"))

event_loop.run(ask())
print(get_from_head(sys.argv[2], "/run", token="run-secret").decode())
"""


async def ask(*urls: str, **environment: str) -> list[str]:
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASK, *urls), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return (await asked.communicate())[0].decode().splitlines()


@asynccontextmanager
async def proxied(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Echo, RealProxy, int]]:
    echo = Echo()
    async with raw_server(echo.handle, tls=tls) as target:
        proxy = RealProxy(target)
        async with raw_server(proxy.handle) as proxy.port:
            yield echo, proxy, target


async def test_http_goes_through_the_proxy_and_loopback_and_the_run_token_do_not() -> None:
    echo = Echo()
    async with proxied() as (_, proxy, _), raw_server(echo.handle) as own:
        settings = {"ALL_PROXY": f"http://me:pass@127.0.0.1:{proxy.port}"}
        lines = await ask("http://api.example:8080/v1?x=1", f"http://127.0.0.1:{own}", **settings)
    received = orjson.loads(lines[1])
    assert received["request"] == "POST http://api.example:8080/v1?x=1 HTTP/1.1", lines
    assert received["host"] == "api.example:8080"
    assert received["proxy-authorization"] == "Basic " + b64encode(b"me:pass").decode()
    assert len(proxy.seen) == 1, "both requests on one connection"
    assert not any("run-secret" in head for head in proxy.seen)
    assert [head["nemo-gym-token"] for head in echo.seen] == ["run-secret"] * 2
    assert "success" in lines


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
async def test_https_goes_through_a_tunnel_and_certificates_come_from_the_environment(
    variable: str, tmp_path: Path
) -> None:
    if variable == "SSL_CERT_DIR" and not shutil.which("openssl"):
        pytest.skip("needs openssl to name the files of a certificate directory")
    authority, trusted = trustme.CA(), tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(trusted)
    if variable == "SSL_CERT_DIR":
        await asyncio.to_thread(subprocess.run, ["openssl", "rehash", str(tmp_path)], check=True)
        trusted = tmp_path
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("api.example").configure_cert(tls)
    own = Echo()
    async with proxied(tls) as (echo, proxy, _), raw_server(own.handle) as near:
        settings = {"HTTPS_PROXY": f"http://me:pass@127.0.0.1:{proxy.port}"}
        urls = ("https://api.example/v1", f"http://127.0.0.1:{near}")
        lines = await ask(*urls, **settings, **{variable: str(trusted)})
        untrusted = await ask(*urls, **settings)
    received = orjson.loads(lines[1])
    assert (received["request"], received["authorization"]) == ("POST /v1 HTTP/1.1", "Bearer k")
    assert "proxy-authorization" not in received
    tunnel = proxy.seen[0].lower()
    assert tunnel.startswith("connect api.example:443 http/1.1\r\n")
    assert "proxy-authorization: basic" in tunnel
    assert not any("Bearer" in head or "run-secret" in head for head in proxy.seen)
    assert len(echo.seen) == 2
    assert "certificate verify failed" in "".join(untrusted)


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 407 Who are you\r\n\r\n", b"", b"what?\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nmore", b"x" * 99_999],
)
async def test_a_proxy_that_makes_no_tunnel_is_an_error_that_names_it(
    reply: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)

    async with raw_server(refuse) as port, HttpClient() as http:
        monkeypatch.setenv("https_proxy", f"http://me:pass@127.0.0.1:{port}")
        with pytest.raises(UpstreamError, match=f"proxy 127.0.0.1:{port}") as caught:
            await http.fetch("GET", "https://api.example", timeout_s=10)
    assert "pass" not in str(caught.value)


@asynccontextmanager
async def redirecting(*redirects: tuple[int, str]) -> AsyncIterator[tuple[Echo, str]]:
    """A server that redirects /0, /1 and so on, and echoes all else."""
    echo = Echo()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if b"content-length" in line]
            await reader.readexactly(int(lengths[0]) if lengths else 0)
            if path[1:].isdigit():
                status, location = redirects[int(path[1:]) % len(redirects)]
                writer.write(f"HTTP/1.1 {status} Go\r\nlocation: {location}\r\ncontent-length: 2\r\n\r\n{{}}".encode())
            else:
                echo.seen.append({line.split(":")[0].lower(): line for line in head.decode().split("\r\n")})
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone")

    async with raw_server(handle) as port:
        yield echo, f"http://127.0.0.1:{port}"


SENT: dict[str, Any] = {
    "headers": {"Authorization": "Bearer k", "api-key": "k", "nemo-gym-token": "t", "Content-Type": "text/x"},
    "cookies": {"session": "s"},
}
SECRET = {"authorization", "api-key", "nemo-gym-token", "cookie"}


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_repeats_the_request(status: int) -> None:
    async with redirecting((status, "/1"), (status, "end?x=1")) as (echo, url), HttpClient() as http:
        assert (await http.fetch("POST", f"{url}/0", body=b"{}", **SENT, timeout_s=10)).content() == b"done"
    assert "POST /end?x=1 HTTP/1.1" in echo.seen[0].values()
    assert set(echo.seen[0]) >= SECRET | {"content-length", "content-type"}


async def test_another_origin_gets_no_credentials() -> None:
    async with redirecting() as (echo, other), redirecting((307, f"{other}/end")) as (_, url), HttpClient() as http:
        address = url.replace("//", "//me:pass@")
        assert (await http.fetch("POST", f"{address}/0", body=b"{}", **SENT, timeout_s=10)).content() == b"done"
    assert not set(echo.seen[0]) & SECRET
    assert echo.seen[0]["content-type"].endswith("text/x")


@pytest.mark.parametrize("location", ["/0", "http://me:secret@127.0.0.1/x", "ftp://127.0.0.1/x", "http://[/x"])
async def test_a_redirect_that_is_endless_or_invalid_is_an_error(location: str) -> None:
    async with redirecting((307, location)) as (_, url), HttpClient() as http:
        with pytest.raises(UpstreamError, match="redirect") as caught:
            await http.fetch("POST", f"{url}/0", body=b"{}", timeout_s=10)
    assert caught.value.status == 307
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [("https://a/x", "http://a/x"), ("http://far/x", "http://127.0.0.1/x"), ("http://far/x", "http://localhost/")],
)
def test_a_redirect_that_leaves_tls_or_leads_to_this_machine_is_refused(before: str, after: str) -> None:
    with pytest.raises(ValueError, match="it lea"):
        Request("POST", before, {}, {}, b"").redirected(after)


@pytest.mark.parametrize("status", [300, 301, 302, 303])
async def test_any_other_redirect_is_not_followed(status: int) -> None:
    async with redirecting((status, "/end")) as (echo, url), HttpClient() as http:
        assert (await http.fetch("POST", f"{url}/0", body=b"{}", timeout_s=10)).status == status
    assert echo.seen == []


async def test_as_many_redirects_as_allowed_are_followed() -> None:
    steps = [(308, f"/{number}") for number in range(1, MAX_REDIRECTS)] + [(308, "/end")]
    async with redirecting(*steps) as (_, url), HttpClient() as http:
        assert (await http.fetch("GET", f"{url}/0", timeout_s=10)).content() == b"done"


def packed(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("GZIP", gzip.compress(b"whole", mtime=0)),
        ("deflate", packed(b"whole", -15)),
        ("deflate", packed(b"whole", 15)),
    ],
)
async def test_whichever_way_a_reply_is_compressed_it_is_read(encoding: str, body: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(body)}\r\n\r\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + body)

    async with raw_server(handle) as port, HttpClient() as http:
        assert (await http.fetch("GET", f"http://127.0.0.1:{port}", timeout_s=10)).content() == b"whole"


SEEDS = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-trailer: 1\r\n\r\n",
    b"HTTP/1.1 307 Go\r\nlocation: /there\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 429 Wait\r\nretry-after: 1\r\nset-cookie: a=b; path=/\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 22\r\n\r\n" + gzip.compress(b"{}", mtime=0),
)


@pytest.mark.parametrize("seed", range(4))
async def test_hostile_bytes_end_in_a_reply_or_an_error_in_time(seed: int) -> None:
    chance, timed_out = random.Random(seed), 0

    def mutated() -> bytes:
        reply = bytearray(chance.choice(SEEDS))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(reply))
            reply[at : at + chance.randint(0, 3)] = chance.choice(
                (b"", b"\r\n", b"\0", b"\xff" * 3, b": ", b"9" * 25, b"-1", bytes(reply[at : at + 20]))
            )
        return bytes(reply) or b"x"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(mutated())

    async with raw_server(handle) as port, HttpClient() as http:
        for _ in range(150):
            try:
                reply = await http.fetch("GET", f"http://127.0.0.1:{port}", timeout_s=10)
            except UpstreamError as error:
                timed_out += error.cause == "timeout"
            else:
                assert isinstance(reply.cookies, dict)
                assert reply.retry_after_s is None or reply.retry_after_s >= 0
    assert timed_out == 0


def test_what_may_be_secret_in_a_url_is_not_shown() -> None:
    shown = {
        shown_url(url) for url in ("https://me:pw@host:1/v1?key=s#f", "https://host:1/v1", "https://me@host:1/v1?")
    }
    assert shown == {"https://host:1/v1"}
    assert "pw" not in shown_url("http://me:pw/w@host/v1") + shown_url("me:pw//a:pw@host") + shown_url("//:pw@[")


@pytest.mark.parametrize("host", ["example.com", "10.0.0.1", "localhost.example", "::2", "127.0.0.1.example"])
def test_other_machines_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
