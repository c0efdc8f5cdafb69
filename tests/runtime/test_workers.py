"""Several workers behind one address: sessions stay correct, and what a killed worker was making is made again."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from nemo_gym.client.head import SERVER_HEADER, list_workers
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.reply import raise_refusal
from nemo_gym.client.server_client import TOKEN_HEADER, CookieJar, ServerClient, ServerReply
from nemo_gym.config.loading import load_config
from nemo_gym.errors import RolloutError, SessionLostError
from nemo_gym.rollouts import dispatch
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.testing import calls, example_row, response_of, rows_of, says
from tests.polling import PATIENCE_S, until
from tests.stub_endpoint import Request, stub_endpoint

WORKERS = 4
SESSIONS = 2000
CONNECTION_POOLS = 16
INCREMENTS = 3
KILLS = 3
IDLE_SESSIONS = 60
COUNTER = {"resources_servers": {"example_stateful_counter": {"entrypoint": "app.py", "domain": "agent"}}}


@asynccontextmanager
async def launched(*arguments: str, **servers: Any) -> AsyncIterator[Launcher]:
    initial = {"head_server": {"host": "127.0.0.1", "port": 0}, **servers}
    config = load_config(list(arguments), initial=initial, use_dotenv=False, fill_ports=False)
    async with Launcher(config, echo=print) as launcher:
        yield launcher


def pids(launcher: Launcher) -> list[int]:
    return [worker["pid"] for worker in launcher.workers() if worker["pid"]]


async def kill_one(launcher: Launcher, chance: random.Random) -> None:
    """Kill a worker, and wait until it serves again."""
    killed = chance.choice(pids(launcher))
    os.kill(killed, signal.SIGKILL)
    await until(lambda: killed not in pids(launcher))
    await until(lambda: len(pids(launcher)) == WORKERS and all(worker.ready.is_set() for worker in launcher._workers))


async def play(clients: list[ServerClient], chance: random.Random, number: int) -> float:
    """One session, every request on another connection. Errors are raised, never scored."""
    jar = CookieJar()

    async def ask(path: str, body: dict[str, Any]) -> ServerReply:
        return await chance.choice(clients).call("counter", path, body, answer=ServerReply, jar=jar)

    await ask("/seed_session", {"initial_count": number})
    for _ in range(INCREMENTS):
        await ask("/increment_counter", {"count": 1})
    row = example_row("Count.", expected_count=number + INCREMENTS)
    reward: float = orjson.loads((await ask("/verify", {**row, "response": says("Done.")})).content())["reward"]
    return reward


async def test_sessions_behind_one_address_survive_random_connections_and_killed_workers() -> None:
    chance, failures, played, lost = random.Random(7), Counter[str](), Counter[int](), Counter[int]()
    async with launched(f"num_workers={WORKERS}", counter=COUNTER) as launcher, AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(launcher.client()) for _ in range(CONNECTION_POOLS)]
        numbers = iter(range(SESSIONS))

        async def player() -> None:
            for number in numbers:
                while not played[number]:
                    try:
                        assert await play(clients, chance, number) == 1.0
                    except RolloutError as error:
                        failures[error.code or error.cause] += 1
                    else:
                        played[number] += 1

        async def killer() -> None:
            for kill in range(1, KILLS + 1):
                await until(lambda kill=kill: len(played) > kill * SESSIONS / (KILLS + 1))  # type: ignore[misc]
                idle = [CookieJar() for _ in range(IDLE_SESSIONS)]
                for jar in idle:
                    seed = {"initial_count": 1}
                    await chance.choice(clients).call("counter", "/seed_session", seed, answer=ServerReply, jar=jar)
                await kill_one(launcher, chance)
                for jar in idle:
                    try:
                        await chance.choice(clients).call("counter", "/get_counter_value", answer=ServerReply, jar=jar)
                    except SessionLostError:
                        lost[kill] += 1

        async with asyncio.TaskGroup() as group:
            for player_task in (*(player() for _ in range(32)), killer()):
                group.create_task(player_task)
    assert played == dict.fromkeys(range(SESSIONS), 1)
    assert 0 < lost.total() < KILLS * IDLE_SESSIONS
    assert failures.keys() <= {"process_lost"}, "a lost session, or a lost connection"
    assert failures.total() < SESSIONS / 4


async def test_a_session_of_a_killed_worker_is_lost_whichever_worker_is_asked() -> None:
    async with launched("num_workers=2", counter=COUNTER) as launcher, launcher.client() as client:
        first, second = await list_workers(client) or []
        jar = CookieJar()
        await at(first.url, "/seed_session", {"initial_count": 1}, jar)
        forwarded = await at(second.url, "/get_counter_value", {}, jar)
        assert (forwarded.status, forwarded.content()) == (200, b'{"count":1}')
        os.kill(first.pid or 0, signal.SIGKILL)
        await until(lambda: launcher.workers()[0]["pid"] not in (first.pid, None))
        for worker in (first, second):
            with pytest.raises(SessionLostError, match="lost"):
                await at(worker.url, "/get_counter_value", {}, jar)


async def at(url: str, path: str, body: Any, jar: CookieJar, token: str = "") -> ServerReply:
    """Ask one worker."""
    headers = {SERVER_HEADER: "counter", TOKEN_HEADER: token}
    async with HttpClient() as http:
        reply = await http.fetch(
            "POST", url + path, body=orjson.dumps(body), headers=headers, cookies=jar, timeout_s=60, use_proxy=False
        )
    jar.merge(reply.cookies)
    found = ServerReply("counter", reply.status, reply.content())
    raise_refusal(found)
    return found


CONFIG: dict[str, Any] = {
    "counter": COUNTER,
    "agent": {
        "responses_api_agents": {
            "simple_agent": {
                "entrypoint": "app.py",
                "resources_server": {"type": "resources_servers", "name": "counter"},
                "model_server": {"type": "responses_api_models", "name": "policy_model"},
            }
        }
    },
}


def model_at(url: str) -> dict[str, Any]:
    block = {"entrypoint": "app.py", "openai_base_url": url, "openai_api_key": "key", "openai_model": "m"}
    return {"responses_api_models": {"openai_model": block}}


async def adds_twice(request: Request) -> Any:
    """Calls the tool twice, with a moment to think, then answers."""
    outputs = sum(item.get("type") == "function_call_output" for item in request.body["input"])
    await asyncio.sleep(0.02)
    add = calls("increment_counter", '{"count": 2}', call_id=f"call_{outputs}")
    return says("Done.") if outputs == 2 else response_of(add)


def write_rows(path: Path, count: int) -> Path:
    tools = [{"type": "function", "name": "increment_counter", "parameters": {}}]
    with path.open("wb") as file:
        for number in range(count):
            row = example_row(
                "Add two, twice.", initial_count=number, expected_count=number + (4 if number % 3 else 5)
            )
            row["responses_create_params"]["tools"] = tools
            file.write(orjson.dumps(row) + b"\n")
    return path


async def test_the_rollouts_of_killed_workers_are_made_again_and_each_is_scored_once(tmp_path: Path) -> None:
    rows, chance = 600, random.Random(11)
    job = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(write_rows(tmp_path / "rows.jsonl", rows)),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        num_samples_in_parallel=64,
        max_attempts=1,
    )
    helper = RolloutCollectionHelper()
    async with (
        stub_endpoint(adds_twice) as endpoint,
        launched(f"num_workers={WORKERS}", **CONFIG, policy_model=model_at(endpoint.url)) as launcher,
        launcher.client() as client,
    ):
        written: list[Any] = []
        collecting = asyncio.create_task(helper.run_from_config(job, client=client, report=written.append))
        for kill in (1, 2):
            await until(lambda kill=kill: len(written) > kill * rows / 4)  # type: ignore[misc]
            await kill_one(launcher, chance)
        metrics = await collecting
    assert (metrics.scored, metrics.failed) == (rows, {})
    records = rows_of(tmp_path / "out.jsonl")
    assert sorted(record["_task_index"] for record in records) == list(range(rows))
    assert all(record["reward"] == float(record["_task_index"] % 3 > 0) for record in records)
    failures = rows_of(tmp_path / "out_failures.jsonl")
    assert {(failure["code"], failure["is_final"]) for failure in failures} == {("worker_lost", False)}
    attempts = {record["_task_index"]: record["_attempts"] for record in records if record["_attempts"] > 1}
    assert attempts == {index: count + 1 for index, count in Counter(one["_task_index"] for one in failures).items()}


async def test_a_trainers_rollouts_of_a_killed_worker_are_made_again(tmp_path: Path) -> None:
    rows = rows_of(write_rows(tmp_path / "rows.jsonl", 200))
    examples = [{**row, "agent_ref": {"name": "agent"}, "_rowidx": number} for number, row in enumerate(rows)]
    async with (
        stub_endpoint(adds_twice) as endpoint,
        launched("num_workers=2", **CONFIG, policy_model=model_at(endpoint.url)) as launcher,
        launcher.client() as client,
    ):
        helper, rewards = RolloutCollectionHelper(), dict[int, float]()
        for future in helper.run_examples(examples, client=client, num_samples_in_parallel=16):
            row, result = await future
            assert result.keys().isdisjoint(("_ng_task_index", "_task_index")), "as the agent replied"
            rewards[row["_rowidx"]] = result["reward"]
            if len(rewards) == 50:
                os.kill(pids(launcher)[0], signal.SIGKILL)
    assert rewards == {number: float(number % 3 > 0) for number in range(200)}


async def test_a_worker_that_no_longer_answers_is_restarted() -> None:
    async with launched("num_workers=2", "max_blocked_s=0.5", counter=COUNTER) as launcher:
        stopped = pids(launcher)[0]
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: stopped not in pids(launcher) and len(pids(launcher)) == 2)
        await asyncio.wait_for(launcher._workers[0].ready.wait(), 60)


def connections(pid: int, *, to: int) -> int:
    """How many connections a process has to a port."""
    found = psutil.Process(pid).net_connections(kind="tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED and one.raddr[1] == to for one in found if one.raddr)


async def test_rows_are_spread_evenly_over_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "FIRST_WAIT_S", PATIENCE_S)
    rows = 80
    job = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(write_rows(tmp_path / "rows.jsonl", rows)),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        num_samples_in_parallel=40,
    )
    waiting, may_go_on = 0, asyncio.Event()

    async def reply(request: Request) -> Any:
        nonlocal waiting
        waiting += 1
        await may_go_on.wait()
        return await adds_twice(request)

    async with (
        stub_endpoint(reply) as endpoint,
        launched("num_workers=2", **CONFIG, policy_model=model_at(endpoint.url)) as launcher,
        launcher.client() as client,
    ):
        collecting = asyncio.create_task(RolloutCollectionHelper().run_from_config(job, client=client))
        await until(lambda: waiting == 40)
        in_flight = [connections(pid, to=int(endpoint.url.split(":")[-1][:-3])) for pid in pids(launcher)]
        may_go_on.set()
        await collecting
    assert in_flight == [20, 20]
