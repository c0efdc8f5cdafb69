"""A trainer's session, with real servers in a process of their own."""

import asyncio
import contextlib
import json
import os
import pickle
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nemo_gym.client.call_log import parse_call
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.config.loading import load_config
from nemo_gym.errors import ConfigError, RolloutError, StartupError
from nemo_gym.rollouts.call_log import ModelGate
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.types import Outcome, Row
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.testing import example_row, says
from nemo_gym.training import CompleteGroup, PartialRollout, RolloutSession, Source
from nemo_gym.training.session_process import PlayedCalls, RolloutRunner
from tests.polling import until
from tests.runtime.test_workers import CONFIG, adds_twice, launched, model_at, pids
from tests.stub_endpoint import Request, completion, stub_endpoint

COHORT = '''
"""A verifier that waits for all rollouts of its group."""
import asyncio
from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer

SIZE = 4
waiting = {}

class CohortVerifyRequest(BaseVerifyRequest):
    cohort: int

class CohortResourcesServer(SimpleResourcesServer):
    async def verify(self, body: CohortVerifyRequest) -> float:
        count, everybody = waiting.setdefault(body.cohort, ([], asyncio.Event()))
        count.append(body)
        if len(count) >= SIZE:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), 20)
        return 1.0
'''


def config_at(url: str, folder: Path, **more: Any) -> dict[str, Any]:
    path = folder / "config.yaml"
    path.write_text(json.dumps({**CONFIG, "policy_model": model_at(url), **more}))
    return {"config_paths": [str(path)], "head_server": {"host": "127.0.0.1", "port": 1}}


def row_of(number: int, *, expected: int, agent: str = "agent") -> dict[str, Any]:
    reference = {"type": "responses_api_agents", "name": agent}
    row = example_row("Add two, twice.", initial_count=number, expected_count=expected, agent_ref=reference)
    row["responses_create_params"]["tools"] = [{"type": "function", "name": "increment_counter", "parameters": {}}]
    return row


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_submitted_rows_come_back_scored_and_failures_name_their_row(tmp_path: Path, num_workers: int) -> None:
    async with (
        stub_endpoint(adds_twice) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, num_workers=num_workers)) as session,
    ):
        rows = [row_of(number, expected=number + 4 + number % 2) for number in range(8)]
        handles = [session.submit(row) for row in rows]
        assert [(await handle)["reward"] for handle in handles] == [1.0, 0.0] * 4
        wrong = session.submit(row_of(0, expected=4, agent="nobody"))
        with pytest.raises(RolloutError) as failed:
            await wrong
        assert failed.value.cause == "input"
        assert (failed.value.row, failed.value.rollout_id) == (wrong.row, wrong.id)


def take_all(config: dict[str, Any], sources: dict[str, Source], **options: Any) -> tuple[list[CompleteGroup], Any]:
    with RolloutSession(config) as session:
        stream = session.groups(sources, **options)
        return [*stream], stream.stats()


async def test_groups_without_signal_are_dropped(tmp_path: Path) -> None:
    rows = [row_of(0, expected=4), row_of(1, expected=9), row_of(2, expected=6)]
    async with stub_endpoint(adds_twice) as endpoint:
        config = config_at(endpoint.url, tmp_path)
        keep = lambda results: results[0]["reward"] == 1.0  # noqa: E731
        taken, stats = await asyncio.to_thread(take_all, config, {"a": Source(rows)}, group_size=3, keep=keep)
    assert sorted(group.row["initial_count"] for group in taken) == [0, 2]
    assert all(len(group.results) == 3 for group in taken)
    assert stats["dropped"] == {"a": {"no_signal": 1}}


async def test_an_aborted_rollout_ends_and_its_model_is_asked_no_more(tmp_path: Path) -> None:
    asked, may_go_on = 0, asyncio.Event()

    async def reply(request: Request) -> Any:
        nonlocal asked
        asked += 1
        await may_go_on.wait()
        return await adds_twice(request)

    async with stub_endpoint(reply) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        handle = session.submit(row_of(0, expected=4))
        await until(lambda: asked == 1)
        handle.abort()
        with pytest.raises(RolloutError) as aborted:
            await handle
        assert aborted.value.code == "aborted"
        may_go_on.set()
        await session.submit(row_of(1, expected=5))
    assert asked == 1 + 3


