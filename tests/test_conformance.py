"""What holds for every environment, agent and model that ships."""

import ast
import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply
from nemo_gym.common.paths import PARENT_DIR, SERVER_FOLDERS
from nemo_gym.config.validation import drop_unknown_keys
from nemo_gym.errors import ConfigError
from nemo_gym.runtime.class_loader import load_server_class
from nemo_gym.server.base import SimpleServer
from nemo_gym.testing import TRANSPORTS, Transport, rows_of, running_servers, says
from tests.shipped_configs import CONFIGS, ENVIRONMENTS, FOLDERS, servers_in, skip_if_isolated

DEEP = 100_000
HOSTILE = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"Hello."',
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "a deep field": b'{"responses_create_params": {"input": ' + b"[" * DEEP,
    "a megabyte of junk": b"x" * 2**20,
    "no Unicode": b'{"city": "\xff\xfe"}',
    "half a character": b'{"city": "\\ud800"}',
    "not a number": b'{"count": NaN}',
    "an endless number": b'{"count": 1e999}',
    "a long number": b'{"id": %s}' % (b"9" * 400),
    "a very long number": b'{"id": %s}' % (b"9" * 5000),
    "unknown fields": b'{"unheard_of": {"deep": [[[[{}]]]]}}',
}


def name_of(path: Path) -> str:
    return str(path.relative_to(PARENT_DIR))


each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
each_environment = pytest.mark.parametrize("folder", ENVIRONMENTS, ids=name_of)
each_config = pytest.mark.parametrize("config", CONFIGS, ids=name_of)


class Shipped(NamedTuple):
    """The server of a folder, and a client of it and of all the servers that its config names."""

    name: str
    server: SimpleServer
    client: ServerClient

    async def send(self, path: str, body: Any, jar: CookieJar | None = None) -> ServerReply:
        async with asyncio.timeout(60):
            return await self.client.send(self.name, path, body, jar=jar)


@asynccontextmanager
async def shipped(folder: Path, *, transport: Transport = "direct") -> AsyncIterator[Shipped]:
    """The folder's server as its first config has it."""
    skip_if_isolated(folder)
    servers = servers_in(next(config for config in CONFIGS if config.parent.parent == folder))
    own = next(held for held in servers if Path(held.folder) == folder)
    kind = load_server_class(own.server_type, folder, own.entrypoint)
    values = drop_unknown_keys(kind.config_class(), own.config, path=own.path, strict=None)
    config = kind.config_class().model_validate({**values, "name": own.name, "port": own.port or 0})
    async with running_servers(servers, transport=transport) as client:
        yield Shipped(own.name, kind(config=config, server_client=client), client)


def example_rows(folder: Path) -> list[dict[str, Any]]:
    return rows_of(folder / "data/example.jsonl")


@each_folder
def test_a_folder_is_complete(folder: Path) -> None:
    needed = ["README.md", "tests/test_app.py", "configs"]
    if folder in ENVIRONMENTS:
        needed += ["data/example.jsonl", "data/.gitignore"]
    assert [path for path in needed if not (folder / path).exists()] == []
    assert "Apache-2.0" in (folder / "README.md").read_text(), "the readme names the licence"


@each_folder
def test_a_folder_refuses_settings_that_it_does_not_know(folder: Path) -> None:
    kind = load_server_class(folder.parent.name, folder, "app.py")
    with pytest.raises(ConfigError, match="Unknown key 'timeuot'"):
        drop_unknown_keys(kind.config_class(), {"timeuot": 1}, path=(folder.name,))


@each_folder
def test_a_folder_imports_no_other(folder: Path) -> None:
    own = f"{folder.parent.name}.{folder.name}"
    for file in sorted(folder.glob("*.py")):
        others = [name for name in imports_of(file) if name.partition(".")[0] in SERVER_FOLDERS]
        assert [name for name in others if not name.startswith(own)] == []


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@each_config
async def test_a_config_can_be_started(config: Path) -> None:
    skip_if_isolated(config.parent.parent)
    servers = servers_in(config)
    async with running_servers(servers) as client:
        assert list(client.local) == [held.name for held in servers]
        assert config.parent.parent in {held.folder for held in servers}


@each_config
def test_the_example_rows_that_a_config_names_are_there(config: Path) -> None:
    for held in servers_in(config):
        for dataset in held.config.get("datasets") or ():
            if dataset["type"] == "example":
                assert len(rows_of(dataset["jsonl_fpath"])) >= 5


@each_environment
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_example_row_seeds_and_is_scored_the_same_each_time(folder: Path, transport: Transport) -> None:
    rows = example_rows(folder)
    assert len(rows) >= 5
    async with shipped(folder, transport=transport) as environment:
        for row in rows:
            jar = CookieJar()
            seeded = await environment.send("/seed_session", row, jar)
            assert seeded.status == 200, seeded.text
            answers = [await environment.send("/verify", {**row, "response": says("Hm.")}, jar) for _ in range(2)]
            assert answers[0].status == 200, answers[0].text
            assert without_ids(answers[0].content()) == without_ids(answers[1].content())
            assert math.isfinite(json.loads(answers[0].content())["reward"])


def without_ids(record: bytes) -> bytes:
    """The record without what is new in each answer of a judge."""
    return re.sub(rb'"(?:resp|msg)_[0-9a-f]{32}"|"created_at":[0-9.]+', b'""', record)


@each_environment
async def test_every_tool_that_a_row_offers_is_there_and_as_the_class_describes_it(folder: Path) -> None:
    async with shipped(folder) as environment:
        assert isinstance(environment.server, SimpleResourcesServer)
        described = {tool["name"]: tool for tool in environment.server.tool_schemas()}
        offered = [tool for row in example_rows(folder) for tool in row["responses_create_params"].get("tools", [])]
        for tool in offered:
            assert described.get(tool["name"], tool) == tool
        for name in {tool["name"] for tool in offered}:
            assert (await environment.send(f"/{name}", b"{}")).status != 404


@each_folder
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_hostile_body_is_refused_and_breaks_nothing(folder: Path, transport: Transport) -> None:
    async with shipped(folder, transport=transport) as server:
        for endpoint in server.server.endpoints():
            fields = endpoint.arguments.model_fields.values() if endpoint.arguments else ()
            needs_a_body = any(field.is_required() for field in fields)
            for kind, body in HOSTILE.items():
                answer = await server.send(endpoint.path, body)
                place = f"{endpoint.path}, {kind}: {answer.status} {answer.text[:200]}"
                assert answer.status < 500, place
                refused = (400, 422) if endpoint.path.startswith("/v1/") else (422,)
                assert answer.status in refused or not needs_a_body, place
                assert isinstance(json.loads(answer.content()), dict), place
