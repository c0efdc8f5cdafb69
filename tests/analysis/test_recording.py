"""A recorded run played again gives the same records without its model, and says where it parts from them."""

import contextlib
import json
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.analysis.recording import FILE, INCOMPLETE_FILE, first_difference, record_or_replay
from nemo_gym.client.server_client import ServerClient
from nemo_gym.config.secrets import Secrets, set_process_secrets
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.store import StorageError
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import example_row, running_servers
from tests.stacks import counter, scripted_servers

ADD = {"name": "increment_counter", "arguments": {"count": 1}}
SCRIPT: list[dict[str, Any]] = [{"turn": 0, "call": [ADD, ADD]}, {"say": "Done."}]
SETTINGS: dict[str, Any] = {"policy_model": {"responses_api_models": {"scripted_model": {}}}}


def servers(replies: list[dict[str, Any]]) -> list[ServerSpec]:
    return scripted_servers(counter(), replies)


def write_rows(folder: Path, *, start: int = 0) -> None:
    rows = [example_row(f"row {number}", initial_count=start, expected_count=start + 2) for number in range(5)]
    for row in rows:
        row["responses_create_params"]["tools"] = [{"type": "function", "name": "increment_counter", "parameters": {}}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


async def run(folder: Path, output: str, replies: list[dict[str, Any]], **options: Any) -> RunningMetrics:
    config = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(folder / "rows.jsonl"),
        output_jsonl_fpath=str(folder / output),
        max_attempts=1,
        **options,
    )
    async with running_servers(servers(replies)) as client:
        with record_or_replay(client, config, SETTINGS):
            return await RolloutCollectionHelper().run_from_config(config, client=client)


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
    return [re.sub(rb'"_seconds":[\d.e-]+', b"", line) for line in lines]


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
    assert message.startswith("Replay differs at row 3, repeat 0, call 1 of policy_model/v1/responses")
    assert 'the request.input[0].content was "row 3", is "another row"' in message


async def test_a_run_that_was_interrupted_goes_on_with_its_record(tmp_path: Path) -> None:
    write_rows(tmp_path)
    traffic = tmp_path / "traffic"
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(traffic), limit=2)
    with (traffic / FILE).open("ab") as file:
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
    first, *_ = (traffic / FILE).read_bytes().splitlines()
    killed = {**orjson.loads(first), "_task_index": 1, "attempt": 2, "attempt_id": "killed", "answer": "never used"}
    with (traffic / FILE).open("ab") as file:
        file.write(orjson.dumps(killed) + b"\n")
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(traffic))
    with (traffic / FILE).open("ab") as file:  # and another one killed in a row that is in the output already
        file.write(orjson.dumps({**killed, "_task_index": 2}) + b"\n")
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=str(traffic))
    assert (metrics.scored, metrics.failed) == (5, {})
    assert records(tmp_path / "replayed.jsonl") == records(tmp_path / "recorded.jsonl")


async def test_a_record_that_ends_in_half_a_line_is_replayed_up_to_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    path = tmp_path / "traffic" / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:-5])  # the last line says that the attempt was scored
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=str(tmp_path / "traffic"))
    assert (metrics.scored, metrics.failed.total()) == (4, 1)
    assert sum("is incomplete: rollouts that are not in it" in message for message in caplog.messages) == 1


async def test_a_damaged_line_of_a_record_costs_its_own_rollout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "recorded.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    path = tmp_path / "traffic" / FILE
    path.write_bytes(b"damaged\n" + path.read_bytes().partition(b"\n")[2])
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=str(tmp_path / "traffic"))
    assert (metrics.scored, metrics.failed.total()) == (4, 1)
    assert sum("is incomplete: rollouts that are not in it" in message for message in caplog.messages) == 1


async def test_a_record_that_cannot_be_written_costs_no_rollout_and_is_told(tmp_path: Path) -> None:
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
        with pytest.raises(ConfigError, match=r"was cut short by an error.*\+resume=restart"):
            await run(tmp_path, "out.jsonl", SCRIPT, record=traffic, limit=2, resume=resume)
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=traffic, limit=2)
    assert metrics.scored < 2
    assert sum("is incomplete: rollouts that are not in it" in message for message in caplog.messages) == 1
    await run(tmp_path, "out.jsonl", SCRIPT, record=f"{traffic}_2", limit=2, resume="restart")
    metrics = await run(tmp_path, "replayed_2.jsonl", [{"status": 500}], replay=f"{traffic}_2", limit=2)
    assert (metrics.scored, metrics.failed) == (2, {})