@pytest.mark.parametrize(("num_workers", "kills"), [(1, False), (2, False), (4, False), (2, True)])
async def test_verifiers_that_wait_for_their_group_have_it_in_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int, kills: bool
) -> None:
    monkeypatch.setenv(EXTRA_ROOTS_ENV_VAR, str(tmp_path))
    folder = tmp_path / "resources_servers" / "cohort"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(COHORT)
    cohort = {"resources_servers": {"cohort": {"entrypoint": "app.py", "domain": "agent"}}}
    asked = 0

    async def reply(_request: Request) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return says("Done.")

    rows = [{**row_of(number, expected=0), "cohort": number} for number in range(6)]
    async with stub_endpoint(reply) as endpoint:
        config = config_at(endpoint.url, tmp_path, counter=cohort, num_workers=num_workers)
        options = {"group_size": 4, "max_in_flight": 24}
        playing = asyncio.create_task(asyncio.to_thread(take_all, config, {"a": Source(rows)}, **options))
        if kills:
            await until(lambda: asked > 0)
            workers = [
                each for each in psutil.Process().children(True) if "rollouts.worker" in " ".join(each.cmdline())
            ]
            os.kill(workers[0].pid, signal.SIGKILL)
        taken, _stats = await playing
    assert sorted(group.row["cohort"] for group in taken) == [0, 1, 2, 3, 4, 5]
    assert [result["reward"] for group in taken for result in group.results] == [1.0] * 24


async def test_a_collection_plays_the_repeats_of_a_row_in_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXTRA_ROOTS_ENV_VAR, str(tmp_path))
    folder = tmp_path / "resources_servers" / "cohort"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(COHORT)
    cohort = {"resources_servers": {"cohort": {"entrypoint": "app.py", "domain": "agent"}}}
    rows = [{**row_of(number, expected=0), "cohort": number} for number in range(6)]
    dataset, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    async with stub_endpoint(lambda _request: says("Done.")) as endpoint:
        initial = config_at(endpoint.url, tmp_path, counter=cohort, num_workers=2)
        config = load_config([], initial=initial, use_dotenv=False, fill_ports=False)
        options = RolloutCollectionConfig(
            input_jsonl_fpath=str(dataset), output_jsonl_fpath=str(output), num_repeats=4
        )
        async with connect_servers(config) as client:
            metrics = await RolloutCollectionHelper().run_from_config(options, client=client)
    assert (metrics.scored, metrics.mean_reward()) == (24, 1.0)


