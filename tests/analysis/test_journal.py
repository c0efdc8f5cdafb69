"""A collection that was killed in the middle of rollouts goes on inside them, without asking the model twice."""

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.analysis.recording import record_or_replay
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.output_files import journal_path
from nemo_gym.testing import example_row, rows_of, running_servers
from tests.commands import ng, started
from tests.stacks import counter, scripted_servers
from tests.stub_endpoint import Request, completion, stub_endpoint

TOOLS = [{"type": "function", "name": "increment_counter", "parameters": {}}]
ROWS, CALLS = 3, 4
SETTINGS: dict[str, Any] = {"policy_model": {"responses_api_models": {"scripted_model": {"model": "first"}}}}


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


def write_rows(folder: Path) -> None:
    rows = [example_row(f"row {number}", initial_count=0, expected_count=CALLS - 1) for number in range(ROWS)]
    for row in rows:
        row["responses_create_params"]["tools"] = TOOLS
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


async def test_after_a_kill_no_completed_model_call_is_made_again(tmp_path: Path) -> None:
    write_rows(tmp_path)
    endpoint = Endpoint()
    async with stub_endpoint(endpoint) as stub:
        configs = "example_stateful_counter/configs/stateful_counter.yaml"
        arguments = (
            f"+config_paths=[resources_servers/{configs},responses_api_models/vllm_model/configs/vllm_model.yaml]",
            *(f"+policy_base_url={stub.url}", "+policy_api_key=none", "+policy_model_name=m", "+journal=true"),
            *("+agent_name=stateful_counter_simple_agent", "+head_server.port=0"),
            *("+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=rollouts.jsonl"),
        )
        with started("ng_collect_rollouts", *arguments, cwd=tmp_path) as run:
            async with asyncio.timeout(60):
                await endpoint.are_all_held.wait()
            run.signal(signal.SIGKILL)
            assert run.wait() == -signal.SIGKILL
        endpoint.is_released.set()
        resumed = await asyncio.to_thread(ng, "ng_collect_rollouts", *arguments, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{ROWS} rollouts go on with {2 * ROWS} replies of models" in resumed.stderr
    records = [orjson.loads(line) for line in (tmp_path / "rollouts.jsonl").read_bytes().splitlines()]
    assert [record["reward"] for record in records] == [1.0] * ROWS
    times = {(f"row {row}", call): 2 if call == 2 else 1 for row in range(ROWS) for call in range(CALLS)}
    assert endpoint.asked == times  # the third call was in flight


async def run(folder: Path, replies: list[dict[str, Any]], settings: dict[str, Any], **options: Any) -> int:
    """How many rollouts are scored."""
    paths = {"input_jsonl_fpath": str(folder / "rows.jsonl"), "output_jsonl_fpath": str(folder / "rollouts.jsonl")}
    config = RolloutCollectionConfig(agent_name="agent", max_attempts=1, journal=True, **paths, **options)
    async with running_servers(scripted_servers(counter(), replies)) as client:
        with record_or_replay(client, config, settings):
            return (await RolloutCollectionHelper().run_from_config(config, client=client)).scored


def unfinish(folder: Path) -> None:
    """Leave what a kill leaves just before the records are written, and half a line."""
    (folder / "rollouts.jsonl").unlink()
    with journal_path(folder / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"call":"pol')


ADDS = [{"turn": turn, "call": [{"name": "increment_counter", "arguments": {"count": 1}}]} for turn in range(3)]
BROKEN = [{"status": 400}]


async def test_a_second_kill_loses_nothing_either(tmp_path: Path) -> None:
    write_rows(tmp_path)
    assert await run(tmp_path, [*ADDS, {"say": "Done."}], SETTINGS) == ROWS
    unfinish(tmp_path)
    assert await run(tmp_path, BROKEN, SETTINGS, resume="continue") == ROWS
    unfinish(tmp_path)
    assert await run(tmp_path, BROKEN, SETTINGS, resume="continue") == ROWS


def damage_first_reply(folder: Path, content: bytes) -> int:
    """Returns the index of the row whose reply is lost."""
    journal = journal_path(folder / "rollouts.jsonl")
    lines = journal.read_bytes().split(b"\n")
    number = next(number for number, line in enumerate(lines) if b'"answer"' in line)
    task_index: int = orjson.loads(lines[number])["_task_index"]
    lines[number] = content
    journal.write_bytes(b"\n".join(lines))
    return task_index


@pytest.mark.parametrize("content", [b"", b'{"call":"policy_mo', bytes(80), b"1", b"[]"])
async def test_a_damaged_line_costs_only_the_replies_of_its_rollout(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path)
    assert await run(tmp_path, [*ADDS, {"say": "Done."}], SETTINGS) == ROWS
    unfinish(tmp_path)
    damaged = damage_first_reply(tmp_path, content)
    assert await run(tmp_path, BROKEN, SETTINGS, resume="continue") == ROWS - 1
    assert sum("_journal.jsonl: 1; their replies are asked" in message for message in caplog.messages) == 1
    (failure,) = rows_of(tmp_path / "rollouts_failures.jsonl")
    assert (failure["_task_index"], failure["cause"]) == (damaged, "model")


async def test_replies_after_a_damaged_line_are_not_used_in_another_conversation(tmp_path: Path) -> None:
    write_rows(tmp_path)
    assert await run(tmp_path, [*ADDS, {"say": "Done."}], SETTINGS) == ROWS
    unfinish(tmp_path)
    damaged = damage_first_reply(tmp_path, b"damaged")
    assert await run(tmp_path, [{"say": "No."}], SETTINGS, resume="continue") == ROWS
    items = {
        record["_task_index"]: len(record["response"]["output"]) for record in rows_of(tmp_path / "rollouts.jsonl")
    }
    assert items == {row: 1 if row == damaged else 2 * CALLS - 1 for row in range(ROWS)}


async def test_replies_of_another_model_are_not_used(tmp_path: Path) -> None:
    write_rows(tmp_path)
    assert await run(tmp_path, [*ADDS, {"say": "Done."}], SETTINGS) == ROWS
    unfinish(tmp_path)
    other = {"policy_model": {"responses_api_models": {"scripted_model": {"model": "second"}}}}
    assert await run(tmp_path, BROKEN, other, resume="continue") == 0


async def test_an_attempt_that_failed_is_not_repeated_from_the_journal(tmp_path: Path) -> None:
    write_rows(tmp_path)
    assert await run(tmp_path, [*ADDS, {"status": 400}], SETTINGS) == 0
    assert await run(tmp_path, BROKEN, SETTINGS) == 0
    assert await run(tmp_path, [*ADDS, {"say": "Done."}], SETTINGS) == ROWS


async def test_a_restart_begins_with_an_empty_journal(tmp_path: Path) -> None:
    write_rows(tmp_path)
    assert await run(tmp_path, [*ADDS, {"say": "Done."}], SETTINGS) == ROWS
    unfinish(tmp_path)
    assert await run(tmp_path, BROKEN, SETTINGS, resume="restart") == 0


async def test_a_journal_and_a_record_are_one_too_many(tmp_path: Path) -> None:
    write_rows(tmp_path)
    with pytest.raises(ConfigError, match="Both record and journal are given"):
        await run(tmp_path, [], SETTINGS, record=str(tmp_path / "traffic"))
