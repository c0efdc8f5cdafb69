"""Stored rollouts are scored by the verifier as it is now, in the state that they left the environment in."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from omegaconf import OmegaConf

from nemo_gym.analysis.reverify import ReverifyConfig, ReverifyReport, environment_finder, reverify_rollouts
from nemo_gym.client.server_client import ServerClient
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.attempts import attempt
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.store import StoredRolloutsError
from nemo_gym.rollouts.types import Row, hash_row
from nemo_gym.runtime.stack import ServerSpec, Stack, StackSpec
from nemo_gym.testing import (
    TRANSPORTS,
    Transport,
    calls,
    example_row,
    message,
    response_of,
    rows_of,
    running_servers,
    says,
    server_spec,
    tool_output,
)
from tests.commands import free_port, ng, started
from tests.jsonl import write_lines
from tests.stacks import counter, scripted_servers

UNSURE = Path(__file__).parent.parent / "servers/resources_servers/unsure"
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": name, "parameters": {}} for name in ("increment_counter", "get_counter_value")
]


def servers() -> list[ServerSpec]:
    script = [
        {"user": r"add (\d+)", "turn": 0, "call": [{"name": "increment_counter", "arguments": '{"count": \\1}'}]},
        {"turn": 1, "call": [{"name": "get_counter_value"}]},
        {"say": "Done."},
    ]
    return scripted_servers(counter(), script)


def counter_row(number: int, *, expected: int = 3, start: int = 0) -> dict[str, Any]:
    row = example_row(f"add {number}", initial_count=start, expected_count=expected)
    row["responses_create_params"]["tools"] = TOOLS
    return row


ROWS = [counter_row(3), counter_row(2), counter_row(2, start=1), counter_row(4, start=1)]
OLD_REWARDS = [1.0, 0.0, 1.0, 0.0]


def config_in(folder: Path, **options: Any) -> ReverifyConfig:
    files = {"input": "rows", "rollouts": "rollouts", "output": "again"}
    paths = {f"{name}_jsonl_fpath": str(folder / f"{file}.jsonl") for name, file in files.items()}
    return ReverifyConfig.model_validate({**paths, **options})


async def collect(folder: Path, client: ServerClient, rows: list[dict[str, Any]] = ROWS, **options: Any) -> None:
    write_lines(folder / "rows.jsonl", rows)
    config = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(folder / "rows.jsonl"),
        output_jsonl_fpath=str(folder / "rollouts.jsonl"),
        responses_create_params={"temperature": 0.5},
        **options,
    )
    await RolloutCollectionHelper().run_from_config(config, client=client)


async def reverified(folder: Path, client: ServerClient, **options: Any) -> ReverifyReport:
    return await reverify_rollouts(config_in(folder, **options), client, lambda _row: "counter")


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def edit(path: Path, change: Any) -> None:
    """Put every record of a file through `change`."""
    write_lines(path, [change(record) for record in rows_of(path)])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nothing_moves_if_nothing_has_changed(tmp_path: Path, transport: Transport) -> None:
    async with running_servers(servers(), transport=transport) as client:
        await collect(tmp_path, client)
        report = await reverified(tmp_path, client)
    assert (report.rescored, report.up, report.down, report.unconfirmed) == (4, 0, 0, 0)
    assert report.means == (0.5, 0.5)
    assert (report.tool_calls, report.tool_outputs_changed) == (8, 0)
    again = {record["_task_index"]: record for record in rows_of(tmp_path / "again.jsonl")}
    assert [again[index]["reward"] for index in range(4)] == OLD_REWARDS
    for record in rows_of(tmp_path / "rollouts.jsonl"):
        expected = {**record, "_old_reward": record["reward"], "_tool_outputs_changed": 0}
        assert again[record["_task_index"]] == expected
        assert again[record["_task_index"]]["_row_fields"] == ["initial_count", "expected_count"]
    assert not (tmp_path / "again_failures.jsonl").exists()


async def test_state_comes_from_calling_the_tools_again(tmp_path: Path) -> None:
    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
        report = await reverified(tmp_path, client, replay_tools=False)
    assert (report.up, report.down, report.tool_calls) == (0, 2, 0)


async def test_changed_rewards_are_listed_largest_first(tmp_path: Path) -> None:
    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
        edit(
            tmp_path / "rollouts.jsonl",
            lambda record: {**record, "reward": [1.0, 0.25, 0.5, 0.0][record["_task_index"]]},
        )
        report = await reverified(tmp_path, client)
    assert [change[1:] for change in report.largest] == [(2, 0, 0.5, 1.0), (1, 0, 0.25, 0.0)]
    assert (report.up, report.down, report.unconfirmed) == (1, 1, 2)
    assert report.means == (0.4375, 0.5)
    moved = {
        record["_task_index"]: (record["_old_reward"], record["reward"])
        for record in rows_of(tmp_path / "again.jsonl")
    }
    assert moved == {0: (1.0, 1.0), 1: (0.25, 0.0), 2: (0.5, 1.0), 3: (0.0, 0.0)}


async def test_a_difference_within_the_tolerance_is_no_move(tmp_path: Path) -> None:
    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
        edit(tmp_path / "rollouts.jsonl", lambda record: {**record, "reward": record["reward"] + 0.01})
        assert (await reverified(tmp_path, client, tolerance=0.02)).unconfirmed == 0
        assert (await reverified(tmp_path, client, tolerance=0.001, overwrite=True)).down == 4


async def test_a_row_that_was_put_right_is_refused_unless_allowed(tmp_path: Path) -> None:
    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
        hashes = [hash_row(json.dumps(row).encode()) for row in ROWS]
        write_lines(tmp_path / "rows.jsonl", [*ROWS[:3], counter_row(4, start=1, expected=5)])
        with pytest.raises(StoredRolloutsError, match=r"row 3, .*\+allow_changed_rows=true"):
            await reverified(tmp_path, client)
        assert not (tmp_path / "again.jsonl").exists()
        report = await reverified(tmp_path, client, allow_changed_rows=True)
    assert (report.changed_rows, report.up, report.largest[0].task_index) == (1, 1, 3)
    again = {record["_task_index"]: record["_row_hash"] for record in rows_of(tmp_path / "again.jsonl")}
    assert again[0] == hashes[0]
    assert again[3] == hash_row((tmp_path / "rows.jsonl").read_bytes().splitlines()[3])


@pytest.mark.parametrize("rows_file", ["rows.jsonl", "rollouts_materialized_inputs.jsonl"])
async def test_a_rollout_is_verified_with_its_own_row_wherever_that_is(tmp_path: Path, rows_file: str) -> None:
    """After `+resume=continue` with rows moved, one of them corrected and one removed. The dataset is given, or the
    rows as they were sent."""
    rows = [counter_row(4, start=1, expected=5), *reversed(ROWS[1:3])]
    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
        await collect(tmp_path, client, rows=rows, resume="continue", materialize_inputs=True)
        dataset = {"input_jsonl_fpath": str(tmp_path / rows_file)}
        before = {record["_task_index"]: record for record in rows_of(tmp_path / "rollouts.jsonl")}
        with pytest.raises(StoredRolloutsError, match=r"line 1 .* row 0"):
            await reverified(tmp_path, client, **dataset)
        report = await reverified(tmp_path, client, allow_changed_rows=True, **dataset)
    assert (report.rescored, report.up, report.down, report.changed_rows) == (3, 0, 0, 0)
    again = {record["_task_index"]: record for record in rows_of(tmp_path / "again.jsonl")}
    assert [again[index]["reward"] for index in (1, 2, 4)] == [*OLD_REWARDS[1:3], 1.0]
    assert all(record["_row_hash"] == before[index]["_row_hash"] for index, record in again.items())
    failures = rows_of(tmp_path / "again_failures.jsonl")
    assert {(failure["_task_index"], failure["cause"]) for failure in failures} == {(0, "input"), (3, "input")}


async def test_a_tool_that_answers_otherwise_is_counted(tmp_path: Path) -> None:
    def otherwise(record: dict[str, Any]) -> dict[str, Any]:
        record["response"]["output"][1]["output"] = "something else"
        return record

    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
        edit(tmp_path / "rollouts.jsonl", otherwise)
        report = await reverified(tmp_path, client)
    assert (report.tool_calls, report.tool_outputs_changed, report.unconfirmed) == (8, 4, 0)
    assert {record["_tool_outputs_changed"] for record in rows_of(tmp_path / "again.jsonl")} == {1}


async def test_only_tools_that_were_run_are_run_again(tmp_path: Path) -> None:
    """Not offered, refused by the agent, cut off before it answered: none of these reached the environment."""
    add = '{"count": 1}'
    said = response_of(
        calls("increment_counter", add, call_id="1"),
        calls("verify", "{}", call_id="2"),
        calls("unheard_of", add, call_id="3"),
        *(tool_output("{}", call_id=str(number)) for number in (1, 2, 3)),
        calls("increment_counter", add, call_id="4"),
        message("Done."),
    )
    row = counter_row(0, expected=1)
    row["responses_create_params"]["tools"] = [*TOOLS, {"type": "function", "name": "verify", "parameters": {}}]
    write_lines(tmp_path / "rows.jsonl", [row])
    write_lines(tmp_path / "rollouts.jsonl", [{**row, "response": said, "reward": 1.0, "_task_index": 0}])
    async with running_servers(servers()) as client:
        report = await reverified(tmp_path, client)
    assert (report.tool_calls, report.unconfirmed) == (1, 0)


async def test_what_cannot_be_scored_is_a_failure_with_a_cause_and_the_others_go_on(tmp_path: Path) -> None:
    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
        incomplete = [{key: value for key, value in ROWS[0].items() if key != "expected_count"}]
        write_lines(tmp_path / "rows.jsonl", [*incomplete, *ROWS[1:]])
        edit(
            tmp_path / "rollouts.jsonl",
            lambda record: {**record, "reward": None} if record["_task_index"] == 1 else record,
        )
        report = await reverified(tmp_path, client, allow_changed_rows=True)
    assert (report.rescored, report.failed, report.unconfirmed) == (2, {"input": 2}, 2)
    failures = {record["_task_index"]: record for record in rows_of(tmp_path / "again_failures.jsonl")}
    assert "expected_count" in failures[0]["message"]
    assert "reward" in failures[1]["message"]


async def test_failures_of_an_earlier_time_do_not_stay(tmp_path: Path) -> None:
    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
        write_lines(tmp_path / "again_failures.jsonl", [{"cause": "verifier"}])
        with pytest.raises(ConfigError, match=r"again_failures.jsonl exists"):
            await reverified(tmp_path, client)
        await reverified(tmp_path, client, overwrite=True)
    assert "again_failures.jsonl" not in files_in(tmp_path)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("no number", "The reward is nan"),
        ("no reward", "verify returned {"),
        ("a list", "verify returned ["),
        ("an error", "no idea"),
        ("a response with NaN", "The reward is nan"),
    ],
)
async def test_a_verifier_that_fails_gives_no_reward(tmp_path: Path, way: str, message: str) -> None:
    row = example_row(way=way)
    write_lines(tmp_path / "rows.jsonl", [row])
    write_lines(tmp_path / "rollouts.jsonl", [{**row, "response": says("Hi"), "reward": 0.0}])
    async with running_servers(
        [server_spec("counter", "resources_servers", "unsure", folder=UNSURE, domain="other")]
    ) as client:
        report = await reverified(tmp_path, client)
    assert (report.rescored, report.failed) == (0, {"verifier": 1})
    assert rows_of(tmp_path / "again.jsonl") == []
    assert message in rows_of(tmp_path / "again_failures.jsonl")[0]["message"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_rollout_whose_time_was_up_while_it_was_verified_keeps_its_response(transport: Transport) -> None:
    unsure = server_spec("unsure", "resources_servers", "unsure", folder=UNSURE, domain="other")
    row = Row(0, 0, "0" * 16, "agent", orjson.dumps(example_row("hi", way="never")), timeout_s=3.0)
    async with running_servers(scripted_servers(unsure, [{"say": "Done."}]), transport=transport) as client:
        outcome = await attempt(client, row)
    assert outcome.error is not None
    assert outcome.error.cause == "timeout"
    response = orjson.loads(encode(outcome.error.response))
    assert response["output"][0]["content"][0]["text"] == "Done."


async def test_sessions_do_not_outlive_their_rollout(tmp_path: Path) -> None:
    async with Stack(StackSpec(servers())) as stack:
        await collect(tmp_path, stack.client)
        await reverified(tmp_path, stack.client)
        assert len(stack.apps["counter"].core.sessions) == 0


def fragile_servers() -> list[ServerSpec]:
    """An environment that fails while there is a file, and a model that answers each row once."""
    script = [{"user": "mute", "status": 400}, {"user": "once", "times": 1, "say": "Done."}]
    return scripted_servers(
        server_spec("fragile", "resources_servers", "fragile", folder=UNSURE.parent / "fragile", domain="other"),
        script,
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_rollouts_that_failed_after_the_model_had_answered_are_completed_without_it(
    tmp_path: Path, transport: Transport
) -> None:
    broken = tmp_path / "broken"
    rows = [example_row(prompt, broken_fpath=str(broken), _group=7) for prompt in ("once", "mute")]
    write_lines(tmp_path / "rows.jsonl", rows)
    config = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        max_attempts=2,
    )
    options = {
        "rollouts_jsonl_fpath": str(tmp_path / "out_failures.jsonl"),
        "input_jsonl_fpath": str(tmp_path / "rows.jsonl"),
        "output_jsonl_fpath": str(tmp_path / "completed.jsonl"),
    }
    async with running_servers(fragile_servers(), transport=transport) as client:
        broken.touch()
        metrics = await RolloutCollectionHelper().run_from_config(config, client=client)
        assert metrics.scored == 0
        failures = rows_of(tmp_path / "out_failures.jsonl")
        first = next(failure for failure in failures if failure["_task_index"] == 0)
        assert (first["cause"], first["attempt"], first["is_final"]) == ("verifier", 1, False)
        assert first["response"]["output"][0]["content"][0]["text"] == "Done."
        assert not any("response" in failure for failure in failures if failure["_task_index"] == 1)
        broken.unlink()
        report = await reverify_rollouts(ReverifyConfig(**options), client, lambda _row: "fragile")
        assert (report.completed, report.unusable, report.unconfirmed) == (1, 1, 0)
        (completed,) = rows_of(tmp_path / "completed.jsonl")
        assert (completed["reward"], completed["_old_reward"], completed["_task_index"]) == (1.0, None, 0)
        assert [completed[name] for name in completed["_row_fields"]] == [str(broken), 7]
        assert (completed["_attempts"], completed["_retries"], completed["_seconds"]) == (1, 0, first["seconds"])
        with (tmp_path / "out.jsonl").open("ab") as output:
            output.write((tmp_path / "completed.jsonl").read_bytes())
        again = await RolloutCollectionHelper().run_from_config(config, client=client)
        assert (again.scored, again.failed) == (1, {"model": 1})
        config_again = ReverifyConfig(**options, overwrite=True)
        report = await reverify_rollouts(config_again, client, lambda _row: "fragile")
        assert (report.completed, report.unusable) == (0, 1)


async def test_an_environment_that_is_not_there_ends_the_job(tmp_path: Path) -> None:
    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
        with pytest.raises(ConfigError, match="Did you mean 'counter'"):
            await reverify_rollouts(config_in(tmp_path), client, lambda _row: "conter")
    assert files_in(tmp_path) == ["rollouts.jsonl", "rollouts_manifest.json", "rollouts_metrics.json", "rows.jsonl"]


SETTINGS = OmegaConf.create(
    {
        "counter": {"resources_servers": {"example_stateful_counter": {"entrypoint": "app.py", "domain": "agent"}}},
        "agent": {"responses_api_agents": {"simple_agent": {"resources_server": {"name": "counter"}}}},
        "loner": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}},
    }
)


@pytest.mark.parametrize(
    ("options", "row", "expected"),
    [
        ({"resources_server_name": "other"}, {}, "other"),
        ({"agent_name": "agent"}, {}, "counter"),
        ({}, {"agent_ref": {"type": "responses_api_agents", "name": "agent"}}, "counter"),
        ({}, {}, "counter"),
    ],
)
def test_the_environment_is_the_one_that_is_meant(options: Any, row: dict[str, Any], expected: str) -> None:
    config = config_in(Path(), **options)
    assert environment_finder(config, SETTINGS)(row) == expected


@pytest.mark.parametrize(
    ("agent", "message"), [("loner", "names no resources_server"), ("agnet", "Did you mean 'agent'")]
)
def test_an_agent_that_has_none_is_named(agent: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        environment_finder(config_in(Path(), agent_name=agent), SETTINGS)({})


CONFIG_PATHS = (
    "resources_servers/example_stateful_counter/configs/stateful_counter.yaml,"
    "responses_api_models/scripted_model/configs/scripted_model.yaml"
)


async def test_as_a_user_types_it_with_and_without_running_servers(tmp_path: Path) -> None:
    async with running_servers(servers()) as client:
        await collect(tmp_path, client)
    head = f"+head_server.port={free_port()}"
    files = (
        "+rollouts_jsonl_fpath=rollouts.jsonl",
        "+input_jsonl_fpath=rows.jsonl",
        "+output_jsonl_fpath=again.jsonl",
    )
    arguments = (*files, "+overwrite=true", "+agent_name=stateful_counter_simple_agent", head)
    alone = ng("ng_reverify", *arguments, f"+config_paths=[{CONFIG_PATHS}]", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert "4 unchanged, 0 up, 0 down" in alone.stdout
    edit(tmp_path / "rollouts.jsonl", lambda record: {**record, "reward": 1.0})
    with started("ng_run", f"+config_paths=[{CONFIG_PATHS}]", head, cwd=tmp_path) as servers_up:
        servers_up.wait_for("servers ready!")
        moved = ng("ng_reverify", *arguments, cwd=tmp_path)
        tolerated = ng("ng_reverify", *arguments, "+max_moved=2", cwd=tmp_path)
    assert (moved.returncode, tolerated.returncode) == (1, 0), moved.stderr + tolerated.stderr
    assert "0 up, 2 down" in moved.stdout
    assert "mean reward 1.0000 before, 0.5000 now" in moved.stdout
