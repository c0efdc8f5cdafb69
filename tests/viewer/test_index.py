"""The index: any file, of any size, while it grows; and what a filter, a sort or a search finds in it."""

import gzip
import json
import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.resume import InputFile, Manifest, write_manifest
from nemo_gym.viewer import queries
from nemo_gym.viewer.display import raw_value, row_view, token_view
from nemo_gym.viewer.index import KEPT_FROM_BYTES, Index
from nemo_gym.viewer.queries import CHUNK, FilterError, Hit, Progress, search
from nemo_gym.viewer.records import MAX_PARSED_BYTES, describe
from nemo_gym.viewer.vocabulary import read_vocabulary, vocabulary_of_run
from tests.jsonl import write_lines
from tests.polling import PATIENCE_S, until_sync
from tests.viewer.sample_files import failure, math_records, record, text_message, token_record


@contextmanager
def indexed(path: Path, *, kept_from_bytes: int = KEPT_FROM_BYTES) -> Iterator[Index]:
    index = Index(path, kept_from_bytes=kept_from_bytes)
    try:
        index.wait_for(2**62, timeout_s=PATIENCE_S)
        yield index
    finally:
        index.close()


def found_rows(index: Index, where: str = "", sort: str = "") -> list[int]:
    with index.reading() as connection:
        page = queries.rows_page(connection, where=where, sort=sort, offset=0, limit=500, columns=[])
    return [row["id"] for row in page["rows"]]


def hits(index: Index, text: str, *, chunk_bytes: int = CHUNK) -> list[Hit]:
    events = search(index, text, is_cancelled=lambda: False, chunk_bytes=chunk_bytes)
    return [event for event in events if isinstance(event, Hit)]


def test_every_kind_of_line_is_listed(tmp_path: Path) -> None:
    lines = [
        record("scored"),
        record("without index", task=None),
        failure("judge", "no verdict"),
        {"responses_create_params": {"input": "a dataset row"}, "expected_answer": "x"},
        {"messages": [{"role": "user", "content": "chat"}]},
        "not json",
        "[1, 2]",
        "",
        '{"reward": NaN, "text": "\\ud800"}',
        "[" * 2000 + "]" * 2000,
    ]
    with indexed(write_lines(tmp_path / "all.jsonl", lines)) as index, index.reading() as connection:
        page = queries.rows_page(connection, where="", sort="", offset=0, limit=100, columns=[])
    outcomes = [row["outcome"] for row in page["rows"]]
    assert outcomes == ["scored", "scored", "judge", "row", "row", "invalid", "invalid", "row", "invalid"]
    assert [row["prompt"] for row in page["rows"][:5]] == [
        *("scored", "without index", "What is 2 + 2?", "a dataset row", "chat")
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
FIELDS = ("reward", "response", "responses_create_params", "_task_index", "_seconds", "cause", "row", "messages")


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_no_record_stops_the_index(values: dict[str, Any]) -> None:
    described = describe(values)  # the guard around it is for what nobody has thought of
    assert described.reward is None or abs(described.reward) < 1e300


def test_a_response_without_a_finite_reward_is_not_a_dataset_row(tmp_path: Path) -> None:
    lines = [record("a", "b", reward=float("nan")), record("a", "b", reward=None), record("a", "b", reward=10**400)]
    with indexed(write_lines(tmp_path / "all.jsonl", lines)) as index:
        assert found_rows(index, "outcome = 'no reward'") == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "rows", "note"),
    [
        (b"", 0, "The file is empty."),
        (b'[{"reward": 1}]', 0, "This is not JSON Lines, one object a line. Convert it: jq -c '.[]' rollouts.json"),
        (b'{\n"reward": 1\n}\n', 3, "This is not JSON Lines, one object a line. Convert it: jq -c . rollouts.json"),
        (b'{"reward": 1}\n{"rew', 1, "The last line, of 5 bytes, is not complete."),
        (b'\xef\xbb\xbf{"reward": 1}\n', 1, None),
    ],
)
def test_a_file_of_another_kind_is_reported(tmp_path: Path, content: bytes, rows: int, note: str | None) -> None:
    path = tmp_path / "rollouts.json"
    path.write_bytes(content)
    os.utime(path, (0, 0))
    with indexed(path) as index:
        assert (index.rows, index.progress()["note"]) == (rows, note)


