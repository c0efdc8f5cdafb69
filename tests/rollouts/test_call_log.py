"""The calls of a collection are in one log, to replay it without its model, and to resume rollouts after a kill."""

import asyncio
import contextlib
import json
import re
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.client.call_log import END_OF_ATTEMPT, Call, parse_call
from nemo_gym.client.server_client import ServerClient
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.call_log import INCOMPLETE_FILE, RECORDING_FILE
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.store import StorageError, journal_path, read_rollouts
from nemo_gym.testing import example_row, rows_of, running_servers, server_spec
from nemo_gym.training import trace_of
from tests.commands import Running, ng, started
from tests.polling import until
from tests.stacks import counter, scripted_servers, simple_agent
from tests.stub_endpoint import Request, completion, stub_endpoint

TOOLS = [{"type": "function", "name": "increment_counter", "parameters": {}}]
ADD = {"name": "increment_counter", "arguments": {"count": 1}}
SCRIPT: list[dict[str, Any]] = [{"turn": 0, "call": [ADD, ADD]}, {"say": "Done."}]
BROKEN = [{"status": 400}]
SETTINGS: dict[str, Any] = {"policy_model": {"responses_api_models": {"scripted_model": {"model": "first"}}}}


def write_rows(folder: Path, rows: int = 5, *, expected: int = 2) -> None:
    made = [example_row(f"row {number}", initial_count=0, expected_count=expected) for number in range(rows)]
    for row in made:
        row["responses_create_params"]["tools"] = TOOLS
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))


async def run(
    folder: Path, output: str, replies: list[dict[str, Any]], settings: dict[str, Any] = SETTINGS, **options: Any
) -> RunningMetrics:
    config = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(folder / "rows.jsonl"),
        output_jsonl_fpath=str(folder / output),
        max_attempts=1,
        **options,
    )
    async with running_servers(scripted_servers(counter(), replies)) as client:
        return await RolloutCollectionHelper().run_from_config(config, client=client, settings=settings)


@contextlib.contextmanager
def file_sizes_up_to(most: int) -> Iterator[None]:
    """As on a disk that is full soon."""
    before, heard = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)


def records(path: Path) -> list[bytes]:
    lines = sorted(path.read_bytes().splitlines(), key=lambda line: orjson.loads(line)["_task_index"])
    return [re.sub(rb'"_seconds":[\d.e-]+|"_step_seconds":\[.*?\]', b"", line) for line in lines]


async def test_a_replay_gives_the_same_records_byte_for_byte_without_the_model(tmp_path: Path) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=str(tmp_path / "traffic"))
    assert (metrics.scored, metrics.failed) == (5, {})
    assert records(tmp_path / "replayed.jsonl") == records(tmp_path / "recorded.jsonl")


async def test_a_replay_names_the_first_difference(tmp_path: Path) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    rows = (tmp_path / "rows.jsonl").read_text().replace("row 3", "another row")
    (tmp_path / "rows.jsonl").write_text(rows)
    metrics = await run(tmp_path, "replayed.jsonl", SCRIPT, replay=str(tmp_path / "traffic"))
    assert (metrics.scored, metrics.failed) == (4, {"model": 1})
    (failure,) = (tmp_path / "replayed_failures.jsonl").read_bytes().splitlines()
    message = orjson.loads(failure)["message"]
    assert all(fact in message for fact in ("row 3, repeat 0, call 1", "policy_model/v1/responses", "input.0.content"))
    assert message.index('"row 3"') < message.index('"another row"')


async def test_a_run_that_was_interrupted_goes_on_with_its_record(tmp_path: Path) -> None:
    write_rows(tmp_path)
    traffic = tmp_path / "traffic"
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(traffic), limit=2)
    with (traffic / RECORDING_FILE).open("ab") as file:
        file.write(b'{"_task_index":2,"_repeat')
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(traffic))
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=str(traffic))
    assert (metrics.scored, metrics.failed) == (5, {})
    with pytest.raises(ConfigError, match="exists already"):
        await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(traffic), resume="restart")


