"""Every row comes to exactly one outcome, and one bad row harms no other."""

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from nemo_gym.client.call_log import Send
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.rollouts.attempts import attempt, with_indices
from nemo_gym.rollouts.collector import AdaptiveLimiter, AimdWindow, RolloutCollectionHelper, collect
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.dataset import dataset_path, fingerprint_dataset, read_rows
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.store import CompletedIndex, JsonlFile, failures_path
from nemo_gym.rollouts.types import Outcome, Row, hash_row
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import example_row, rows_of, running_servers, server_spec
from tests.stacks import counter, intercept, scripted_servers


def servers(**agent: Any) -> list[ServerSpec]:
    script = [
        {"user": "fail", "status": 400},
        {"user": "never", "latency_s": 60, "say": "late"},
        {"user": r"add (\d+)", "turn": 0, "call": [{"name": "increment_counter", "arguments": '{"count": \\1}'}]},
        {"say": "Done."},
    ]
    return scripted_servers(counter(), script, **agent)


TOOL = {"type": "function", "name": "increment_counter", "parameters": {}}


def counter_row(prompt: str, **fields: Any) -> dict[str, Any]:
    row = example_row(prompt, **{"initial_count": 0, "expected_count": 2, **fields})
    row["responses_create_params"]["tools"] = [TOOL]
    return row


def config_for(tmp_path: Path, lines: list[Any], **options: Any) -> RolloutCollectionConfig:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (tmp_path / "rows.jsonl").write_text("\n".join(texts) + "\n")
    return RolloutCollectionConfig.model_validate(
        {
            "agent_name": "agent",
            "input_jsonl_fpath": str(tmp_path / "rows.jsonl"),
            "output_jsonl_fpath": str(tmp_path / "deep/er/out.jsonl"),
            "max_attempts": 1,
            **options,
        }
    )


def num_rollouts(config: RolloutCollectionConfig) -> int:
    return fingerprint_dataset(dataset_path(config), with_index=False).num_rollouts(config)


async def collected(
    config: RolloutCollectionConfig, **agent: Any
) -> tuple[RunningMetrics, list[dict[str, Any]], list[dict[str, Any]]]:
    async with running_servers(servers(**agent)) as client:
        metrics = await RolloutCollectionHelper().run_from_config(config, client=client)
    output = Path(config.output_jsonl_fpath)
    files = [output, failures_path(output)]
    scored, failed = (rows_of(file) if file.exists() else [] for file in files)
    return metrics, scored, failed


async def test_bad_rows_are_written_down_with_their_cause_and_the_others_score(tmp_path: Path) -> None:
    lines = [
        counter_row("add 2"),
        "{broken",
        '"a text"',
        counter_row("please fail"),
        "",
        {"no": "params"},
        counter_row("add 5", expected_count=4),
        example_row("a row without a count"),
        counter_row("add 2"),
    ]
    metrics, scored, failed = await collected(config_for(tmp_path, lines))
    assert sorted((record["_task_index"], record["reward"]) for record in scored) == [(0, 1.0), (5, 0.0), (7, 1.0)]
    causes = {record["_task_index"]: record["cause"] for record in failed}
    assert causes == {1: "input", 2: "input", 3: "model", 4: "input", 6: "input"}
    assert metrics.failed == {"input": 4, "model": 1}
    assert metrics.means() == {"reward": pytest.approx(2 / 3)}
    by_index = {record["_task_index"]: record for record in failed}
    assert by_index[3]["row"] == lines[3]
    assert "answers 400" in by_index[3]["message"]
    assert by_index[1]["row"] == "{broken"


async def test_a_rollout_that_takes_too_long_is_a_timeout(tmp_path: Path) -> None:
    metrics, _, _ = await collected(config_for(tmp_path, [counter_row("this never ends")]), rollout_timeout_s=0.2)
    assert (metrics.scored, metrics.failed) == (0, {"timeout": 1})