def test_half_a_line_at_the_end_of_a_file_that_is_being_written_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_bytes(b'{"reward": 1}\n{"rew')
    with indexed(tmp_path / "rollouts.jsonl") as index:
        assert (index.rows, index.progress()["note"]) == (1, None)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(record("first")).encode() + b"\n")
    with indexed(path) as index:
        assert found_rows(index, "outcome = scored") == [0]
        assert row_view(index, 0)["record"]["reward"] == 1.0


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_are_read_too(tmp_path: Path, suffix: str) -> None:
    content = "".join(json.dumps(each) + "\n" for each in math_records()).encode()
    path = tmp_path / f"rollouts.jsonl{suffix}"
    if suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    else:
        path.write_bytes(pytest.importorskip("zstandard").compress(content))
    with indexed(path) as index:
        assert index.rows == len(math_records())
        assert [hit.row for hit in hits(index, "square of 7")] == [20, 21, 22, 23]
        assert row_view(index, 3)["record"] == math_records()[3]
    assert list((tmp_path / "cache" / "viewer").iterdir()) == []


def test_a_damaged_compressed_file_shows_what_can_be_read(tmp_path: Path) -> None:
    content = b"".join(json.dumps(each).encode() + b"\n" for each in math_records(tasks=50))
    packed = gzip.compress(content, compresslevel=1)
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with indexed(path) as index:
        assert index.rows > 10
        assert "cut.jsonl.gz" in (index.source.error or "")


def test_a_file_that_is_being_written_is_followed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", [record("first")])
    with indexed(path) as index, path.open("a") as file:
        line = json.dumps(record("second", task=1))
        file.write(line[:50])
        file.flush()
        file.write(line[50:] + "\n" + json.dumps(record("third", task=2)))  # complete, but without a newline
        file.flush()
        until_sync(lambda: index.rows == 3)
        file.write("\n" + json.dumps(record("fourth", task=3)) + "\n")
        file.flush()
        until_sync(lambda: index.rows == 4)
        assert [hit.row for hit in hits(index, "fourth")] == [3]


def test_half_a_line_is_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(record("whole")) + "\n" + json.dumps(record("half"))[:-30])
    with indexed(path) as index:
        assert index.rows == 1