async def test_what_a_killed_run_recorded_of_an_unfinished_rollout_is_passed_over(tmp_path: Path) -> None:
    """A kill in the second attempt at a row leaves calls with a higher number than those of the resumed run."""
    write_rows(tmp_path)
    traffic = tmp_path / "traffic"
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(traffic), limit=1)
    first, *_ = (traffic / RECORDING_FILE).read_bytes().splitlines()
    killed = {**orjson.loads(first), "_task_index": 1, "attempt": 2, "attempt_id": "killed", "answer": "never used"}
    with (traffic / RECORDING_FILE).open("ab") as file:
        file.write(orjson.dumps(killed) + b"\n")
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(traffic))
    with (traffic / RECORDING_FILE).open("ab") as file:  # and one killed in a row that is in the output
        file.write(orjson.dumps({**killed, "_task_index": 2}) + b"\n")
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=str(traffic))
    assert (metrics.scored, metrics.failed) == (5, {})
    assert records(tmp_path / "replayed.jsonl") == records(tmp_path / "recorded.jsonl")


async def test_a_record_that_ends_in_half_a_line_is_replayed_up_to_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    path = tmp_path / "traffic" / RECORDING_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:-5])  # the last line says that the attempt was scored
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=str(tmp_path / "traffic"))
    assert (metrics.scored, metrics.failed.total()) == (4, 1)
    assert sum("is incomplete" in message for message in caplog.messages) == 1


async def test_a_damaged_line_of_a_record_costs_its_own_rollout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    path = tmp_path / "traffic" / RECORDING_FILE
    path.write_bytes(b"damaged\n" + path.read_bytes().partition(b"\n")[2])
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=str(tmp_path / "traffic"))
    assert (metrics.scored, metrics.failed.total()) == (4, 1)
    assert sum("is incomplete" in message for message in caplog.messages) == 1


async def test_a_call_log_that_cannot_be_written_costs_no_rollout_and_is_reported(tmp_path: Path) -> None:
    write_rows(tmp_path)
    with pytest.raises(StorageError, match=r"Cannot write .*traffic\.jsonl"), file_sizes_up_to(6000):
        await run(tmp_path, "out.jsonl", SCRIPT, record=str(tmp_path / "traffic"), limit=2)
    assert len(records(tmp_path / "out.jsonl")) == 2
    assert (tmp_path / "traffic" / INCOMPLETE_FILE).read_bytes().endswith(b"}\n")


async def test_a_record_that_was_cut_short_is_not_continued_and_its_replay_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path)
    traffic = str(tmp_path / "traffic")
    with pytest.raises(StorageError, match=r"delete its folder, make room"), file_sizes_up_to(6000):
        await run(tmp_path, "out.jsonl", SCRIPT, record=traffic, limit=2)
    for resume in ("ask", "restart"):
        with pytest.raises(ConfigError, match=r"\+resume=restart"):
            await run(tmp_path, "out.jsonl", SCRIPT, record=traffic, limit=2, resume=resume)
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=traffic, limit=2)
    assert metrics.scored < 2
    assert sum("is incomplete: rollouts" in message for message in caplog.messages) == 1
    await run(tmp_path, "out.jsonl", SCRIPT, record=f"{traffic}_2", limit=2, resume="restart")
    metrics = await run(tmp_path, "replayed_2.jsonl", [{"status": 500}], replay=f"{traffic}_2", limit=2)
    assert (metrics.scored, metrics.failed) == (2, {})