def test_a_session_whose_servers_do_not_start_says_so(tmp_path: Path) -> None:
    config = config_at(
        "http://127.0.0.1:1/v1", tmp_path, agent={"responses_api_agents": {"no_such_folder": {"entrypoint": "app.py"}}}
    )
    with pytest.raises(StartupError, match=r"did not start.*no_such_folder"), RolloutSession(config):
        pass


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_a_pause_holds_new_model_calls(tmp_path: Path, num_workers: int) -> None:
    async with (
        stub_endpoint(adds_twice) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, num_workers=num_workers)) as session,
    ):
        await session.submit(row_of(0, expected=4))
        await asyncio.to_thread(session.pause)
        before = len(endpoint.requests)
        handles = [session.submit(row_of(number, expected=number + 4)) for number in range(4)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await handles[0]
        assert len(endpoint.requests) == before
        await asyncio.to_thread(session.resume, version=7)
        assert session.version == 7
        assert [(await handle)["reward"] for handle in handles[1:]] == [1.0] * 3


async def test_a_call_in_flight_ends_in_a_pause_and_the_next_one_waits(tmp_path: Path) -> None:
    asked, may_reply = asyncio.Event(), asyncio.Event()

    async def reply(request: Request) -> Any:
        asked.set()
        await may_reply.wait()
        return await adds_twice(request)

    async with stub_endpoint(reply) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        handle = session.submit(row_of(0, expected=4))
        await asked.wait()
        await asyncio.to_thread(session.pause)
        may_reply.set()
        await asyncio.sleep(0.5)
        assert len(endpoint.requests) == 1
        await asyncio.to_thread(session.resume)
        assert (await handle)["reward"] == 1.0


async def test_leaving_the_loop_over_groups_ends_its_rollouts(tmp_path: Path) -> None:
    may_go_on = asyncio.Event()

    async def reply(request: Request) -> Any:
        if request.body["metadata"]["number"] == "0":
            return says("Done.")
        await may_go_on.wait()
        return await adds_twice(request)

    rows = [row_of(number, expected=number + 4) for number in range(9)]
    for number, row in enumerate(rows):
        row["responses_create_params"]["metadata"] = {"number": str(number)}
    async with stub_endpoint(reply) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        groups = session.groups({"a": Source(rows)}, group_size=2, max_in_flight=6)

        def take_one() -> int:
            for group in groups:
                return int(group.row["initial_count"])
            return -1

        assert await asyncio.to_thread(take_one) == 0
        stats = await asyncio.to_thread(groups.stats)
        assert stats["complete"] == 1
        before = len(endpoint.requests)
        may_go_on.set()
        with pytest.raises(StartupError, match="closed"):
            await anext(aiter(groups))
        assert (await session.submit(rows[1]))["reward"] == 1.0
        assert len(endpoint.requests) == before + 3, "those in flight make no further call"


async def test_what_was_played_comes_with_an_error(tmp_path: Path) -> None:
    async def reply(request: Request) -> Any:
        if any(item.get("type") == "function_call_output" for item in request.body["input"]):
            return 400, {"error": "no more"}
        return await adds_twice(request)

    async with (
        stub_endpoint(reply) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, num_workers=2), max_attempts=1) as session,
    ):
        handle = session.submit(row_of(3, expected=4))
        with pytest.raises(RolloutError) as failed:
            await handle
    error = failed.value
    assert (error.cause, error.row, error.rollout_id) == ("model", handle.row, handle.id)
    played = [(call.kind, call.status) for call in error.partial.calls]
    assert played == [("model", 200), ("tool", 200), ("model", 400)]
    assert pickle.loads(pickle.dumps(error)).partial == error.partial


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_a_session_uses_the_servers_of_a_running_head(tmp_path: Path, num_workers: int) -> None:
    async with (
        stub_endpoint(adds_twice) as endpoint,
        launched(f"num_workers={num_workers}", **CONFIG, policy_model=model_at(endpoint.url)) as launcher,
    ):
        head = {"head_server": {"host": "127.0.0.1", "port": launcher.config.head_server.port}}
        async with RolloutSession(head) as session:
            handles = [session.submit(row_of(number, expected=number + 4)) for number in range(8)]
            assert [(await handle)["reward"] for handle in handles] == [1.0] * 8
            groups = session.groups({"a": Source([row_of(1, expected=5)] * 3)}, group_size=2)
            assert [len(group.results) async for group in groups] == [2, 2, 2]
        assert len(pids(launcher)) == num_workers


def session_process() -> psutil.Process:
    """The process of this test's session."""
    (found,) = (each for each in psutil.Process().children() if "session_process" in " ".join(each.cmdline()))
    return found


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_a_session_whose_process_dies_goes_on_from_its_journal(tmp_path: Path, num_workers: int) -> None:
    may_go_on = asyncio.Event()

    async def reply(request: Request) -> Any:
        if sum(item.get("type") == "function_call_output" for item in request.body["input"]) == 1:
            await may_go_on.wait()
        return await adds_twice(request)

    rows = [row_of(number, expected=number + 4) for number in range(20, 23)]
    async with (
        stub_endpoint(reply) as endpoint,
        RolloutSession(
            config_at(endpoint.url, tmp_path, num_workers=num_workers), journal=str(tmp_path / "journal.jsonl")
        ) as session,
    ):
        handles = [session.submit(row_of(number, expected=number + 4)) for number in range(4)]
        groups = session.groups({"a": Source(rows)}, group_size=2)
        first_calls = 4 + 6
        await until(lambda: len(endpoint.requests) == 2 * first_calls)
        await until(lambda: len(model_calls(tmp_path / "journal.jsonl")) == first_calls)
        killed = session_process()
        processes = [killed, *killed.children(recursive=True)]
        killed.kill()
        await until(lambda: not any(map(is_alive, processes)))
        may_go_on.set()
        assert [(await handle)["reward"] for handle in handles] == [1.0] * 4
        taken = [group async for group in groups]
        killed = session_process()
        killed.kill()
        await until(lambda: not is_alive(killed))
        stats = await asyncio.to_thread(groups.stats)
    assert (stats["begun"], stats["complete"], stats["in_flight"]) == (3, 3, 0), "of all processes together"
    assert sorted(group.row["initial_count"] for group in taken) == [20, 21, 22]
    assert [each["reward"] for group in taken for each in group.results] == [1.0] * 6
    outputs = Counter(
        sum(item.get("type") == "function_call_output" for item in request.body["input"])
        for request in endpoint.requests
    )
    assert outputs == {0: first_calls, 1: 2 * first_calls, 2: first_calls}, "only calls in flight were made again"


