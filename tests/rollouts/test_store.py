"""What is reported as kept is on disk, whole, and told apart from what was made otherwise."""

import asyncio
import contextlib
import os
from collections import Counter
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError, RolloutError, StorageError
from nemo_gym.rollouts.resume import make_manifest, read_manifest, write_manifest
from nemo_gym.rollouts.store import MAX_QUEUED, CompletedIndex, JsonlFile, RolloutStore, failures_path, manifest_path
from nemo_gym.rollouts.types import Outcome, Row, hash_row, parse_row_key


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"half", b""),
        (b"one\n", b"one\n"),
        (b"one\ntwo\nhal", b"one\ntwo\n"),
        (b"one\n" + b"x" * 200_000, b"one\n"),
        (b"x" * 200_000, b""),
    ],
)
def test_half_a_last_line_is_dropped_and_the_next_follows_whole(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(before)
    file = JsonlFile(path)
    assert b"".join(file.lines()) == after
    assert path.read_bytes() == before
    file.repair()
    assert path.read_bytes() == after
    file.add([b"next\n", b"more\n"])
    file.close()
    assert path.read_bytes() == after + b"next\nmore\n"


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    first = JsonlFile(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match="Another process is writing"):
        JsonlFile(tmp_path / "out.jsonl")
    first.close()
    JsonlFile(tmp_path / "out.jsonl").close()


@pytest.mark.parametrize("name", ["folder", "file/out.jsonl"])
def test_an_output_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"Cannot write .*output_jsonl_fpath"):
        JsonlFile(tmp_path / name)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_moved_while_it_is_written_is_an_error(tmp_path: Path, is_replaced: bool) -> None:
    path, moved = tmp_path / "out.jsonl", tmp_path / "moved.jsonl"
    with contextlib.closing(JsonlFile(path)) as file:
        file.add([b"1\n"])
        path.rename(moved)
        if is_replaced:
            path.write_bytes(b"")
        with pytest.raises(StorageError, match="was moved or deleted"):
            file.add([b"2\n"])
    assert moved.read_bytes() == b"1\n2\n"


@pytest.mark.parametrize("size", [0, 3, 9])
def test_a_file_that_another_process_shortens_or_extends_is_an_error(tmp_path: Path, size: int) -> None:
    path = tmp_path / "out.jsonl"
    with contextlib.closing(JsonlFile(path)) as file:
        file.add([b"1\n", b"22\n"])
        os.truncate(path, size)
        with pytest.raises(StorageError, match=f"{size} bytes, expected 5"):
            file.add([b"3\n"])
    assert path.stat().st_size == size


def test_a_record_carries_its_identity_however_long_it_is() -> None:
    row = Row(123456, 7, hash_row(b"{}"), "agent", orjson.dumps({"text": "z" * 1000}))
    for text in ("x", "y" * 100_000, '"_task_index":1,"_repeat_index":2'):
        scored = Outcome(row, orjson.dumps({"response": text, "reward": 1.0}))
        assert parse_row_key(scored.line()) == row.key
        assert orjson.loads(scored.line())["_row_hash"] == row.row_hash
    assert parse_row_key(Outcome.failed(row, RolloutError("model", "no")).line()) == row.key
    assert parse_row_key(b'{"reward":1}') is None