@pytest.mark.parametrize("text", ["[" * depth + "]" * depth for depth in (200, 300, 900, 2000)] + [str(10**30)])
async def test_a_row_that_is_hard_to_write_down_harms_no_other(tmp_path: Path, text: str) -> None:
    nasty = json.dumps(counter_row("please fail", nasty="?")).replace('"?"', text)
    metrics, scored, failed = await collected(config_for(tmp_path, [nasty, counter_row("add 2")]))
    assert ([record["_task_index"] for record in scored], metrics.failed.total()) == ([1], 1)
    assert isinstance(failed[0]["row"], str) or text in (tmp_path / "deep/er/out_failures.jsonl").read_text()


async def test_repeats_come_one_after_the_other_and_are_numbered(tmp_path: Path) -> None:
    config = config_for(
        tmp_path, [counter_row("add 1"), counter_row("add 2")], num_repeats=3, num_samples_in_parallel=1
    )
    assert num_rollouts(config) == 6
    _, scored, _ = await collected(config)
    marks = [(record["_task_index"], record["_repeat_index"]) for record in scored]
    assert marks == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_each_agent_may_have_a_number_of_repeats(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [counter_row("add 1", agent_ref={"name": name}) for name in ("one", "two", "three")]
    repeats = {"one": 2, "_default": 1, "nobody": 7}
    config = config_for(tmp_path, [*rows, "[1]"], agent_name=None, num_repeats=repeats)
    assert num_rollouts(config) == 5
    assert "num_repeats.nobody has no effect" in caplog.text
    assert [row.agent for row in read_rows(config) if isinstance(row, Row)] == ["one", "one", "two", "three"]
    with pytest.raises(ConfigError, match="no number for 'two'"):
        num_rollouts(config_for(tmp_path, rows, agent_name=None, num_repeats={"one": 2}))


async def test_the_same_command_again_with_repeats_by_agent(tmp_path: Path) -> None:
    lines = [counter_row("add 2", agent_ref={"name": "agent"}), counter_row("add 1", agent_ref={"name": "agent"})]
    options: dict[str, Any] = {"agent_name": None, "num_repeats": {"agent": 2, "_default": 3}}
    _, first, _ = await collected(config_for(tmp_path, lines, **options))
    metrics, second, _ = await collected(config_for(tmp_path, lines, **options))
    assert len(first) == 4
    assert second == first
    assert metrics.means() == {"reward": 0.5}


async def test_rows_are_written_as_they_are_sent(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_repeats": 2, "num_repeats_add_seed": True, "materialize_inputs": True}
    config = config_for(tmp_path, [counter_row("add 2"), "[1]"], **options)
    await collected(config)
    path = Path(config.output_jsonl_fpath).with_name("out_materialized_inputs.jsonl")
    rows = rows_of(path)
    assert [(row["_ng_task_index"], row["_ng_rollout_index"], row["agent_ref"]) for row in rows] == [
        (0, 0, {"name": "agent"}),
        (0, 1, {"name": "agent"}),
    ]
    seeds = [row["responses_create_params"]["metadata"]["extra_body"] for row in rows]
    assert seeds == ['{"seed":0}', '{"seed":1}']


@pytest.mark.parametrize(("limit", "expected"), [(None, 3), (0, 3), (2, 2), (9, 3)])
def test_a_limit_takes_the_first_rows(tmp_path: Path, limit: int | None, expected: int) -> None:
    config = config_for(tmp_path, [counter_row(f"add {number}") for number in range(3)], limit=limit)
    assert len(list(read_rows(config))) == num_rollouts(config) == expected


def test_params_given_on_the_command_line_replace_those_of_every_row(tmp_path: Path) -> None:
    config = config_for(tmp_path, [counter_row("add 2")], responses_create_params={"temperature": 0.5})
    (row,) = read_rows(config)
    assert isinstance(row, Row)
    params = orjson.loads(row.body)["responses_create_params"]
    assert (params["temperature"], params["tools"]) == (0.5, [TOOL])


def test_a_row_may_name_its_agent(tmp_path: Path) -> None:
    named = counter_row("add 2", agent_ref={"type": "responses_api_agents", "name": "other"})
    rows = list(read_rows(config_for(tmp_path, [named, counter_row("add 2")], agent_name=None)))
    assert isinstance(rows[0], Row)
    assert rows[0].agent == "other"
    assert isinstance(rows[1], Outcome)
    assert "no `agent_ref`" in str(rows[1].error)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"responses_create_params": "text"}', "`responses_create_params` is a text; expected a JSON object"),
        ('{"responses_create_params": {"metadata": "text"}}', "`metadata` is a text"),
        ('{"responses_create_params": [', "cannot be run. It is not JSON: "),
        ("[1]", "The row is a list"),
        ("null", "The row is null; expected a JSON object"),
    ],
)
def test_a_row_whose_overrides_fail_is_an_outcome(tmp_path: Path, line: str, reason: str) -> None:
    options: dict[str, Any] = {"responses_create_params": {"temperature": 0.5}, "seed_per_repeat": 1}
    rows = list(read_rows(config_for(tmp_path, [line, counter_row("add 2")], **options)))
    assert isinstance(rows[0], Outcome)
    assert rows[0].error is not None
    assert (rows[0].error.cause, isinstance(rows[1], Row)) == ("input", True)
    assert reason in str(rows[0].error)
    assert orjson.loads(rows[0].line())["_task_index"] == 0