async def test_a_session_whose_process_always_dies_ends(tmp_path: Path) -> None:
    def reply(_request: Request) -> Any:
        with contextlib.suppress(ValueError):  # none: it is started again
            session_process().kill()
        return says("Done.")

    async with stub_endpoint(reply) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        groups = aiter(session.groups({"a": Source([row_of(1, expected=5)])}))
        taking = asyncio.ensure_future(anext(groups))
        with pytest.raises(RolloutError) as ended:
            await session.submit(row_of(0, expected=4))
        assert ended.value.code == "session_ended"
        with pytest.raises(StartupError):
            await taking
        with pytest.raises(StartupError):
            await asyncio.to_thread(session.pause)


def order_of(folder: Path, url: str, rows: int, *, updates: bool = False, **options: Any) -> None:
    """Order a trainer to take groups of two sources, and to set a new version after each one if it `updates`."""
    sources = {
        "a": [row_of(number, expected=number + 4) for number in range(rows)],
        "b": [row_of(100 + number, expected=0) for number in range(rows)],
    }
    order = {"config": config_at(url, folder), "sources": sources, "options": options, "updates": updates}
    (folder / "order.json").write_text(json.dumps(order))


async def start_trainer(folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.training.trainer_script", str(folder))


def model_calls(journal: Path) -> list[tuple[Any, ...]]:
    calls = filter(None, map(parse_call, journal.read_bytes().splitlines(keepends=True)))
    return [(call.repeat_index, call.row_hash, call.name) for call in calls if call.kind == "model"]


@pytest.mark.parametrize("updates", [False, True])
async def test_a_trainer_killed_anywhere_repeats_no_completed_call_and_loses_no_group(
    tmp_path: Path, updates: bool
) -> None:
    """If it updates its policy, versions after its checkpoint are gone with it, and their calls are made again."""
    chance, rows, kills = random.Random(3), 30, 6
    async with stub_endpoint(adds_twice) as endpoint:
        order_of(tmp_path, endpoint.url, rows, updates=updates, group_size=3, max_in_flight=12)
        for _ in range(kills):
            trainer = await start_trainer(tmp_path)
            until_calls = len(endpoint.requests) + chance.randint(20, 60)
            await until(lambda limit=until_calls, it=trainer: it.returncode or len(endpoint.requests) >= limit)  # type: ignore[misc]
            trainer.kill()
            await trainer.wait()
        trainer = await start_trainer(tmp_path)
        assert await trainer.wait() == 0
    taken = json.loads((tmp_path / "checkpoint.json").read_text())["taken"]
    expected = [["a", row, [1.0] * 3] for row in range(rows)] + [["b", 100 + row, [0.0] * 3] for row in range(rows)]
    assert sorted(taken) == expected
    made = model_calls(tmp_path / "journal.jsonl")
    assert len(made) == len(set(made))
    assert updates or len(made) == 2 * rows * 3 * 3


async def test_a_frozen_trainer_stalls_nothing(tmp_path: Path) -> None:
    """While it stands still, rollouts are started and completed until its queue of groups is full."""
    async with stub_endpoint(adds_twice) as endpoint:
        order_of(tmp_path, endpoint.url, 40, group_size=3, max_in_flight=6, max_ready=20)
        trainer = await start_trainer(tmp_path)
        await until(lambda: len(endpoint.requests) >= 30)
        trainer.send_signal(signal.SIGSTOP)
        frozen_at = len(endpoint.requests)
        await until(lambda: len(endpoint.requests) >= frozen_at + 120)
        trainer.send_signal(signal.SIGCONT)
        assert await trainer.wait() == 0
    taken = json.loads((tmp_path / "checkpoint.json").read_text())["taken"]
    assert len(taken) == 80
    assert len(endpoint.requests) == 80 * 3 * 3, "no call is made twice"


async def test_an_error_of_our_own_is_an_outcome_too() -> None:
    """A trainer would wait for ever for a rollout whose task ends without one."""

    async def run(_row: Row) -> Outcome:
        raise ZeroDivisionError("ours")

    runner = RolloutRunner(ServerClient(), run, 60.0, ModelGate(), None)
    outcome = await runner.play(Row(-1, 0, "", "agent", b"{}"), PlayedCalls())
    assert outcome.error is not None
    assert outcome.error.cause == "internal"
    assert "ours" in str(outcome.error)


def raising(error: BaseException) -> Any:
    def keep(_records: list[dict[str, Any]]) -> bool:
        raise error

    return keep


def rows_that_end_in_an_error() -> Iterator[dict[str, Any]]:
    yield row_of(0, expected=4)
    raise LookupError("no more")


async def test_what_a_trainer_does_wrong_is_an_error_where_it_waits(tmp_path: Path) -> None:
    """And never a wait without an end, nor the end of the session."""
    row, begun = row_of(0, expected=4), {"groups": [[0, "a", 5, 0]], "read": {"a": 6}}
    wrong: list[tuple[Any, dict[str, Any], type[BaseException]]] = [
        ({}, {}, ConfigError),
        ({"a": Source([row], weight=float("nan"))}, {}, ConfigError),
        ({"a": Source([row], max_in_flight=0)}, {}, ConfigError),
        ({"a": Source([row])}, {"on_lost": "hope"}, ConfigError),
        ({"a": Source([row])}, {"state": {"no": "state"}}, ConfigError),
        ({"a": Source([row])}, {"state": begun}, ConfigError),
        ({"b": Source([row])}, {"state": begun}, ConfigError),
        ({"a": Source([row])}, {"keep": raising(ZeroDivisionError())}, ZeroDivisionError),
        ({"a": Source([row])}, {"keep": raising(SystemExit(3))}, SystemExit),
        ({"a": Source(rows_that_end_in_an_error())}, {}, LookupError),
    ]
    async with stub_endpoint(adds_twice) as endpoint:
        config = config_at(endpoint.url, tmp_path)

        def take(session: RolloutSession, sources: dict[str, Source], options: dict[str, Any]) -> None:
            with contextlib.closing(iter(session.groups(sources, group_size=2, **options))) as groups:
                list(groups)

        async with RolloutSession(config) as session:
            for sources, options, error in wrong:
                with pytest.raises(error):
                    await asyncio.to_thread(take, session, sources, options)
            with pytest.raises(ConfigError):
                session.set_version("v1")  # type: ignore[arg-type]
            with pytest.raises(ConfigError):
                session.submit(row, resume=session.submit(row))  # type: ignore[arg-type]
            with pytest.raises(RolloutError) as other_row:
                await session.submit(row_of(7, expected=4), resume=PartialRollout(row, b""))
            assert (other_row.value.cause, other_row.value.code) == ("input", "not_restored")
            assert (await session.submit(row))["reward"] == 1.0
        with pytest.raises(StartupError):
            session.submit(row)
        with pytest.raises(StartupError):
            session.open()
        with pytest.raises(StartupError):
            RolloutSession(config).submit(row)


async def test_a_rollout_lost_from_a_group_is_counted_by_its_cause(tmp_path: Path) -> None:
    rows = [row_of(0, expected=4), row_of(1, expected=5, agent="nobody")]
    async with stub_endpoint(adds_twice) as endpoint:
        config = config_at(endpoint.url, tmp_path)
        _taken, stats = await asyncio.to_thread(take_all, config, {"a": Source(rows)}, group_size=2, on_lost="drop")
    assert stats["dropped"] == {"a": {"lost": 1}}
    assert stats["lost"]["a"]["input"] >= 1


async def test_rollouts_of_a_group_go_to_one_replica_and_routers_are_told_which_they_are(tmp_path: Path) -> None:
    async with (
        stub_endpoint(lambda _: completion("Done.")) as one,
        stub_endpoint(lambda _: completion("Done.")) as two,
    ):
        model = {
            "entrypoint": "app.py",
            "base_url": [one.url, two.url],
            "api_key": "key",
            "model": "m",
            "return_token_id_information": False,
            "uses_reasoning_parser": False,
            "cache_salt": "group",
            "session_header": {"X-Session-Id": "group", "X-Rollout": "rollout"},
        }
        config = config_at("", tmp_path, policy_model={"responses_api_models": {"vllm_model": model}})
        rows = [row_of(number, expected=0) for number in range(6)]
        await asyncio.to_thread(take_all, config, {"a": Source(rows)}, group_size=4)
    asked = [[(each.headers["X-Session-Id"], each.headers["X-Rollout"]) for each in at.requests] for at in (one, two)]
    groups = [{group for group, _ in pairs} for pairs in asked]
    assert len(groups[0] | groups[1]) == len(groups[0]) + len(groups[1]) == 6
    assert len({rollout for pairs in asked for _, rollout in pairs}) == 24
    assert all(each.body["cache_salt"] == each.headers["X-Session-Id"] for each in one.requests + two.requests)
