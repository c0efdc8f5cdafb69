"""A worker that joins a run from outside, as another process over sockets: it gets rows, keeps its sessions, drains
when it is stopped, and is replaced when it dies."""

import asyncio
import json
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.cli.servers import CHECK_EVERY_S, health_thread
from nemo_gym.client.head import list_workers
from nemo_gym.client.server_client import CookieJar
from nemo_gym.config.loading import load_config
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts import dispatch
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime import membership
from nemo_gym.runtime.fingerprint import Fingerprint
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.runtime.membership import FIRST_INDEX, Members
from nemo_gym.server.uvicorn_runner import bind
from nemo_gym.testing import rows_of
from tests.commands import Running, free_port, ng, started
from tests.polling import PATIENCE_S, until, until_sync
from tests.runtime.test_workers import CONFIG, adds_twice, at, connections, model_at, write_rows
from tests.stub_endpoint import Request, stub_endpoint

TOKEN = "a token of this test"
ROWS = 60


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_RUN_TOKEN", TOKEN)


@asynccontextmanager
async def run_of(folder: Path, url: str) -> AsyncIterator[tuple[Launcher, list[str]]]:
    """A run with one worker, and the arguments with which another one joins it."""
    (folder / "config.yaml").write_text(json.dumps({**CONFIG, "policy_model": model_at(url)}))
    arguments = [f"+config_paths=[{folder}/config.yaml]", f"+head_server.port={free_port()}"]
    config = load_config(arguments, use_dotenv=False, fill_ports=False)
    async with Launcher(config, echo=print) as launcher:
        yield launcher, arguments


@asynccontextmanager
async def joined(arguments: list[str], folder: Path) -> AsyncIterator[Running]:
    with started("ng_worker", *arguments, cwd=folder) as running:
        await asyncio.to_thread(running.wait_for, "joined the run and is ready")
        yield running


def job(folder: Path) -> RolloutCollectionConfig:
    return RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(write_rows(folder / "rows.jsonl", ROWS)),
        output_jsonl_fpath=str(folder / "out.jsonl"),
        num_samples_in_parallel=20,
        max_attempts=1,
    )


class PausedModel:
    """Answers when it may."""

    def __init__(self) -> None:
        self.waiting, self.may_go_on = 0, asyncio.Event()

    async def reply(self, request: Request) -> Any:
        self.waiting += 1
        await self.may_go_on.wait()
        return await adds_twice(request)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_joined_worker_gets_half_of_the_rows_and_may_stop_or_die(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "FIRST_WAIT_S", PATIENCE_S)
    model = PausedModel()
    async with (
        stub_endpoint(model.reply) as endpoint,
        run_of(tmp_path, endpoint.url) as (launcher, arguments),
        joined(arguments, tmp_path) as worker,
        launcher.client() as client,
    ):
        own, other = await list_workers(client) or []
        assert (other.worker, other.pid) == (FIRST_INDEX, worker.process.pid)
        collecting = asyncio.create_task(RolloutCollectionHelper().run_from_config(job(tmp_path), client=client))
        await until(lambda: model.waiting == 20)
        port = int(endpoint.url.split(":")[-1].removesuffix("/v1"))
        assert [connections(each.pid or 0, to=port) for each in (own, other)] == [10, 10]
        worker.signal(number)
        model.may_go_on.set()
        metrics = await collecting
        assert await asyncio.to_thread(worker.wait) == (0 if number == signal.SIGTERM else -number)
    assert (metrics.scored, metrics.failed) == (ROWS, {})
    records = rows_of(tmp_path / "out.jsonl")
    assert sorted(record["_task_index"] for record in records) == list(range(ROWS))
    failures = tmp_path / "out_failures.jsonl"
    lost = rows_of(failures) if failures.exists() else []
    assert [each["code"] for each in lost] == ([] if number == signal.SIGTERM else ["worker_lost"] * 10)


async def test_sessions_of_joined_workers_are_found_by_the_others(tmp_path: Path) -> None:
    async with (
        stub_endpoint(adds_twice) as endpoint,
        run_of(tmp_path, endpoint.url) as (launcher, arguments),
        joined(arguments, tmp_path),
        launcher.client() as client,
    ):
        own, other = await list_workers(client) or []
        for first, second in ((own, other), (other, own)):
            jar = CookieJar()
            await at(first.url, "/seed_session", {"initial_count": 7}, jar, token=TOKEN)
            assert (await at(second.url, "/get_counter_value", {}, jar, token=TOKEN)).content() == b'{"count":7}'


async def test_a_worker_that_stops_leaves_the_list_at_once(tmp_path: Path) -> None:
    async with (
        stub_endpoint(adds_twice) as endpoint,
        run_of(tmp_path, endpoint.url) as (launcher, arguments),
        joined(arguments, tmp_path) as worker,
    ):
        assert len(launcher.workers()) == 2
        worker.signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait) == 0
        assert len(launcher.workers()) == 1


@pytest.mark.parametrize(
    ("token", "said"), [("another", "refused this worker"), ("", "the run's token, and there is")]
)
async def test_a_worker_without_the_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, said: str
) -> None:
    async with run_of(tmp_path, "http://127.0.0.1:1/v1") as (launcher, arguments):
        monkeypatch.setenv("NEMO_GYM_RUN_TOKEN", token)
        ended = await asyncio.to_thread(ng, "ng_worker", *arguments, cwd=tmp_path)
        assert ended.returncode != 0
        assert said in ended.stderr
        assert len(launcher.workers()) == 1