@pytest.mark.parametrize("reference", [None, "agent", {}, {"name": None}, {"name": ""}, {"name": 5}])
def test_a_row_must_name_its_agent_by_a_word(tmp_path: Path, reference: Any) -> None:
    (row,) = read_rows(config_for(tmp_path, [counter_row("add 2", agent_ref=reference)], agent_name=None))
    assert isinstance(row, Outcome)
    assert row.error is not None
    assert row.error.cause == "input"


def test_numbers_of_any_length_and_lists_of_any_depth_survive_a_change_of_the_row(tmp_path: Path) -> None:
    deep = '{"responses_create_params": {"input": "x"}, "deep": ' + "[" * 500 + "]" * 500 + "}"
    lines = [counter_row("add 2", big=12**34), deep]
    first, second = read_rows(config_for(tmp_path, lines, responses_create_params={"temperature": 0.5}))
    assert isinstance(first, Row)
    assert json.loads(first.body)["big"] == 12**34
    assert isinstance(second, Row)


def test_no_word_on_repeats_means_one(tmp_path: Path) -> None:
    assert num_rollouts(config_for(tmp_path, [counter_row("add 2")], num_repeats=None)) == 1


def test_a_folder_is_no_dataset(tmp_path: Path) -> None:
    config = config_for(tmp_path, [], input_jsonl_fpath=str(tmp_path))
    with pytest.raises(ConfigError, match="is not a file"):
        num_rollouts(config)


@pytest.mark.parametrize("option", [{"num_repeats": 0}, {"num_repeats": {}}, {"limit": -1}])
def test_options_out_of_range_are_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config_for(tmp_path, [], **option)


async def test_never_more_in_flight_than_allowed_and_rows_are_read_as_needed() -> None:
    in_flight = most = read = 0
    kept: list[Outcome] = []
    full = asyncio.Event()

    def rows() -> Any:
        nonlocal read
        for index in range(100):
            read += 1
            assert read - len(kept) <= 9
            yield Row(index, 0, "", "agent", b"{}")

    async def run(row: Row) -> Outcome:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        if in_flight == 7:
            full.set()
        await full.wait()
        in_flight -= 1
        return Outcome(row, b'{"reward":1}')

    async def keep(outcome: Outcome) -> None:
        kept.append(outcome)

    await collect(rows(), run, keep, AdaptiveLimiter(AimdWindow(7, 7)))
    assert (most, len(kept)) == (7, 100)