def test_a_file_that_is_replaced_or_cut_is_indexed_anew(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", [record("one"), record("two")])
    with indexed(path) as index:
        os.replace(write_lines(tmp_path / "new", [record(f"new {number}") for number in range(3)]), path)
        until_sync(lambda: index.rows == 3)
        path.write_text("")
        until_sync(lambda: index.rows == 0)


def test_the_index_of_a_large_file_is_kept_and_extended(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", math_records())
    path.chmod(0o600)
    with indexed(path, kept_from_bytes=0):
        pass
    kept = tmp_path / "rollouts_index.sqlite"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob("*-wal"))
    marked = sqlite3.connect(kept)
    marked.execute("UPDATE details SET prompt = 'kept'")
    marked.commit()
    marked.close()
    with path.open("a") as file:
        file.write(json.dumps(record("added", task=9)) + "\n")
    with indexed(path, kept_from_bytes=0) as index, index.reading() as connection:
        page = queries.rows_page(connection, where="", sort="", offset=0, limit=100, columns=[])
    assert {row["prompt"] for row in page["rows"]} == {"kept", "added"}


def test_the_index_of_another_file_is_not_used(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", [record("aaaa"), record("bbbb")])
    with indexed(path, kept_from_bytes=0):
        pass
    write_lines(path, [record("cccc"), record("dddd")])
    with indexed(path, kept_from_bytes=0) as index:
        assert [hit.row for hit in hits(index, "cccc")] == [0]
        assert found_rows(index, "prompt = aaaa") == []


def test_a_file_of_the_same_name_that_is_no_index_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rollouts_index.sqlite").write_text("mine")
    with indexed(write_lines(tmp_path / "rollouts.jsonl", [record("one")]), kept_from_bytes=0) as index:
        assert index.rows == 1
    assert (tmp_path / "rollouts_index.sqlite").read_text() == "mine"


def test_two_viewers_extend_the_same_index(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", math_records(tasks=300))
    with indexed(path, kept_from_bytes=0) as first, indexed(path, kept_from_bytes=0) as second, path.open("a") as file:
        for number in range(20):
            file.write(json.dumps(record(f"added {number}", task=1000 + number)) + "\n")
            file.flush()
        until_sync(lambda: first.rows == second.rows == 1220)
        assert found_rows(second, "task >= 1000") == list(range(1200, 1220))


def test_a_line_too_long_to_decode_is_listed_and_found(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    end = '","reward":1.0,"_task_index":7,"_repeat_index":2,"_row_hash":"0123456789abcdef"}\n'
    path.write_text('{"text":"' + "x" * (MAX_PARSED_BYTES + 10) + "needle" + end + json.dumps(record("after")) + "\n")
    with indexed(path) as index:
        with index.reading() as connection:
            page = queries.rows_page(connection, where="", sort="", offset=0, limit=9, columns=[])
        assert [(row["outcome"], row["task"]) for row in page["rows"]] == [("too large", 7), ("scored", 0)]
        assert [hit.row for hit in hits(index, "needle")] == [0]
        view = row_view(index, 0)
        assert view["record"] is None
        assert len(view["raw"]) < 1_000_000


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("reward < 1 and task = 1", [5, 6, 7]),
        ("verifier.level = 2 and reward = 1", [8, 9, 20, 21, 22, 23]),
        ("expected_answer = '16'", [8, 9, 10, 11]),
        ("expected_answer ~ 6 and reward != 0", [8, 9, 16, 17, 18, 19]),
        ("response.usage.output_tokens > 42 and task < 2", [3, 7]),
        ("nothing exists", []),
        ("verifier.kind missing", []),
        ("prompt ~ 'square of 2'", [0, 1, 2, 3]),
        ("outcome = scored and row >= 22", [22, 23]),
        ('`verifier.kind` = "numeric" and row < 1', [0]),
        ("row = 1 or task = 5 and row > 22 or row = 3", [1, 3, 23]),
        ("row = 1 || row = 2 && task = 9", [1]),
    ],
)
def test_a_filter_selects_rows(tmp_path: Path, where: str, rows: list[int]) -> None:
    with indexed(write_lines(tmp_path / "rollouts.jsonl", math_records())) as index:
        assert found_rows(index, where) == rows


def test_a_list_of_words_is_a_field(tmp_path: Path) -> None:
    lines = [record("a", tags=["easy", "algebra"]), record("b", tags=["hard"]), record("c", tags=[{"x": 1}])]
    with indexed(write_lines(tmp_path / "rollouts.jsonl", lines)) as index:
        assert found_rows(index, "tags ~ algebra") == [0]
        assert found_rows(index, "tags.length = 1") == [1, 2]


def test_a_filter_on_a_field_that_no_row_has_says_so(tmp_path: Path) -> None:
    with indexed(write_lines(tmp_path / "rollouts.jsonl", math_records())) as index, index.reading() as connection:
        for where, hint in {
            "verifier.levl > 1": "No row has a field 'verifier.levl'. Did you mean 'verifier.level'?",
            "verifier.level > 99": None,
        }.items():
            page = queries.rows_page(connection, where=where, sort="", offset=0, limit=1, columns=[])
            assert (page["total"], page["hint"]) == (0, hint)


@pytest.mark.parametrize("where", ["reward <", "reward = 1 or", "reward = 1 task = 2", "= 1", '"', "a" * 3000, "x; y"])
def test_an_unreadable_filter_is_an_error_that_says_so(tmp_path: Path, where: str) -> None:
    with indexed(write_lines(tmp_path / "rollouts.jsonl", [record("one")])) as index, pytest.raises(FilterError):
        found_rows(index, where)


def test_rows_sort_by_any_field_and_those_without_it_come_last(tmp_path: Path) -> None:
    lines = [record("a", score={"x": 2}), record("b"), record("c", score={"x": 10}), record("d", score={"x": 1})]
    with indexed(write_lines(tmp_path / "rollouts.jsonl", lines)) as index:
        assert found_rows(index, sort="score.x") == [3, 0, 2, 1]
        assert found_rows(index, sort="-score.x") == [2, 0, 3, 1]


def test_the_summary_is_that_of_the_metrics(tmp_path: Path) -> None:
    with indexed(write_lines(tmp_path / "rollouts.jsonl", math_records())) as index, index.reading() as connection:
        found = queries.summary(connection, where="", pass_threshold=1.0)
        groups = queries.tasks_page(connection, where="", sort="-spread", offset=0, limit=9, pass_threshold=1.0)
    rewards = [each["reward"] for each in math_records()]
    assert found["reward"]["mean"] == pytest.approx(sum(rewards) / 24)
    assert (found["tasks"], found["groups"], found["groups_without_variance"]) == (6, 6, 3)
    assert [k for k, _ in found["pass_at_k"]] == [1, 2, 4]
    assert found["pass_at_k"][0][1] == pytest.approx(sum(rewards) / 24)
    assert found["pass_at_k"][2][1] == pytest.approx(5 / 6)
    assert [group["no_variance"] for group in groups["groups"]] == [False, False, False, True, True, True]


def test_records_without_a_task_index_are_grouped_by_their_prompt(tmp_path: Path) -> None:
    lines = [record(f"question {number // 2}", reward=number % 2, task=None) for number in range(6)]
    with indexed(write_lines(tmp_path / "public.jsonl", lines)) as index, index.reading() as connection:
        groups = queries.tasks_page(connection, where="", sort="", offset=0, limit=9, pass_threshold=1.0)
    assert [(group["count"], group["mean"]) for group in groups["groups"]] == [(2, 0.5)] * 3


@pytest.mark.parametrize("by_prompt", [False, True])
def test_two_files_are_compared_task_by_task(tmp_path: Path, by_prompt: bool) -> None:
    first = write_lines(tmp_path / "a.jsonl", math_records())
    second = write_lines(tmp_path / "b.jsonl", math_records(luck=2))
    with indexed(first) as one, indexed(second) as two, one.reading() as connection:
        found = queries.compare_page(
            connection, [str(two.database)], sort="-size", offset=0, limit=99, by_prompt=by_prompt
        )
    first_side, side = found["sides"]
    assert (found["total"], side["up"], side["down"]) == (6, 3, 0)
    assert side["change"] == pytest.approx(side["mean"] - first_side["mean"])
    assert [task["task"] for task in found["tasks"][:3]] == [2, 1, 3]
    low, high = side["interval_95"]
    assert low < side["change"] < high


def test_failures_with_different_messages_are_distinguished(tmp_path: Path) -> None:
    messages = ("timeout after 15 s", "timeout after 2 s", "bad gateway")
    lines = [failure("model", message) for message in messages]
    lines.append(record("q", "a", reward=None))  # not a failed attempt
    with indexed(write_lines(tmp_path / "x.jsonl", lines)) as index, index.reading() as connection:
        found = queries.failures(connection)
    assert [(each["message"], each["count"]) for each in found] == [("timeout after 15 s", 2), ("bad gateway", 1)]


def test_a_compared_task_opens_the_rollouts_that_show_the_change(tmp_path: Path) -> None:
    rewards = {"a.jsonl": ((1, 0), (1, 1)), "b.jsonl": ((0, 1), (1, 0))}
    files = [
        write_lines(
            tmp_path / name,
            [record("q", reward=r, task=task, repeat=n) for task, both in enumerate(each) for n, r in enumerate(both)],
        )
        for name, each in rewards.items()
    ]
    files.append(write_lines(tmp_path / "c.jsonl", [record("q", reward=1, task=0, repeat=n) for n in range(2)]))
    with indexed(files[0]) as one, indexed(files[1]) as two, indexed(files[2]) as three:
        pages = []
        for other in (two, three):
            with one.reading() as connection:
                pages.append(
                    queries.compare_page(
                        connection, [str(other.database)], sort="task", offset=0, limit=9, by_prompt=False
                    )
                )
    worse, better = pages[0]["tasks"][1], pages[1]["tasks"][0]
    assert (worse["change"], *(side["row"] for side in worse["sides"])) == (-0.5, 2, 3)
    assert (better["change"], *(side["row"] for side in better["sides"])) == (0.5, 1, 0)
    assert pages[1]["sides"][1]["interval_95"] is None


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SQUARE OF 7", [4]),
        ('say "hi"', [0]),
        ("line\nbreak", [1]),
        ("größe", [2]),
        ("日本", [2, 3]),
        ("reward", []),
        ("input_text", []),
        ("output_text", []),
        ("assistant", []),
        ("\\frac{a}", [4]),
    ],
)
def test_search_finds_values_as_people_type_them(tmp_path: Path, text: str, rows: list[int]) -> None:
    escaped = json.dumps(record("日本 escaped"))
    raw = json.dumps(record("große Größe 日本"), ensure_ascii=False)
    lines = [record('they say "hi"'), record("line\nbreak"), raw, escaped, math_records()[23]]
    with indexed(write_lines(tmp_path / "rollouts.jsonl", lines)) as index:
        assert [hit.row for hit in hits(index, text)] == rows