async def test_a_recording_needs_a_new_folder_or_an_empty_one(tmp_path: Path) -> None:
    write_rows(tmp_path)
    traffic = tmp_path / "traffic"
    traffic.mkdir()
    (traffic / "notes.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        await run(tmp_path, "out.jsonl", SCRIPT, record=str(traffic))
    (traffic / "notes.txt").unlink()
    await run(tmp_path, "out.jsonl", SCRIPT, record=str(traffic))


async def test_rollouts_that_were_made_without_the_recording_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "out.jsonl", SCRIPT, limit=2)
    await run(tmp_path, "out.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    assert sum("has rollouts already" in message for message in caplog.messages) == 1


async def test_what_cannot_be_recorded_or_replayed_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path)
    with pytest.raises(ConfigError, match="There is no record in"):
        await run(tmp_path, "x.jsonl", SCRIPT, replay=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="Both record and replay"):
        await run(tmp_path, "x.jsonl", SCRIPT, replay="a", record="b")
    await run(tmp_path, "x.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    with pytest.raises(ConfigError, match="exists already"):
        await run(tmp_path, "y.jsonl", SCRIPT, record=str(tmp_path / "traffic"))


async def test_a_recording_of_an_earlier_version_is_replayed(tmp_path: Path) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    path, lines = tmp_path / "traffic" / RECORDING_FILE, []
    for call in calls_in(path):
        place = {"_task_index": call.task_index, "_repeat_index": call.repeat_index, "_row_hash": call.row_hash}
        old = {**place, "attempt": call.attempt, "attempt_id": call.attempt_id, "call": call.name}
        replied = {"status": call.status, "request": call.request, "answer": call.reply}
        lines.append(orjson.dumps(old if call.name == END_OF_ATTEMPT else {**old, **replied}))
    path.write_bytes(b"\n".join(lines) + b"\n")
    metrics = await run(tmp_path, "replayed.jsonl", BROKEN, replay=str(tmp_path / "traffic"))
    assert (metrics.scored, metrics.failed) == (5, {})
    assert records(tmp_path / "replayed.jsonl") == records(tmp_path / "recorded.jsonl")


def calls_in(path: Path) -> list[Call]:
    calls = [parse_call(line) for line in path.read_bytes().splitlines(keepends=True)]
    return [call for call in calls if call is not None]


async def test_servers_that_log_no_calls_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path)
    paths = {"input_jsonl_fpath": str(tmp_path / "rows.jsonl"), "output_jsonl_fpath": str(tmp_path / "out.jsonl")}
    config = RolloutCollectionConfig(agent_name="agent", journal=True, **paths)
    client = ServerClient(addresses={"agent": "http://127.0.0.1:1"})
    with pytest.raises(ConfigError, match=r"\+journal.*config_paths"):
        await RolloutCollectionHelper().run_from_config(config, client=client)


ROWS, CALLS = 3, 4