async def test_no_more_rollouts_start_while_outcomes_wait_for_the_disk() -> None:
    started: list[int] = []
    has_room = asyncio.Event()

    async def run(row: Row) -> Outcome:
        started.append(row.task_index)
        return Outcome(row, b'{"reward":1}')

    async def keep(_outcome: Outcome) -> None:
        await has_room.wait()

    async def make_room() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        assert started == [0, 1, 2]
        has_room.set()

    rows = (Row(number, 0, "", "agent", b"{}") for number in range(20))
    await asyncio.gather(collect(rows, run, keep, AdaptiveLimiter(AimdWindow(3, 3))), make_room())
    assert len(started) == 20


async def test_the_number_in_flight_adapts_up_to_its_bound(tmp_path: Path) -> None:
    in_flight = most = 0
    full = asyncio.Event()

    async def count(_body: Any, send: Send) -> ServerReply:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        if in_flight == 3:
            full.set()
        await full.wait()
        reply = await send()
        in_flight -= 1
        return reply

    config = config_for(tmp_path, [counter_row("add 2")] * 40, max_samples_in_parallel=3)
    async with running_servers(servers()) as client:
        intercept(client, "agent", count)
        metrics = await RolloutCollectionHelper().run_from_config(config, client=client)
    assert (most, metrics.scored) == (3, 40)


async def test_an_endpoint_at_which_all_fails_is_not_asked_by_more_and_more() -> None:
    gate = AdaptiveLimiter(AimdWindow(1, 1000))

    async def run(row: Row) -> Outcome:
        return Outcome.failed(row, RolloutError("timeout", "no answer"))

    async def keep(_outcome: Outcome) -> None: ...

    before = gate.window.size
    await collect((Row(number, 0, "", "agent", b"{}") for number in range(200)), run, keep, gate)
    assert gate.window.size == before


async def test_the_same_command_again_does_only_what_is_missing(tmp_path: Path) -> None:
    lines = [counter_row("add 2"), counter_row("please fail"), counter_row("add 1")]
    _, first, _ = await collected(config_for(tmp_path, lines))
    metrics, second, failed = await collected(config_for(tmp_path, lines, num_repeats=2))
    assert second[: len(first)] == first
    marks = sorted((record["_task_index"], record["_repeat_index"]) for record in second)
    assert marks == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert metrics.means() == {"reward": 0.5}
    assert [record["_task_index"] for record in failed if record["is_final"]] == [1, 1, 1]


async def test_the_rest_of_a_group_is_written_when_it_is_complete(tmp_path: Path) -> None:
    lines = [counter_row(f"add {number}") for number in range(20)]
    await collected(config_for(tmp_path, lines))
    config = config_for(tmp_path, lines, num_repeats=3, group_output=True, num_samples_in_parallel=4)
    written: list[Outcome] = []
    something_is_written = asyncio.Event()

    def report(outcome: Outcome) -> None:
        written.append(outcome)
        something_is_written.set()

    async def hold_back_the_last_row(body: Any, send: Send) -> ServerReply:
        if b"add 19" in body:
            await something_is_written.wait()
        return await send()

    async with running_servers(servers()) as client:
        intercept(client, "agent", hold_back_the_last_row)
        await RolloutCollectionHelper().run_from_config(config, client=client, report=report)
    assert len(written) == 40
    assert written[0].row.task_index != 19


async def test_a_group_that_is_not_complete_when_the_job_ends_is_not_lost(tmp_path: Path) -> None:
    config = config_for(tmp_path, [counter_row("add 2")], num_repeats=3, group_output=True, num_samples_in_parallel=1)
    runs, two_are_done = 0, asyncio.Event()

    async def hold_back_the_third(_body: Any, send: Send) -> ServerReply:
        nonlocal runs
        runs += 1
        if runs == 3:
            two_are_done.set()
            await asyncio.Event().wait()
        return await send()

    async with running_servers(servers()) as client:
        intercept(client, "agent", hold_back_the_third)
        job = asyncio.create_task(RolloutCollectionHelper().run_from_config(config, client=client))
        await two_are_done.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
    assert len((tmp_path / "deep/er/out.jsonl").read_bytes().splitlines()) == 2
    assert not (tmp_path / "deep/er/out_failures.jsonl").exists()  # the third has not failed, it is yet to be made