def test_search_crosses_the_borders_of_chunks_and_can_be_cancelled(tmp_path: Path) -> None:
    lines = [record(f"{'x' * number} needle {'y' * number}", task=number) for number in range(120)]
    with indexed(write_lines(tmp_path / "rollouts.jsonl", lines)) as index:
        assert [hit.row for hit in hits(index, "needle y", chunk_bytes=100)] == list(range(1, 120))
        countdown = iter(range(20))
        stopped = search(index, "absent", is_cancelled=lambda: next(countdown, None) is None, chunk_bytes=100)
        events = list(stopped)
        assert isinstance(events[-1], Progress)
        assert events[-1].searched_bytes < index.indexed_bytes


def test_a_long_value_is_cut_and_can_be_read_in_full(tmp_path: Path) -> None:
    long = "ü" * 1_500_000
    with indexed(write_lines(tmp_path / "rollouts.jsonl", [record(long, "short")])) as index:
        cut = row_view(index, 0)["record"]["responses_create_params"]["input"][0]["content"]
        assert (len(cut["$cut"]), cut["length"]) == (1_000_000, 1_500_000)
        assert raw_value(index, 0, cut["path"]).decode() == long


def test_tokens_show_what_is_trained_on_and_where_a_prefix_breaks(tmp_path: Path) -> None:
    with indexed(write_lines(tmp_path / "rollouts.jsonl", [token_record()])) as index:
        view = token_view(index, 0)
        shown = row_view(index, 0)["record"]["response"]["output"][0]["prompt_token_ids"]
    calls: list[dict[str, Any]] = view["calls"]
    assert [call["is_break"] for call in calls] == [False, False, True]
    assert [call["prompt"] for call in calls] == [[1, 2, 3], [4, 5], [99, 10, 11, 4, 5, 12, 6]]
    assert [call["generation"] for call in calls] == [[10, 11], [12], [13, 14]]
    assert len(view["faults"]) == 1
    assert shown == {"$tokens": 3}


