"""Our environments as MCP servers, used by the client of the package mcp."""

import json
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from mcp import Client, StdioServerParameters

from tests.polling import until_sync

SERVER = ["-m", "nemo_gym.interop.mcp_server"]
COUNTER = "resources_servers/example_stateful_counter/configs/stateful_counter.yaml"


async def test_a_client_plays_a_row_which_is_scored_when_it_leaves(tmp_path: Path) -> None:
    output = tmp_path / "played.jsonl"
    arguments = [*SERVER, COUNTER, "--row", "0", "--output", str(output)]
    async with Client(StdioServerParameters(command=sys.executable, args=arguments), mode="legacy") as client:
        assert client.instructions == "Add 3, then add 4, and tell me what the counter says."
        assert [tool.name for tool in (await client.list_tools()).tools] == ["increment_counter", "get_counter_value"]
        for count in (3, 4):
            assert not (await client.call_tool("increment_counter", {"count": count})).is_error
        assert (await client.call_tool("increment_counter", {"count": "much"})).is_error
    record = orjson.loads(output.read_bytes())
    assert (record["reward"], len(record["response"]["output"])) == (1.0, 6)


def test_a_client_that_only_stops_reading_has_left(tmp_path: Path) -> None:
    output = tmp_path / "played.jsonl"
    served = subprocess.Popen(
        [sys.executable, *SERVER, COUNTER, "--output", str(output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert served.stdout is not None
    served.stdout.close()
    served.communicate(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n' * 2)
    assert (served.returncode, orjson.loads(output.read_bytes())["reward"]) == (0, 0.0)


NEVER_STOPS = """
import asyncio
from contextlib import asynccontextmanager

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class NeverStopsResourcesServer(SimpleResourcesServer):
    @asynccontextmanager
    async def lifespan(self):
        yield
        await asyncio.Event().wait()

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0
"""


def test_the_score_is_written_before_the_environment_stops(tmp_path: Path) -> None:
    """A client of the package mcp ends the process two seconds after it has left."""
    folder = tmp_path / "resources_servers" / "never_stops"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(NEVER_STOPS)
    block = {"resources_servers": {"never_stops": {"entrypoint": "app.py", "domain": "other"}}}
    (tmp_path / "config.yaml").write_text(json.dumps({"never_stops": block}))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"responses_create_params": {"input": "Hello."}}) + "\n")
    output = tmp_path / "played.jsonl"
    served = subprocess.Popen(
        [sys.executable, *SERVER, "config.yaml", "--dataset", "rows.jsonl", "--output", str(output)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    try:
        until_sync(lambda: output.exists() and output.read_bytes().endswith(b"\n"))
    finally:
        served.kill()
        served.wait()
    assert orjson.loads(output.read_bytes())["reward"] == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--row", "99"], "There is no row 99. The dataset has rows 0 to 4.\n"),
        (["--output", "no_such/played.jsonl"], "Cannot write to no_such/played.jsonl: No such file or directory.\n"),
    ],
)
def test_what_is_wrong_is_said_before_a_client_starts(options: list[str], said: str) -> None:
    ended = subprocess.run([sys.executable, *SERVER, COUNTER, *options], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.endswith(said)