async def test_a_worker_with_another_model_is_refused_with_the_setting_that_differs(tmp_path: Path) -> None:
    key = "policy_model.responses_api_models.openai_model.openai_model"
    async with run_of(tmp_path, "http://127.0.0.1:1/v1") as (launcher, arguments):
        with started("ng_worker", *arguments, f"+{key}=other", cwd=tmp_path) as worker:
            await until(lambda: "this worker" in worker.text or "joined the run" in worker.text)
            assert "joined the run" not in worker.text
            assert await asyncio.to_thread(worker.wait) != 0
        assert re.search(rf'{re.escape(key)}: "other" .*"m"', worker.text)
        assert "config_paths and overrides" in worker.text
        assert len(launcher.workers()) == 1


async def test_a_worker_may_have_addresses_and_secrets_of_its_own(tmp_path: Path) -> None:
    model = "+policy_model.responses_api_models.openai_model"
    own = [f"{model}.openai_base_url=http://127.0.0.1:2/v1", f"{model}.openai_api_key=another", f"{model}.port=0"]
    own += [
        "+num_workers=3",
        "+uv_venv_dir=venvs",
        "+port_range_low=15000",
        "+agent.responses_api_agents.simple_agent.num_workers=2",
    ]
    (tmp_path / "elsewhere").mkdir()
    async with (
        run_of(tmp_path, "http://127.0.0.1:1/v1") as (launcher, arguments),
        joined([*arguments, *own], tmp_path / "elsewhere"),
    ):
        assert len(launcher.workers()) == 2


def test_a_lease_that_is_not_renewed_ends() -> None:
    now = 0.0
    members = Members(lease_s=10, clock=lambda: now)
    registration: dict[str, Any] = {"url": "http://10.0.0.2:1", "rows": "10.0.0.2:2", "servers": ["agent"]}
    first, second = (members.register(orjson.dumps(registration))["worker"] for _ in range(2))
    assert (first, second) == (FIRST_INDEX, FIRST_INDEX + 1)
    now = 8.0
    assert members.register(orjson.dumps({**registration, "worker": first})) == {"worker": first}
    now = 12.0
    assert [address.worker for address in members.addresses()] == [first]
    assert members.register(orjson.dumps({**registration, "worker": second})) == {"worker": None}


def test_a_worker_that_was_dropped_joins_again_with_its_index_unless_another_has_it() -> None:
    now = 0.0
    fingerprint = Fingerprint(version="1", servers={})
    members = Members(fingerprint, lease_s=10, clock=lambda: now)

    def register(**fields: Any) -> int | None:
        worker = {"url": "http://10.0.0.2:1", "rows": "10.0.0.2:2", "servers": ["agent"], **fields}
        found: int | None = members.register(orjson.dumps(worker))["worker"]
        return found

    joins = {"fingerprint": fingerprint.model_dump()}
    assert register(**joins) == FIRST_INDEX
    now = 20.0
    assert register(worker=FIRST_INDEX) is None
    assert register(worker=FIRST_INDEX, **joins) == FIRST_INDEX
    assert register(worker=FIRST_INDEX) == FIRST_INDEX
    restarted = Members(fingerprint, lease_s=10, clock=lambda: now)
    members = restarted
    assert register(worker=FIRST_INDEX, **joins) == FIRST_INDEX
    assert register(worker=FIRST_INDEX, url="http://10.0.0.3:1", **joins) == FIRST_INDEX + 1
    with pytest.raises(ConfigError):
        register(worker=FIRST_INDEX + 2, fingerprint={"version": "2", "servers": {}})


async def test_a_joined_worker_that_was_frozen_until_it_was_dropped_joins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "LEASE_S", 1.5 * membership.RENEW_EVERY_S)
    async with (
        stub_endpoint(adds_twice) as endpoint,
        run_of(tmp_path, endpoint.url) as (launcher, arguments),
        joined(arguments, tmp_path) as worker,
        launcher.client() as client,
    ):
        worker.signal(signal.SIGSTOP)
        await until(lambda: len(launcher.workers()) == 1)
        worker.signal(signal.SIGCONT)
        await until(lambda: len(launcher.workers()) == 2)
        assert [each.worker for each in await list_workers(client) or []] == [0, FIRST_INDEX]
        metrics = await RolloutCollectionHelper().run_from_config(job(tmp_path), client=client)
    assert (metrics.scored, metrics.failed) == (ROWS, {})


async def test_health_is_answered_while_the_event_loop_is_blocked() -> None:
    def ask_until(status: bytes) -> None:
        until_sync(lambda: status in ask())

    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            return client.makefile("rb").read()

    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    with health_thread(listening, hung_after_s=1.5 * CHECK_EVERY_S):
        await asyncio.to_thread(ask_until, b"200 OK")
        asking = threading.Thread(target=ask_until, args=(b"503",))
        asking.start()
        asking.join()  # which blocks the loop
        await asyncio.to_thread(ask_until, b"200 OK")