async def test_a_recording_needs_a_new_folder_or_an_empty_one(tmp_path: Path) -> None:
    write_rows(tmp_path)
    traffic = tmp_path / "traffic"
    traffic.mkdir()
    (traffic / "notes.txt").touch()
    with pytest.raises(ConfigError, match="exists already and is not empty"):
        await run(tmp_path, "out.jsonl", SCRIPT, record=str(traffic))
    (traffic / "notes.txt").unlink()
    await run(tmp_path, "out.jsonl", SCRIPT, record=str(traffic))


async def test_rollouts_that_were_made_without_the_record_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path)
    await run(tmp_path, "out.jsonl", SCRIPT, limit=2)
    await run(tmp_path, "out.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    assert sum("has rollouts already, which will not be in" in message for message in caplog.messages) == 1


async def test_what_cannot_be_recorded_or_replayed_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path)
    with pytest.raises(ConfigError, match="There is no record in"):
        await run(tmp_path, "x.jsonl", SCRIPT, replay=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="Both record and replay"):
        await run(tmp_path, "x.jsonl", SCRIPT, replay="a", record="b")
    await run(tmp_path, "x.jsonl", SCRIPT, record=str(tmp_path / "traffic"))
    with pytest.raises(ConfigError, match="exists already"):
        await run(tmp_path, "y.jsonl", SCRIPT, record=str(tmp_path / "traffic"))


async def test_a_tool_whose_recorded_reply_is_masked_is_compared_with_its_masked_reply(tmp_path: Path) -> None:
    """It runs for real, and the model's replies are found by what it really said: nothing masked is used."""
    write_rows(tmp_path, start=987654320)
    rows = (tmp_path / "rows.jsonl").read_text().replace('"increment_counter"', '"get_counter_value"')
    (tmp_path / "rows.jsonl").write_text(rows.replace('"expected_count": 987654322', '"expected_count": 987654320'))
    set_process_secrets(Secrets(frozenset(("987654320",))))  # what the counter says
    script: list[dict[str, Any]] = [
        {"turn": 0, "call": [{"name": "get_counter_value", "arguments": {}}]},
        {"say": "Done."},
    ]
    await run(tmp_path, "recorded.jsonl", script, record=str(tmp_path / "traffic"))
    assert b'"_masked":true' in (tmp_path / "traffic" / FILE).read_bytes()
    metrics = await run(tmp_path, "replayed.jsonl", [{"status": 500}], replay=str(tmp_path / "traffic"))
    assert (metrics.scored, metrics.failed) == (5, {})
    assert records(tmp_path / "replayed.jsonl") == records(tmp_path / "recorded.jsonl")
    assert all(b'"reward":1.0' in record for record in records(tmp_path / "recorded.jsonl"))


@pytest.mark.parametrize(
    ("then", "now", "place"),
    [
        ({"a": 1}, {"a": 2}, "the request.a was 1, is 2"),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "the request.a[1].b was 2, is 3"),
        ([1], [1, 2], "the request[1] was null, is 2"),
        ({"a": 1}, {}, "the request.a was 1, is null"),
    ],
)
def test_the_first_difference_is_where_values_part(then: Any, now: Any, place: str) -> None:
    assert first_difference(then, now) == place


@pytest.mark.parametrize("options", [{"record": "calls"}, {"replay": "calls"}])
def test_worker_processes_are_named_as_what_is_in_the_way(options: dict[str, Any]) -> None:
    config = RolloutCollectionConfig(input_jsonl_fpath="rows.jsonl", output_jsonl_fpath="out.jsonl", **options)
    with (
        pytest.raises(ConfigError, match=r"worker processes: leave num_workers out.* running `ng_run`"),
        record_or_replay(ServerClient(), config, SETTINGS),
    ):
        raise AssertionError("nothing may be collected")