def test_tokens_have_the_text_that_the_record_or_a_vocabulary_has(tmp_path: Path) -> None:
    told = text_message("Hi there")
    told["content"][0]["logprobs"] = [{"token": "Hi"}, {"token": " there"}]
    tokens = {"prompt_token_ids": [7, 8], "generation_token_ids": [1, 2, 3], "generation_log_probs": [-1.0, 0.0, 0.0]}
    vocabulary = {"Ġa": 1, "Ã¼": 2, "ĊĊ": 7}
    added = [{"id": 3, "content": "<|end|>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))
    lines = [record("q", told | tokens), record("q", text_message("Hi") | tokens)]
    with indexed(write_lines(tmp_path / "rollouts.jsonl", lines)) as index:
        views = [token_view(index, row, vocabulary=read_vocabulary(str(tmp_path))) for row in (0, 1)]
        assert [view["calls"][0]["generation_texts"] for view in views] == [
            ["Hi", " there", "<|end|>"],
            [" a", "ü", "<|end|>"],
        ]
        assert views[0]["calls"][0]["prompt_texts"] == ["\n\n", None]
        without = token_view(index, 1)
    assert (without["has_texts"], without["calls"][0]["generation_texts"]) == (False, [None, None, None])


@pytest.mark.parametrize(
    ("vocabulary", "texts"),
    [({"▁a": 0, "<0x0A>": 1}, {0: " a", 1: "\n"}), ([["▁b", -1.5], ["c", -2.0]], {0: " b", 1: "c"})],
)
def test_vocabularies_of_every_usual_kind_are_read(tmp_path: Path, vocabulary: Any, texts: dict[int, str]) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    assert read_vocabulary(str(tmp_path / "t.json")) == texts


def test_the_bundled_model_shows_the_text_of_its_tokens(tmp_path: Path) -> None:
    def gguf(*pairs: tuple[str, int, bytes]) -> bytes:
        values = (text(name) + struct.pack("<I", kind) + value for name, kind, value in pairs)
        return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(pairs)) + b"".join(values)

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    tokens = ["<|im_end|>", "Ġhello", "Ċ"]
    listed = struct.pack("<IQ", 8, len(tokens)) + b"".join(map(text, tokens))
    pairs = [
        ("general.name", 8, text("tiny")),
        ("size", 4, struct.pack("<I", 7)),
        ("tokenizer.ggml.tokens", 9, listed),
    ]
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf(*pairs))
    assert read_vocabulary(str(path)) == {0: "<|im_end|>", 1: " hello", 2: "\n"}
    output = write_lines(tmp_path / "run.jsonl", [])
    model = {"local_model": {"entrypoint": "app.py", "gguf_fpath": str(path)}}
    servers = {"policy_model": {"responses_api_models": model}}
    write_manifest(output, Manifest(input=InputFile(path="", sha256=""), options={}, servers=servers))
    assert vocabulary_of_run(output)[1] == " hello"
    assert vocabulary_of_run(tmp_path / "other.jsonl") == {}
    path.write_bytes(gguf(*pairs[:-1]))
    with pytest.raises(ConfigError, match="vocabulary"):
        read_vocabulary(str(path))


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"t\.json .*tokenizer\.json"):
        read_vocabulary(str(tmp_path / "t.json"))


@pytest.mark.parametrize("name", ["", "folder"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="folder"):
        Index(tmp_path / name)
