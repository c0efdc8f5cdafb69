"""No reply exhausts the memory of a client: over a limit there is an error, and nothing is kept."""

import asyncio
import gzip
import subprocess
import sys
import zlib
from collections.abc import Iterable

import pytest

from nemo_gym.client.connection import HttpSettings
from nemo_gym.client.pool import HttpClient
from nemo_gym.errors import ConfigError, UpstreamError
from tests.raw_server import Handler, raw_server

OK = b"HTTP/1.1 200 OK\r\n"
SMALL = {
    "max_response_bytes": 1_000_000,
    "max_decompressed_response_bytes": 50_000,
    "max_response_header_bytes": 10_000,
    "max_response_headers": 20,
}


def sends(parts: Iterable[bytes]) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()

    return handle


def with_body(body: bytes, *headers: bytes) -> list[bytes]:
    return [OK, *headers, b"content-length: %d\r\n\r\n" % len(body), body]


GZIP, CHUNKED = b"content-encoding: gzip\r\n", b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("max_response_bytes", with_body(b"x" * 1_000_001)),
        ("max_response_bytes", [OK, CHUNKED, *([b"2710\r\n" + b"x" * 10_000 + b"\r\n"] * 101)]),
        ("max_response_bytes", [OK, b"\r\n", *([b"x" * 10_000] * 101)]),
        ("max_decompressed_response_bytes", with_body(gzip.compress(b"x" * 50_001), GZIP)),
        ("max_decompressed_response_bytes", with_body(zlib.compress(b"x" * 50_001), b"content-encoding: deflate\r\n")),
        ("max_response_headers", [OK, *(b"a: b\r\n" for _ in range(21)), b"content-length: 0\r\n\r\n"]),
        ("max_response_header_bytes", [OK, *([b"a: " + b"b" * 5_000 + b"\r\n"] * 3), b"content-length: 0\r\n\r\n"]),
        ("max_response_header_bytes", [OK, b"a: ", *([b"b" * 5_000] * 3), b"\r\ncontent-length: 0\r\n\r\n"]),
        ("max_response_header_bytes", [b"HTTP/1.1 200 ", b"O" * 10_001, b"K\r\ncontent-length: 0\r\n\r\n"]),
        ("max_response_header_bytes", [b"HTTP/1.1 103 Hints\r\na: b\r\n\r\n"] * 1000),
        ("max_response_header_bytes", [OK, CHUNKED, b"1;" + b"e" * 20_000 + b"\r\nx\r\n0\r\n\r\n"]),
        ("max_response_header_bytes", [OK, CHUNKED, *([b"1;eeeeeeee\r\nx\r\n"] * 2000), b"0\r\n\r\n"]),
        ("max_response_header_bytes", [OK, CHUNKED, b"1\r\nx\r\n0\r\n", b"a: " + b"b" * 20_000, b"\r\n\r\n"]),
    ],
)
async def test_over_a_limit_is_an_error_that_names_the_setting(setting: str, parts: list[bytes]) -> None:
    async with raw_server(sends(parts)) as port, HttpClient.of(SMALL) as http:
        with pytest.raises(UpstreamError, match=f"exceeded {setting}, {SMALL[setting]}") as caught:
            await http.fetch("GET", f"http://127.0.0.1:{port}", timeout_s=10)
    assert caught.value.status in (200, 103)


async def test_a_reply_that_is_announced_too_large_is_refused_before_it_comes() -> None:
    async def announce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"content-length: 1000001\r\n\r\n")
        await reader.read()  # until the client closes the connection

    async with raw_server(announce) as port, HttpClient.of(SMALL) as http:
        with pytest.raises(UpstreamError, match="exceeded max_response_bytes, 1000000"):
            await http.fetch("GET", f"http://127.0.0.1:{port}", timeout_s=60)


@pytest.mark.parametrize(
    "parts",
    [
        with_body(b"x" * 990_000),
        with_body(gzip.compress(b"x" * 50_000), GZIP),
        [OK, *(b"a: b\r\n" for _ in range(18)), *with_body(b"x")[1:]],
        [OK, CHUNKED, *([b"1\r\nx\r\n"] * 2000), b"0\r\n\r\n"],
    ],
)
async def test_within_the_limits_a_reply_is_read(parts: list[bytes]) -> None:
    async with raw_server(sends(parts)) as port, HttpClient.of(SMALL) as http:
        assert set((await http.fetch("GET", f"http://127.0.0.1:{port}", timeout_s=10)).content()) == {ord("x")}


@pytest.mark.parametrize("name", HttpSettings.model_fields)
def test_a_setting_that_makes_no_sense_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"- {name}: .*found 'many'"):
        HttpSettings.of({name: "many"})


ASK = """
import asyncio, sys
from nemo_gym.client.pool import HttpClient

async def ask():
    async with HttpClient.of({"max_decompressed_response_bytes": 2**24}) as http:
        for url in sys.argv[1:] * 2:
            try:
                await http.fetch("GET", url, timeout_s=60)
            except Exception as error:
                print(error)

asyncio.run(ask())
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def gzip_bomb(size: int) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return b"".join(packer.compress(b"\0" * 2**20) for _ in range(size // 2**20)) + packer.flush()


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)
    for number in range(10_000):
        writer.write(b"a-%d: " % number + b"x" * 60_000 + b"\r\n")
        await writer.drain()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
async def test_bombs_cost_a_process_little_memory() -> None:
    bomb = with_body(gzip_bomb(400 * 2**20), GZIP)
    async with raw_server(sends(bomb)) as first, raw_server(endless_headers) as second:
        urls = [f"http://127.0.0.1:{port}" for port in (first, second)]
        asked = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASK, *urls, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output = (await asked.communicate())[0].decode()
    assert output.count("exceeded max_decompressed_response_bytes") == 2, output
    assert output.count("exceeded max_response_header_bytes") == 2, output
    assert int(output.split()[-1]) < 200_000, "peak kB"