async def test_a_run_ends_when_its_time_is_up_and_says_how_to_go_on(tmp_path: Path) -> None:
    config = config_for(tmp_path, [counter_row("this never ends")], run_timeout_s=0.2)
    async with running_servers(servers()) as client:
        with pytest.raises(RolloutError, match=r"within 0\.2 s"):
            await RolloutCollectionHelper().run_from_config(config, client=client)
    assert not (tmp_path / "deep/er/out_failures.jsonl").exists()  # it has not failed, it is yet to be made


async def test_starting_anew_loses_nothing_however_often_it_is_done(tmp_path: Path) -> None:
    config = config_for(tmp_path, [counter_row("add 2")], resume="restart")
    for _ in range(4):
        await collected(config)
    kept = [path.read_bytes().count(b"\n") for path in (tmp_path / "deep/er").glob("out*.jsonl")]
    assert kept == [1, 1, 1, 1]


async def test_nobody_starts_anew_while_another_writes(tmp_path: Path) -> None:
    config = config_for(tmp_path, [counter_row("add 2")])
    await collected(config)
    with contextlib.closing(JsonlFile(Path(config.output_jsonl_fpath))), pytest.raises(ConfigError, match="Another"):
        await collected(config.model_copy(update={"resume": "restart"}))
    assert len((tmp_path / "deep/er/out.jsonl").read_bytes().splitlines()) == 1


async def test_repeats_that_are_no_longer_asked_for_still_count_as_those_of_one_row(tmp_path: Path) -> None:
    lines = [counter_row("add 2"), counter_row("add 1")]
    before, _, _ = await collected(config_for(tmp_path, lines, num_repeats=3))
    after, _, _ = await collected(config_for(tmp_path, lines, num_repeats=1))
    assert {**after.summary(), "stages": {}} == {**before.summary(), "stages": {}}
    assert after.summary()["tasks"] == 2


async def test_rows_are_known_by_content_as_long_as_records_of_another_input_are_there(tmp_path: Path) -> None:
    old, new = [counter_row("add 1", expected_count=n) for n in (1, 2)], counter_row("please fail")
    await collected(config_for(tmp_path, old))
    config = config_for(tmp_path, [new, *old], resume="continue")
    _, _, failed = await collected(config)
    assert [record["_task_index"] for record in failed] == [2]  # 0 and 1 are those of the old rows
    _, scored, failed = await collected(config)
    assert [record["_task_index"] for record in failed] == [2, 2]
    assert len(scored) == 2


async def test_rows_that_moved_keep_their_index_so_that_repeats_stay_together(tmp_path: Path) -> None:
    rows = [counter_row("add 1", expected_count=n) for n in (1, 2, 3)]
    await collected(config_for(tmp_path, rows, num_repeats=2))
    config = config_for(tmp_path, [counter_row("add 2"), *reversed(rows)], num_repeats=4, resume="continue")
    metrics, scored, _ = await collected(config)
    groups: dict[int, set[str]] = {}
    for record in scored:
        groups.setdefault(record["_task_index"], set()).add(record["_row_hash"])
    assert (len(scored), sorted(groups)) == (16, [0, 1, 2, 3])
    assert all(len(hashes) == 1 for hashes in groups.values())
    assert len({(record["_task_index"], record["_repeat_index"]) for record in scored}) == 16
    assert metrics.summary()["tasks"] == 4


async def test_an_agent_that_is_not_there_ends_the_job_with_its_name(tmp_path: Path) -> None:
    config = config_for(tmp_path, [counter_row("add 2")], agent_name="agnet")
    async with running_servers(servers()) as client:
        with pytest.raises(ConfigError, match="Did you mean 'agent'"):
            await RolloutCollectionHelper().run_from_config(config, client=client)
    assert not failures_path(tmp_path / "deep/er/out.jsonl").exists()