class Endpoint:
    """Calls a tool three times, then says so. Until it is released it keeps the third reply to itself."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()
        """How often it was asked, by row and number of the call."""
        self.held: set[str] = set()
        self.are_all_held, self.is_released = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Any:
        messages = request.body["messages"]
        row, call = messages[0]["content"], sum(message["role"] == "assistant" for message in messages)
        self.asked[row, call] += 1
        if call == 2 and not self.is_released.is_set():
            self.held.add(row)
            if len(self.held) == ROWS:
                self.are_all_held.set()
            await self.is_released.wait()
        function = {"name": "increment_counter", "arguments": '{"count": 1}'}
        calls = [{"id": f"{row} {call}", "type": "function", "function": function}] if call < CALLS - 1 else []
        return completion({"role": "assistant", "content": None if calls else "Done.", "tool_calls": calls})


def arguments(url: str, *more: str) -> tuple[str, ...]:
    configs = "example_stateful_counter/configs/stateful_counter.yaml"
    return (
        f"+config_paths=[resources_servers/{configs},responses_api_models/vllm_model/configs/vllm_model.yaml]",
        *(f"+policy_base_url={url}", "+policy_api_key=none", "+policy_model_name=m", *more),
        *("+agent_name=stateful_counter_simple_agent", "+head_server.port=0"),
        *("+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=rollouts.jsonl"),
    )


def check_completed(folder: Path, endpoint: Endpoint) -> None:
    """All rollouts are scored, and only the third call, which was in flight at the kill, was made twice."""
    assert [record["reward"] for record in rows_of(folder / "rollouts.jsonl")] == [1.0] * ROWS
    times = {(f"row {row}", call): 2 if call == 2 else 1 for row in range(ROWS) for call in range(CALLS)}
    assert endpoint.asked == times


@pytest.mark.parametrize("workers", [(), ("+num_workers=2",)])
async def test_after_a_kill_no_completed_model_call_is_made_again(workers: tuple[str, ...], tmp_path: Path) -> None:
    write_rows(tmp_path, ROWS, expected=CALLS - 1)
    endpoint = Endpoint()
    async with stub_endpoint(endpoint) as stub:
        words = arguments(stub.url, "+journal=true", *workers)
        with started("ng_collect_rollouts", *words, cwd=tmp_path) as command:
            async with asyncio.timeout(60):
                await endpoint.are_all_held.wait()
            await until(lambda: logged_replies(tmp_path) == 2 * ROWS)
            command.signal(signal.SIGKILL)
            assert command.wait() == -signal.SIGKILL
        endpoint.is_released.set()
        resumed = await asyncio.to_thread(ng, "ng_collect_rollouts", *words, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{ROWS} rollouts go on with {4 * ROWS} calls" in resumed.stderr
    check_completed(tmp_path, endpoint)


async def test_rollouts_of_a_worker_that_dies_go_on_in_another(tmp_path: Path) -> None:
    write_rows(tmp_path, ROWS, expected=CALLS - 1)
    endpoint = Endpoint()
    async with stub_endpoint(endpoint) as stub:
        words = arguments(stub.url, "+journal=true", "+num_workers=2")
        with started("ng_collect_rollouts", *words, cwd=tmp_path) as command:
            async with asyncio.timeout(60):
                await endpoint.are_all_held.wait()
            await until(lambda: logged_replies(tmp_path) == 2 * ROWS)
            kill_workers(command)
            endpoint.is_released.set()
            assert await asyncio.to_thread(command.wait) == 0, command.text
    check_completed(tmp_path, endpoint)


def logged_replies(folder: Path) -> int:
    path = journal_path(folder / "rollouts.jsonl")
    return path.read_bytes().count(b'"kind":"model"') if path.exists() else 0


def kill_workers(command: Running) -> None:
    workers = [process for process in command.workers() if "nemo_gym.rollouts.worker" in process.cmdline()]
    assert len(workers) == 2
    for process in workers:
        process.kill()


async def test_workers_record_and_replay_too(tmp_path: Path) -> None:
    write_rows(tmp_path, ROWS, expected=CALLS - 1)
    endpoint = Endpoint()
    endpoint.is_released.set()
    async with stub_endpoint(endpoint) as stub:
        words = arguments(stub.url, "+record=traffic", "+num_workers=2")
        done = await asyncio.to_thread(ng, "ng_collect_rollouts", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recorded = records(tmp_path / "rollouts.jsonl")
    words = arguments(stub.url, "+replay=traffic", "+num_workers=2", "+resume=restart")
    done = await asyncio.to_thread(ng, "ng_collect_rollouts", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert records(tmp_path / "rollouts.jsonl") == recorded


async def resume(
    folder: Path, replies: list[dict[str, Any]], settings: dict[str, Any] = SETTINGS, **given: Any
) -> int:
    """How many rollouts are scored."""
    return (await run(folder, "rollouts.jsonl", replies, settings, journal=True, **given)).scored


async def complete(folder: Path) -> None:
    """Make all rollouts with a journal."""
    write_rows(folder, ROWS, expected=CALLS - 1)
    assert await resume(folder, [*ADDS, {"say": "Done."}]) == ROWS


def unfinish(folder: Path) -> None:
    """Leave what a kill leaves just before the records are written, and half a line."""
    (folder / "rollouts.jsonl").unlink()
    with journal_path(folder / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"call":"pol')


ADDS = [{"turn": turn, "call": [ADD]} for turn in range(CALLS - 1)]


async def test_a_second_kill_loses_nothing_either(tmp_path: Path) -> None:
    await complete(tmp_path)
    unfinish(tmp_path)
    assert await resume(tmp_path, BROKEN, resume="continue") == ROWS
    unfinish(tmp_path)
    assert await resume(tmp_path, BROKEN, resume="continue") == ROWS


def damage_first_reply(folder: Path, content: bytes) -> int:
    """Returns the index of the row whose reply is lost."""
    journal = journal_path(folder / "rollouts.jsonl")
    lines = journal.read_bytes().split(b"\n")
    number = next(number for number, line in enumerate(lines) if b'"reply"' in line)
    task_index: int = orjson.loads(lines[number])["_task_index"]
    lines[number] = content
    journal.write_bytes(b"\n".join(lines))
    return task_index


@pytest.mark.parametrize("content", [b"", b'{"call":"policy_mo', bytes(80), b"1", b"[]"])
async def test_a_damaged_line_costs_only_the_replies_of_its_rollout(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await complete(tmp_path)
    unfinish(tmp_path)
    damaged = damage_first_reply(tmp_path, content)
    assert await resume(tmp_path, BROKEN, resume="continue") == ROWS - 1
    assert sum("_journal.jsonl: 1;" in message for message in caplog.messages) == 1
    (failure,) = rows_of(tmp_path / "rollouts_failures.jsonl")
    assert (failure["_task_index"], failure["cause"]) == (damaged, "model")


async def test_replies_after_a_damaged_line_are_not_used_in_another_conversation(tmp_path: Path) -> None:
    await complete(tmp_path)
    unfinish(tmp_path)
    damaged = damage_first_reply(tmp_path, b"damaged")
    assert await resume(tmp_path, [{"say": "No."}], resume="continue") == ROWS
    items = {
        record["_task_index"]: len(record["response"]["output"]) for record in rows_of(tmp_path / "rollouts.jsonl")
    }
    assert items == {row: 1 if row == damaged else 2 * CALLS - 1 for row in range(ROWS)}


async def test_replies_of_another_model_are_not_used(tmp_path: Path) -> None:
    await complete(tmp_path)
    unfinish(tmp_path)
    other = {"policy_model": {"responses_api_models": {"scripted_model": {"model": "second"}}}}
    assert await resume(tmp_path, BROKEN, other, resume="continue") == 0


async def test_an_attempt_that_failed_is_not_repeated_from_the_journal(tmp_path: Path) -> None:
    write_rows(tmp_path, ROWS, expected=CALLS - 1)
    assert await resume(tmp_path, [*ADDS, {"status": 400}]) == 0
    assert await resume(tmp_path, BROKEN) == 0
    assert await resume(tmp_path, [*ADDS, {"say": "Done."}]) == ROWS


async def test_a_restart_begins_with_an_empty_journal(tmp_path: Path) -> None:
    await complete(tmp_path)
    unfinish(tmp_path)
    assert await resume(tmp_path, BROKEN, resume="restart") == 0


async def test_a_journal_and_a_record_are_one_too_many(tmp_path: Path) -> None:
    write_rows(tmp_path, ROWS, expected=CALLS - 1)
    with pytest.raises(ConfigError, match="record and journal"):
        await resume(tmp_path, [], record=str(tmp_path / "traffic"))


async def test_a_journal_of_an_earlier_version_is_resumed_from(tmp_path: Path) -> None:
    await complete(tmp_path)
    path, lines = journal_path(tmp_path / "rollouts.jsonl"), []
    for call in calls_in(path):
        place = {"_task_index": call.task_index, "_repeat_index": call.repeat_index, "_row_hash": call.row_hash}
        if call.kind == "model":
            fields = {"models": call.models, "call": call.name, "status": call.status, "answer": call.reply}
            lines.append(orjson.dumps({**fields, **place}))
        if call.task_index == 0 and call.name == END_OF_ATTEMPT:  # so earlier versions wrote that it failed
            lines.append(orjson.dumps({**place, "call": END_OF_ATTEMPT}))
    path.write_bytes(b"\n".join(lines) + b"\n")
    unfinish(tmp_path)
    assert await resume(tmp_path, BROKEN, resume="continue") == ROWS - 1
    (failure,) = rows_of(tmp_path / "rollouts_failures.jsonl")
    assert failure["_task_index"] == 0


async def test_a_line_in_which_an_earlier_version_masked_secrets_is_not_used(tmp_path: Path) -> None:
    await complete(tmp_path)
    path = journal_path(tmp_path / "rollouts.jsonl")
    path.write_bytes(path.read_bytes().replace(b"}\n", b',"_masked":true}\n'))
    unfinish(tmp_path)
    assert await resume(tmp_path, BROKEN, resume="continue") == 0


async def test_a_recording_that_was_interrupted_goes_on_inside_rollouts(tmp_path: Path) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    recorded = records(tmp_path / "recorded.jsonl")
    (tmp_path / "recorded.jsonl").unlink()
    metrics = await run(tmp_path, "recorded.jsonl", BROKEN, record=str(tmp_path / "traffic"), resume="continue")
    assert metrics.scored == 5
    assert records(tmp_path / "recorded.jsonl") == recorded


async def test_tokens_are_in_the_output_and_in_the_log_once(tmp_path: Path) -> None:
    """Turns of the log and of the output have only what is new, and a replay gives the same records."""
    write_rows(tmp_path, 1, expected=3)
    tokens = [range(10_000 * turn, 10_000 * turn + 50) for turn in range(1, 5)]

    def reply(request: Request) -> Any:
        messages = request.body["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        call = {"id": f"c{turn}", "type": "function", "function": {**ADD, "arguments": '{"count": 1}'}}
        made = completion({"content": "Done."} if turn == 3 else {"content": None, "tool_calls": [call]})
        before = next((each for each in reversed(messages) if "generation_token_ids" in each), None)
        known = [] if before is None else [*before["prompt_token_ids"], *before["generation_token_ids"]]
        entries = [{"token": "x", "logprob": -0.5}]
        made["choices"][0] |= {"logprobs": {"content": entries}, "token_ids": [7]}
        return {**made, "prompt_token_ids": [*known, *tokens[turn]]}

    async def collect(url: str, output: str, **options: Any) -> RunningMetrics:
        fields: dict[str, Any] = {"base_url": url, "api_key": "k", "model": "m", "uses_reasoning_parser": True}
        model = server_spec(
            "policy_model", "responses_api_models", "vllm_model", return_token_id_information=True, **fields
        )
        config = RolloutCollectionConfig(
            agent_name="agent",
            input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
            output_jsonl_fpath=str(tmp_path / output),
            max_attempts=1,
            **options,
        )
        servers = [counter(), model, simple_agent(counter().name)]
        async with running_servers(servers) as client:
            return await RolloutCollectionHelper().run_from_config(config, client=client, settings=SETTINGS)

    async with stub_endpoint(reply) as stub:
        await collect(stub.url, "recorded.jsonl", record=str(tmp_path / "traffic"))
    calls = [parse_call(line) for line in (tmp_path / "traffic" / RECORDING_FILE).read_bytes().splitlines(True)]
    made = [call for call in calls if call is not None and call.kind == "model"]
    assert [call.reply.count(f"{tokens[turn][1]},") for turn, call in enumerate(made)] == [1, 1, 1, 1]
    assert not any(f"{tokens[0][1]}," in call.reply for call in made[1:])
    assert not any("prompt_token_ids" in call.request for call in made)
    (line,) = (tmp_path / "recorded.jsonl").read_bytes().splitlines()
    assert line.count(b"%d," % tokens[0][1]) == 1
    (stored,) = read_rollouts(tmp_path / "recorded.jsonl")
    (segment,) = trace_of(stored.record).segments
    whole = [each for ids in tokens for each in (*ids, 7)]
    assert segment.flatten().ids == whole
    metrics = await collect("http://127.0.0.1:9/v1", "replayed.jsonl", replay=str(tmp_path / "traffic"))
    assert (metrics.scored, metrics.failed) == (1, {})
    assert records(tmp_path / "replayed.jsonl") == records(tmp_path / "recorded.jsonl")
