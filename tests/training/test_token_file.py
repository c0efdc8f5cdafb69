"""Tokens in Arrow and Parquet files: exact, whole after a kill, and put back into the records they were taken from."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.analysis.export import ExportConfig, export_rollouts
from nemo_gym.errors import ConfigError, StorageError
from nemo_gym.llm_api.builders import message, response_of, tool_output
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.stored_tokens import encode_stored, read_record
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.store import read_rollouts
from nemo_gym.rollouts.types import Outcome, Row
from nemo_gym.testing import running_servers, servers_of
from nemo_gym.training import ModelCall, Segment, trace_of
from nemo_gym.training.token_check import check_tokens
from nemo_gym.training.token_file import (
    RolloutKey,
    StoredSegment,
    TokenWriter,
    read_tokens,
    segments_of,
    token_restorer,
    write_tokens,
)
from nemo_gym.viewer.display import token_view
from nemo_gym.viewer.files import Files
from tests.polling import PATIENCE_S
from tests.stub_endpoint import stub_endpoint
from tests.training.test_samples import AGENT, COUNTER, TokenEndpoint
from tests.viewer.test_index import indexed

pytest.importorskip("pyarrow")


def record(number: int, *, turns: int = 4, breaks: bool = False, **fields: Any) -> dict[str, Any]:
    """A rollout with exact float32 log-probs. With `breaks`, its context is compacted in the middle."""
    chance, ids, output = random.Random(number), [1], []
    for turn in range(turns):
        ids = [2] if breaks and turn == turns // 2 else ids
        ids = [*ids, *(chance.randrange(50_000) for _ in range(5))]
        sampled = [chance.randrange(50_000) for _ in range(chance.randrange(4))]
        values = [-chance.randrange(100) / 8 for _ in sampled]
        tokens = {"prompt_token_ids": ids, "generation_token_ids": sampled, "generation_log_probs": values}
        output += [{**message("Hi."), **tokens, "policy_version": turn}, tool_output("x")]
        ids = [*ids, *sampled]
    return {"reward": 0.5, "response": response_of(*output), **fields}


def outcome(task: int, line: bytes) -> Outcome:
    return Outcome(Row(agent="agent", body=b"{}", task_index=task, repeat_index=0, row_hash="0" * 16), line)


def scored(number: int, **options: Any) -> Outcome:
    return outcome(number, encode_stored(record(number, **options)))


def with_key(number: int, **options: Any) -> dict[str, Any]:
    key: dict[str, Any] = {"_task_index": number, "_repeat_index": 0, "_row_hash": "0" * 16}
    return record(number, **options, **key)


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
@pytest.mark.parametrize("breaks", [False, True])
def test_segments_are_read_as_they_were_written(tmp_path: Path, suffix: str, breaks: bool) -> None:
    path = tmp_path / f"tokens.{suffix}"
    rows = [row for number in range(150) for row in segments_of(with_key(number, breaks=breaks))]
    assert write_tokens(path, rows) == len(rows)
    read = list(read_tokens(path))
    assert [(row.key, row.policy, row.index, row.reward) for row in read] == [
        (row.key, row.policy, row.index, row.reward) for row in rows
    ]
    assert [row.segment.flatten() for row in read] == [row.segment.flatten() for row in rows]
    assert [[call.item for call in row.segment.calls] for row in read] == [
        [call.item for call in row.segment.calls] for row in rows
    ]


@pytest.mark.parametrize("runs", [[(None, 1), (4, 2)], [(4, 1), (None, 2)], [(4, 1), (None, 1), ("4", 1)], [(4, 3)]])
def test_versions_are_read_as_they_were_written_also_unknown_ones(tmp_path: Path, runs: list[Any]) -> None:
    call = ModelCall([1], [2, 3, 4], [-0.5] * 3, runs[-1][0], 0, runs if len(runs) > 1 else ())
    row = StoredSegment(RolloutKey(0, 0, None), "policy", 0, Segment([call]), 1.0)
    write_tokens(tmp_path / "tokens.arrow", [row])
    (read,) = read_tokens(tmp_path / "tokens.arrow")
    assert [*read.segment.calls[0].version_runs] == (runs if len(runs) > 1 else [])
    assert read.segment.flatten() == row.segment.flatten()


def test_lines_have_text_and_the_file_has_the_tokens(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path / "tokens.arrow", tmp_path / "rollouts.jsonl")
    lines = writer.split([scored(number, breaks=number % 2 == 0) for number in range(10)])
    writer.close()
    assert not any(b"token_ids" in line or b"log_probs" in line or b"policy_version" in line for line in lines)
    restore = token_restorer(tmp_path / "rollouts.jsonl")
    for number, line in enumerate(lines):
        restored = restore(read_record(line))
        assert restored["response"] == record(number, breaks=number % 2 == 0)["response"]


def test_a_file_that_a_kill_cut_anywhere_keeps_its_complete_batches(tmp_path: Path) -> None:
    path, ends = tmp_path / "tokens.arrow", [0]
    for number in range(4):
        writer = TokenWriter(path, tmp_path / "rollouts.jsonl")
        writer.split([scored(number)])
        writer.close()
        ends.append(path.stat().st_size)
    whole = path.read_bytes()
    for cut in sorted({*range(1, len(whole), 97), *ends[1:], *(end - 1 for end in ends[1:])}):
        path.write_bytes(whole[:cut])
        writer = TokenWriter(path, tmp_path / "rollouts.jsonl")
        writer.split([scored(9)])
        writer.close()
        complete = sum(end <= cut for end in ends[1:])
        assert [row.key.task_index for row in read_tokens(path)] == [*range(complete), 9], cut


def test_a_record_gets_its_own_tokens_and_no_others(tmp_path: Path) -> None:
    """Two runs wrote to one file, a rollout was made twice, and one attempt had no tokens."""
    output, path = tmp_path / "rollouts.jsonl", tmp_path / "tokens.arrow"
    lines = []
    for number in (2, 3, 4):
        with contextlib.closing(TokenWriter(path, output)) as writer:
            lines += writer.split([outcome(1, encode_stored(record(number, breaks=number == 3))), scored(7)])
    bare: dict[str, Any] = {"reward": 1.0, "response": response_of(message("Hi."))}
    with contextlib.closing(TokenWriter(path, output)) as writer:
        (without,) = writer.split([outcome(1, encode(bare))])
    restore = token_restorer(output)
    for number, line in zip((2, 3, 4), lines[::2], strict=True):
        assert restore(read_record(line))["response"] == record(number, breaks=number == 3)["response"]
    assert restore(read_record(without))["response"] == bare["response"]


def remove_file(path: Path) -> None:
    path.unlink()


def change_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def write_other_run(path: Path) -> None:
    path.unlink()
    with contextlib.closing(TokenWriter(path, path)) as writer:
        writer.split([scored(2)])


@pytest.mark.parametrize("spoil", [remove_file, change_byte, write_other_run])
def test_a_record_whose_tokens_are_lost_is_no_sample(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    output, path = tmp_path / "rollouts.jsonl", tmp_path / "tokens.arrow"
    with contextlib.closing(TokenWriter(path, output)) as writer:
        output.write_bytes(b"".join(writer.split([scored(1)])))
    assert check_tokens([output.read_bytes()], restored=token_restorer(output)).faults == []
    spoil(path)
    (fault,) = check_tokens([output.read_bytes()], restored=token_restorer(output)).faults
    assert "tokens.arrow" in fault
    with pytest.raises(ConfigError, match=r"tokens\.arrow"):
        export_rollouts(
            ExportConfig(rollouts_jsonl_fpath=str(output), output_jsonl_fpath=str(tmp_path / "made"), format="verl")
        )


@pytest.mark.parametrize(
    "spoilt",
    [
        {"response": None},
        {"response": {"output": [3, None]}},
        {"response": {"output": {}, "participants": 3}},
        {"_tokens": 3},
        {"_tokens": {"file": "tokens.arrow", "offset": -1, "size": 2**60, "digest": "", "rows": [0, 1]}},
        {"responses_create_params": 3},
    ],
    ids=repr,
)
def test_a_record_that_is_damaged_neither_ends_a_job_nor_becomes_a_sample(
    tmp_path: Path, spoilt: dict[str, Any]
) -> None:
    output, made = tmp_path / "rollouts.jsonl", tmp_path / "made.arrow"
    with contextlib.closing(TokenWriter(tmp_path / "tokens.arrow", output)) as writer:
        sound, damaged = map(orjson.loads, writer.split([scored(1), scored(2)]))
    lines = [orjson.dumps(each) + b"\n" for each in (sound, {**damaged, **spoilt}, {**damaged, "_task_index": 3})]
    output.write_bytes(b"".join(lines))
    assert len(check_tokens(lines, restored=token_restorer(output)).faults) == 1
    report = export_rollouts(
        ExportConfig(rollouts_jsonl_fpath=str(output), output_jsonl_fpath=str(made), format="arrow")
    )
    assert (report.used, report.dropped.total()) == (2, 1)


def test_a_file_that_vanishes_while_it_is_written_ends_the_run(tmp_path: Path) -> None:
    with contextlib.closing(TokenWriter(tmp_path / "tokens.arrow", tmp_path / "rollouts.jsonl")) as writer:
        writer.split([scored(1)])
        (tmp_path / "tokens.arrow").unlink()
        with pytest.raises(StorageError, match="moved or deleted"):
            writer.split([scored(2)])


def test_one_process_at_a_time_writes_a_file(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path / "tokens.arrow", tmp_path / "rollouts.jsonl")
    with pytest.raises(ConfigError, match="Another process"):
        TokenWriter(tmp_path / "tokens.arrow", tmp_path / "rollouts.jsonl")
    writer.close()


@pytest.mark.parametrize("content", [b"x" * 10_000, b'{"a": 1}\n'])
def test_a_file_of_another_kind_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.arrow"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not an Arrow stream"):
        TokenWriter(path, tmp_path / "rollouts.jsonl")
    assert path.read_bytes() == content


def test_tokens_that_are_not_valid_stay_in_the_line(tmp_path: Path) -> None:
    bad = record(1)
    bad["response"]["output"][0]["generation_log_probs"] = [1.0] * 9
    writer = TokenWriter(tmp_path / "tokens.arrow", tmp_path / "rollouts.jsonl")
    (line,) = writer.split([outcome(1, encode(bad))])
    writer.close()
    assert b"generation_token_ids" in line


@pytest.mark.parametrize("name", ["verl", "skyrl", "arrow"])
def test_an_export_has_what_samples_carry_and_no_masked_rollout(tmp_path: Path, name: str) -> None:
    records = [with_key(0, reward_components={"right": 0.5}, step_rewards=[0.25] * 4), with_key(1)]
    rollouts, made = tmp_path / "rollouts.jsonl", tmp_path / f"made.{name}"
    rollouts.write_bytes(b"".join(encode_stored(each) + b"\n" for each in [*records, with_key(2, mask_sample=True)]))
    options: dict[str, Any] = {"rollouts_jsonl_fpath": str(rollouts), "output_jsonl_fpath": str(made), "format": name}
    report = export_rollouts(ExportConfig(**options))
    assert (report.used, report.examples, report.dropped) == (2, 2, {"masked by its environment (mask_sample)": 1})
    if name == "arrow":
        assert [row.key.task_index for row in read_tokens(made)] == [0, 1]
        return
    first, second = (orjson.loads(line)["sample"] for line in made.read_bytes().splitlines())
    if name == "verl":
        assert first["extra_fields"]["reward_extra_info"] == {"right": 0.5}
    else:
        spoke = sum(bool(item.get("generation_token_ids")) for item in records[0]["response"]["output"])
        assert (sum(first["rewards"]), sum(second["rewards"])) == (0.25 * spoke, 0.5)
        assert first["trajectory_ids"] == {"instance_id": "0", "repetition_id": 0}


async def test_a_collection_writes_tokens_to_a_file_of_their_own(tmp_path: Path) -> None:
    """Export, check and viewer find them there; without the file the output has text only."""
    endpoint, output = TokenEndpoint(), tmp_path / "rollouts.jsonl"
    model = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
    config = RolloutCollectionConfig(
        agent_name=AGENT["name"],
        input_jsonl_fpath=f"{COUNTER}/data/example.jsonl",
        output_jsonl_fpath=str(output),
        tokens_output=str(tmp_path / "sub" / "tokens.arrow"),
        limit=2,
        num_samples_in_parallel=1,
    )
    async with stub_endpoint(endpoint) as stub:
        settings = {"policy_base_url": stub.url, "policy_api_key": "none", "policy_model_name": "m"}
        servers = servers_of(f"{COUNTER}/configs/stateful_counter.yaml", model, **settings)
        async with running_servers(servers) as client:
            await RolloutCollectionHelper().run_from_config(config, client=client, settings={})
    assert b"token_ids" not in output.read_bytes()
    stored = list(read_rollouts(output))
    restored = token_restorer(output)
    traces = [trace_of(restored(each.record)) for each in stored]
    assert [len(trace.segments) for trace in traces] == [1, 1]
    expected = endpoint.flat(0, 4)
    flat = traces[0].segments[0].flatten()
    assert (flat.ids, flat.loss_mask) == (expected.ids, expected.loss_mask)
    assert flat.log_probs == pytest.approx(expected.log_probs, rel=1e-6)
    for name in ("verl", "arrow", "parquet"):
        made = tmp_path / f"made.{name}"
        options: dict[str, Any] = {
            "rollouts_jsonl_fpath": str(output),
            "output_jsonl_fpath": str(made),
            "format": name,
        }
        report = export_rollouts(ExportConfig(**options))
        assert (report.used, report.examples) == (2, 2)
        if name != "verl":
            rows = list(read_tokens(made))
            assert [row.segment.flatten().ids for row in rows] == [trace.segments[0].flatten().ids for trace in traces]
            assert [row.advantage for row in rows] == [0.0, 0.0]
            with Files([made]) as files:
                files.index("0").wait_for(2**62, timeout_s=PATIENCE_S)
                alone = token_view(files.index("0"), 0)
            assert [call["generation"] for call in alone["calls"]] == endpoint.sampled[:4]
    with indexed(output) as index:
        view = token_view(index, 0)
    assert [call["generated_tokens"] for call in view["calls"]] == [len(ids) for ids in endpoint.sampled[:4]]