async def test_a_row_for_an_agent_that_is_not_there_harms_no_other(tmp_path: Path) -> None:
    rows = [counter_row("add 2", agent_ref={"name": name}) for name in ("agent", "agnet", "agent")]
    metrics, scored, failed = await collected(config_for(tmp_path, rows, agent_name=None))
    assert (len(scored), metrics.failed) == (2, {"input": 1})
    assert all(fact in failed[0]["message"] for fact in ("'agnet'", "agent, counter, policy_model"))


def _damage_line(path: Path, index: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[index] = lines[index].replace(b'"reward":', b'"reward"\0', 1)
    path.write_bytes(b"".join(lines))


async def test_a_damaged_line_in_the_output_is_an_error_with_its_number(tmp_path: Path) -> None:
    config = config_for(tmp_path, [counter_row("add 2"), counter_row("add 1")])
    await collected(config)
    _damage_line(Path(config.output_jsonl_fpath), 1)
    with pytest.raises(ConfigError, match="line 2"):
        await collected(config)


@pytest.mark.parametrize(
    "text", [b"my notes", b"a line\nmy notes", b'{"reward":1}', b'{"reward":1}\n{"reward":0', b"\n"]
)
@pytest.mark.parametrize("resume", ["ask", "continue"])
async def test_a_file_that_we_did_not_write_stays_as_it_is(tmp_path: Path, text: bytes, resume: str) -> None:
    config = config_for(
        tmp_path, [counter_row("add 2")], output_jsonl_fpath=str(tmp_path / "notes.txt"), resume=resume
    )
    (tmp_path / "notes.txt").write_bytes(text)
    async with running_servers(servers()) as client:
        with pytest.raises(ConfigError):
            await RolloutCollectionHelper().run_from_config(config, client=client)
    assert (tmp_path / "notes.txt").read_bytes() == text


@pytest.mark.parametrize("output", ["rows.jsonl", "link.jsonl", "rows2.jsonl"])
async def test_the_dataset_is_never_written_into(tmp_path: Path, output: str) -> None:
    config = config_for(tmp_path, [counter_row("add 2")], output_jsonl_fpath=str(tmp_path / output), resume="restart")
    (tmp_path / "link.jsonl").symlink_to("rows.jsonl")
    (tmp_path / "rows2_failures.jsonl").hardlink_to(tmp_path / "rows.jsonl")
    async with running_servers(servers()) as client:
        with pytest.raises(ConfigError, match="is the dataset"):
            await RolloutCollectionHelper().run_from_config(config, client=client)
    assert sorted(os.listdir(tmp_path)) == ["link.jsonl", "rows.jsonl", "rows2_failures.jsonl"]


async def test_a_dataset_that_can_be_read_only_once_is_refused(tmp_path: Path) -> None:
    config = config_for(tmp_path, [], input_jsonl_fpath=str(tmp_path / "pipe"))
    os.mkfifo(tmp_path / "pipe")
    async with running_servers(servers()) as client:
        with pytest.raises(ConfigError, match="is not a file"):
            await RolloutCollectionHelper().run_from_config(config, client=client)


@pytest.mark.parametrize("reference", [{"agent_ref": {"name": "agnet"}}, {"agent_ref": "agent"}, {}])
async def test_a_row_without_an_agent_raises_where_a_program_awaits_it(reference: dict[str, Any]) -> None:
    async with running_servers(servers()) as client:
        for future in RolloutCollectionHelper().run_examples([counter_row("add 2", **reference)], client=client):
            with pytest.raises(RolloutError) as caught:
                await future
    assert caught.value.cause == "input"


def test_a_program_that_allows_no_rollout_gets_an_error_instead_of_waiting() -> None:
    with pytest.raises(ConfigError, match="expected at least 1"):
        RolloutCollectionHelper().run_examples([], client=ServerClient(), num_samples_in_parallel=0)


def test_only_servers_are_named_as_such() -> None:
    block = {"responses_api_agents": {"simple_agent": {"host": "127.0.0.1", "port": 1}}}
    client = ServerClient(
        global_config_dict={"limit": 3, "config_paths": ["a.yaml"], "head_server": {"port": 2}, "one": block}
    )
    with pytest.raises(ConfigError, match=r"run: one\."):
        client.url_of("ones")


async def test_a_record_is_passed_through_as_the_agent_sent_it() -> None:
    async with running_servers(servers()) as client:
        row = Row(7, 1, "abc", "agent", orjson.dumps(counter_row("add 2")))
        outcome = await attempt(client, row)
        assert outcome.error is None
        answer = await client.call("agent", "/run", counter_row("add 2"), answer=ServerReply)
        own = ["initial_count", "expected_count", "_row_fields"]
        marks = ["_ng_task_index", "_ng_rollout_index", "_task_index", "_repeat_index", "_row_hash"]
        marks += ["_attempts", "_retries", "_seconds"]
        assert list(orjson.loads(outcome.line())) == [*orjson.loads(answer.content()), *own, *marks]


BLUNT = [
    server_spec(
        "agent",
        "responses_api_agents",
        "blunt",
        folder=Path(__file__).parent.parent / "servers/responses_api_agents/blunt",
    )
]


async def test_whatever_an_agent_answers_is_a_line_of_its_own_under_its_own_row(tmp_path: Path) -> None:
    marked = {
        "reward": 1,
        "big": 10**30,
        "_task_index": 99,
        "_repeat_index": 3,
        "_row_hash": "0" * 16,
        "_seconds": "long",
    }
    answers = ['{\n  "reward": 1,\n  "big": 1\n}\n', ' {"reward": 1} ', json.dumps(marked), '{"old": %s, "reward": 1}']
    answers[3] %= json.dumps(marked, separators=(",", ":"))
    config = config_for(tmp_path, [{"answer": answer} for answer in answers])
    for _ in range(2):
        async with running_servers(BLUNT) as client:
            await RolloutCollectionHelper().run_from_config(config, client=client)
        lines = (tmp_path / "deep/er/out.jsonl").read_bytes().splitlines()
        assert sorted(orjson.loads(line)["_task_index"] for line in lines) == [0, 1, 2, 3]
    assert b'"big":1000000000000000000000000000000,' in lines[2]
    assert lines[2].count(b'"_task_index"') == lines[2].count(b'"_seconds"') == 1


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ("<html>", "internal"),
        ("[1]", "internal"),
        ("", "internal"),
        ("{}", "verifier"),
        ('{"reward": null}', "verifier"),
    ],
)
async def test_an_answer_without_a_finite_reward_is_no_result_for_programs_too(answer: str, cause: str) -> None:
    row = {"answer": answer, "agent_ref": {"name": "agent"}}
    async with running_servers(BLUNT) as client:
        outcome = await attempt(client, Row(0, 0, "", "agent", orjson.dumps(row)))
        assert outcome.error is not None
        assert (outcome.error.cause, outcome.error.server) == (cause, "agent")
        for future in RolloutCollectionHelper().run_examples([row], client=client):
            with pytest.raises(RolloutError) as caught:
                await future
            assert (caught.value.cause, str(caught.value)) == (cause, str(outcome.error))