@given(
    done=st.sets(st.tuples(st.integers(0, 500), st.integers(0, 9))),
    asked=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9))),
)
def test_done_knows_just_what_was_added(done: set[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    known = CompletedIndex(num_repeats=10, row_hashes=range(501))
    for task, repeat in done:
        known.add((task, repeat, f"{task:016x}"))
    for task, repeat in asked:
        assert known.contains((task, repeat, f"{task:016x}")) is ((task, repeat) in done)


@given(
    stored=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 9)), unique=True),
    asked=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 9))),
)
def test_a_record_that_is_not_of_the_row_at_its_index_changes_nothing_of_those_before_it(
    stored: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    """Rows 0 to 9 have the hashes 0 to 9, and an earlier run had more repeats."""
    keys = [(task, repeat, f"{number:016x}") for task, repeat, number in stored]
    known, by_content = (
        CompletedIndex(num_repeats=3, row_hashes=range(10), by_content=is_known) for is_known in (False, True)
    )
    assert [known.add(key) for key in keys] == [by_content.add(key) for key in keys] == [True] * len(keys)
    assert known.count == len(keys)
    if any(task != number for task, _, number in stored):
        numberings = known.numbering(), by_content.numbering()
        for index in range(10):
            first, second = (numbering.task_index(f"{index:016x}", index) for numbering in numberings)
            assert (first in range(10)) == (second in range(10))
        for task, repeat, number in (*stored, *asked):
            key = (task, repeat, f"{number:016x}")
            assert known.contains(key) is (key in keys)


def test_by_content_each_of_several_equal_rows_keeps_its_own_records() -> None:
    known = CompletedIndex(num_repeats=2, by_content=True)
    for row in ((5, 0, "same"), (9, 0, "same"), (9, 1, "same")):
        known.add(row)
    numbering = known.numbering()
    indices = [numbering.task_index("same", index) for index in range(3)]
    assert indices == [5, 9, 2]
    done = [[known.contains((index, repeat, "same")) for repeat in range(2)] for index in indices]
    assert done == [[True, False], [True, True], [False, False]]
    assert not known.contains((5, 0, "other"))


@given(
    before=st.lists(st.sampled_from("abcdef"), max_size=8),
    now=st.lists(st.sampled_from("abcdefgh"), max_size=10),
)
def test_after_a_change_of_the_dataset_an_index_still_means_one_row(before: list[str], now: list[str]) -> None:
    known = CompletedIndex(num_repeats=1, by_content=True)
    for index, row in enumerate(before):
        known.add((index, 0, row))
    numbering = known.numbering()
    indices = [numbering.task_index(row, index) for index, row in enumerate(now)]
    assert len(set(indices)) == len(indices)
    for row, index in zip(now, indices, strict=True):
        assert index >= len(before) or before[index] == row
    kept = Counter(now) & Counter(before)
    assert sum(index < len(before) for index in indices) == kept.total()


async def test_outcomes_are_reported_after_they_are_on_disk(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    seen: list[tuple[Outcome, bool]] = []

    def kept(outcome: Outcome) -> None:
        file = output if outcome.error is None else failures_path(output)
        seen.append((outcome, outcome.line() in file.read_bytes()))

    outcomes: list[Outcome] = [Outcome(Row(n, 0, "0" * 16, "agent", b"{}"), b'{"reward":1}') for n in range(50)]
    outcomes.append(Outcome.failed(Row(50, 0, "0" * 16, "agent", b"{}"), RolloutError("judge", "silent")))
    store = RolloutStore(output, on_written=kept)
    async with store.writing() as keep:
        await asyncio.gather(*(keep(outcome) for outcome in outcomes))
    store.close()
    assert {outcome.row.key for outcome, _ in seen} == {outcome.row.key for outcome in outcomes}
    assert all(is_there for _, is_there in seen)


async def test_an_output_that_is_truncated_after_its_last_record_is_an_error(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / "out.jsonl", on_written=lambda _: os.truncate(tmp_path / "out.jsonl", 7))
    with pytest.raises(StorageError, match="has 7 bytes"):
        async with store.writing() as keep:
            await keep(Outcome(Row(0, 0, "0" * 16, "agent", b"{}"), b'{"reward":1}'))
    store.close()


async def test_a_report_that_fails_ends_the_job_and_nobody_waits_for_the_writer(tmp_path: Path) -> None:
    def kept(_outcome: Outcome) -> None:
        raise BrokenPipeError

    store = RolloutStore(tmp_path / "out.jsonl", on_written=kept)

    async def job() -> None:
        async with store.writing() as keep:
            for number in range(3 * MAX_QUEUED):
                await keep(Outcome(Row(number, 0, "0" * 16, "agent", b"{}"), b'{"reward":1}'))

    task = asyncio.create_task(job())
    await asyncio.wait({task}, timeout=120)
    assert task.done()
    assert isinstance(task.exception(), BrokenPipeError)
    store.close()


async def test_what_was_handed_over_is_written_even_when_the_job_is_cancelled(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / "out.jsonl", on_written=lambda _: None)

    async def job() -> None:
        async with store.writing() as keep:
            for number in range(10):
                await keep(Outcome(Row(number, 0, "0" * 16, "agent", b"{}"), b'{"reward":1}'))
            handed_over.set()
            await asyncio.Event().wait()

    task, handed_over = asyncio.create_task(job()), asyncio.Event()
    await handed_over.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.close()
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 10


def test_a_change_of_input_or_configuration_is_reported_line_by_line(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    block = {"entrypoint": "app.py", "openai_model": "small", "openai_api_key": "sk-secret", "port": 1}
    settings = {"policy_model": {"responses_api_models": {"openai_model": block}}, "head_server": {"port": 1}}
    before = make_manifest(rows, sha256="0", rows=1, options={"agent_name": "a"}, settings=settings)
    write_manifest(tmp_path / "out.jsonl", before)
    assert "sk-secret" not in manifest_path(tmp_path / "out.jsonl").read_text()
    kept = read_manifest(tmp_path / "out.jsonl")
    assert kept == before
    block.update(port=2, openai_api_key="sk-other")
    assert (
        kept.changes_to(make_manifest(rows, sha256="0", rows=1, options={"agent_name": "a"}, settings=settings)) == []
    )
    block["openai_model"] = "large"
    changes = kept.changes_to(make_manifest(rows, sha256="1", rows=2, options={"agent_name": "b"}, settings=settings))
    assert [line.partition(":")[0] for line in changes] == [
        "the dataset",
        "agent_name",
        "the model (policy_model.responses_api_models.openai_model.openai_model)",
    ]
    assert changes[0] == f"the dataset: {rows} (1 row) before, {rows} (2 rows) with other rows now"
    assert changes[-1].endswith("'small' before, 'large' now")
    same_length = make_manifest(rows, sha256="1", rows=1, options={}, settings=settings)
    assert f"the dataset: {rows} (1 row) before, {rows} (1 row) with other rows now" in kept.changes_to(same_length)
    assert any(line.startswith("agent_name: 'a' ") for line in kept.changes_to(same_length))
    elsewhere = make_manifest(tmp_path / "b.jsonl", sha256="2", rows=3, options={}, settings=settings)
    changed = f"the dataset: {rows} (1 row) before, {tmp_path}/b.jsonl (3 rows) with other rows now"
    assert changed in kept.changes_to(elsewhere)