async def test_a_failed_rollout_raises_its_cause() -> None:
    async with running_servers(servers()) as client:
        with pytest.raises(RolloutError) as caught:
            await client.call("agent", "/run", counter_row("please fail"), answer=ServerReply)
    assert (caught.value.cause, caught.value.server) == ("model", "policy_model")


def test_a_row_is_sent_with_its_indices_and_keeps_those_that_it_brings() -> None:
    def sent(line: bytes, number: int = 1) -> bytes:
        return with_indices(Row(3, 1, "abc", "agent", line, attempt=number))

    indices = {"_ng_task_index": 3, "_ng_rollout_index": 1}
    assert json.loads(sent(b'{"a": 1 }')) == indices | {"a": 1}
    assert json.loads(sent(b'{"_ng_task_index": 9}', 2)) == indices | {"_ng_task_index": 9, "_ng_attempt_index": 1}
    assert [sent(line) for line in (b"{}", b"{ }", b"[1]", b"")] == [b"{}", b"{ }", b"[1]", b""]


@pytest.mark.parametrize("number", ["1e400", "NaN", "1" + 400 * "0"])
async def test_a_row_with_a_number_that_not_every_reader_understands_is_refused(tmp_path: Path, number: str) -> None:
    odd = json.dumps(counter_row("add 2", level=0)).replace('"level": 0', f'"level": {number}')
    config = config_for(tmp_path, [odd, counter_row("add 2")])
    _, scored, failed = await collected(config)
    assert [record["_task_index"] for record in scored] == [1]
    assert (failed[0]["cause"], "finite numbers" in failed[0]["message"]) == ("input", True)
    await collected(config)  # the output can be read


async def test_a_dataset_that_grows_while_its_rows_are_run_is_run_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_for(tmp_path, [counter_row("add 2")] * 4, num_samples_in_parallel=1)
    dataset = Path(config.input_jsonl_fpath)

    def grow(_outcome: Outcome) -> None:
        with dataset.open("a") as file:
            file.write(json.dumps(counter_row("add 1")) + "\n")

    async with running_servers(servers()) as client:
        await RolloutCollectionHelper().run_from_config(config, client=client, report=grow)
        assert len(rows_of(Path(config.output_jsonl_fpath))) == 4
        assert "rows.jsonl was changed" in caplog.text
        more = config.model_copy(update={"resume": "continue"})
        await RolloutCollectionHelper().run_from_config(more, client=client)
    scored = rows_of(Path(config.output_jsonl_fpath))
    assert sorted(record["_task_index"] for record in scored) == [*range(8)]
    assert [record["reward"] for record in scored] == [1.0] * 4 + [0.0] * 4


def bytes_read() -> int:
    """How many bytes this process has read from files so far."""
    (line,) = (line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar:"))
    return int(line.split()[1])


def drop_last_line(path: Path) -> int:
    """Returns the size of the file."""
    return path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


async def test_a_resumed_run_reads_its_output_and_its_dataset_once(tmp_path: Path) -> None:
    config = config_for(tmp_path, [counter_row(f"add 2 {'x' * 200_000} {number}") for number in range(20)])
    await collected(config)
    output = Path(config.output_jsonl_fpath)
    size = (tmp_path / "rows.jsonl").stat().st_size + drop_last_line(output)
    async with running_servers(servers()) as client:
        before = bytes_read()
        metrics = await RolloutCollectionHelper().run_from_config(config, client=client)
        read = bytes_read() - before
    assert (metrics.scored, len(rows_of(output))) == (20, 20)
    assert size <= read < 1.3 * size


def test_a_row_that_was_changed_since_it_was_indexed_is_left_out(tmp_path: Path) -> None:
    config = config_for(tmp_path, [counter_row("add 2"), "", counter_row("add 3"), counter_row("add 4")])
    dataset = fingerprint_dataset(dataset_path(config), with_index=True)
    done = CompletedIndex(num_repeats=1, row_hashes=dataset.row_hashes)
    done.add((0, 0, f"{dataset.row_hashes[0]:016x}"))
    before = [row for row in read_rows(config, done, dataset) if isinstance(row, Row)]
    assert [(row.task_index, row.row_hash) for row in before] == [
        (1, hash_row(before[0].body)),
        (2, before[1].row_hash),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text(path.read_text().replace("add 3", "add 9"))
    now = [row for row in read_rows(config, done, dataset) if isinstance(row, Row)]
    assert now == before[1:]


def test_a_line_that_is_no_row_is_named_by_its_number_with_an_index_too(tmp_path: Path) -> None:
    config = config_for(tmp_path, ["", counter_row("add 2"), "", "", "[1]"])
    dataset = fingerprint_dataset(dataset_path(config), with_index=True)
    for index in (None, dataset):
        (bad,) = (row for row in read_rows(config, None, index) if isinstance(row, Outcome))
        assert "rows.jsonl:5" in str(bad.error)
