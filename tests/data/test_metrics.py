"""Statistics: equal to the recorded ones, the same on any number of cores, and compared with a tolerance."""

import asyncio
import io
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.data.digests import Spill
from nemo_gym.data.metrics import Counted, differences, metrics_of
from nemo_gym.data.scan import TOKENS, WORDS, AvgMinMax, ChunkTask, ScanOptions, examine, extent_of, lines_of, scan

SHARED_DATA = PARENT_DIR.parent / "shared" / "data"
ABOUT_THE_DATASET = {"name", "type", "jsonl_fpath", "num_repeats", "gitlab_identifier", "huggingface_identifier"}


def recorded() -> list[tuple[Path, Path]]:
    """Every file of rows with each file of statistics recorded for it."""
    pairs = []
    for metrics in sorted(SHARED_DATA.glob("*/*metrics*.json")):
        stem = metrics.stem.partition("_metrics")[0]
        ending = metrics.stem.partition("_metrics")[2].replace("_2026-02", "")
        rows = metrics.with_name(f"{stem}{ending}.jsonl")
        pairs.append((rows if rows.exists() else next(metrics.parent.glob("*.jsonl")), metrics))
    return pairs


def metrics_for(*paths: Path, num_repeats: int = 1, **options: Any) -> dict[str, Any]:
    with Spill() as spill:
        found = asyncio.run(scan([extent_of(path) for path in paths], ScanOptions(**options), spill))
        return metrics_of([Counted(statistics, num_repeats) for statistics in found])


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the recorded data is not here")
@pytest.mark.parametrize(("rows", "metrics"), recorded(), ids=lambda path: "/".join(path.parts[-2:]))
def test_the_statistics_equal_the_recorded_ones(rows: Path, metrics: Path) -> None:
    saved = {name: value for name, value in json.loads(metrics.read_bytes()).items() if name not in ABOUT_THE_DATASET}
    saved.pop("license")
    assert differences(saved, metrics_for(rows)) == []


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(text: str, **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}]}, **fields}


def test_the_result_is_the_same_on_any_number_of_processes(tmp_path: Path) -> None:
    rows = [row(f"What is {n} + {n % 7}?", answer=n * 0.1, kind=f"k{n % 3}", n=n) for n in range(3000)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    one, two = (metrics_for(path, num_processes=count, chunk_bytes=20_000) for count in (1, 2))
    assert json.dumps(one) == json.dumps(two)
    assert one["kind"] == {"unique_count": 3, "total_count": 3000}
    assert one["Number of unique create params"] == 3000


def test_repeats_count_but_do_not_change_what_is_unique(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [row("a", score=1.0), row("b", score=3.0), row("b", score=3.0)])
    metrics = metrics_for(path, num_repeats=2)
    expected = round(statistics.stdev([1.0, 1.0, 3.0, 3.0, 3.0, 3.0]), 2)
    assert metrics["Number of examples"] == 6
    assert metrics["score"]["Standard deviation"] == pytest.approx(expected)
    assert metrics["Number of unique user messages"] == 2


def test_datasets_are_merged_and_not_overwritten(tmp_path: Path) -> None:
    three = write_rows(tmp_path / "three.jsonl", [row("a", score=1.0, name="x")] * 3)
    one = write_rows(tmp_path / "one.jsonl", [row("b", score=9.0, name="x")])
    metrics = metrics_for(three, one)
    assert metrics["score"]["Average"] == 3.0
    assert metrics["name"] == {"unique_count": 1, "total_count": 4}


def test_a_field_with_texts_and_numbers_has_the_statistics_of_both(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [row("a", x="one"), row("b", x=2), row("c", x=[True, "one", None, {}])])
    found = metrics_for(path)["x"]
    assert (found["unique_count"], found["total_count"], found["Total # non-null values"]) == (1, 2, 2)


def test_a_field_named_like_a_statistic_does_not_replace_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [row("a", **{"Number of tools": 7, "Temperature": "hot"})])
    metrics = metrics_for(path)
    assert metrics["Number of tools"]["Total # non-null values"] == 0
    assert metrics["Number of tools (field)"]["Average"] == 7.0
    assert metrics["Temperature (field)"]["unique_count"] == 1


def test_a_file_whose_keys_are_data_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [row("a", **{f"key {n}": n}) for n in range(3000)])
    assert len(metrics_for(path)) < 1100


TEXTS = st.text(st.sampled_from(' "\\:,{}[]\n\tä🙂ab\u00a0'))
VALUES = st.recursive(TEXTS | st.integers(-3, 3), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))


@settings(max_examples=50)
@given(st.dictionaries(TEXTS, VALUES, max_size=3))
def test_words_are_those_of_json_dumps(tmp_path_factory: pytest.TempPathFactory, schema: dict[str, Any]) -> None:
    tool = {"type": "function", "name": "f", "parameters": schema}
    params = {"input": [{"role": "user", "content": " ".join(schema)}], "tools": [tool]}
    path = write_rows(tmp_path_factory.mktemp("words") / "rows.jsonl", [{"responses_create_params": params}])
    found = examine(ChunkTask(str(path), 0, path.stat().st_size, 2**20)).numbers[WORDS]
    assert found.max == len(json.dumps(params).split())


def test_tokens_are_counted_over_instructions_input_and_tools(tmp_path: Path) -> None:
    pytest.importorskip("rs_bpe")
    params = {"input": "hello world", "instructions": "hello", "tools": []}
    path = write_rows(tmp_path / "rows.jsonl", [{"responses_create_params": params}])
    assert metrics_for(path, count_tokens=True)[TOKENS]["Average"] == 3.0


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=5)))
def test_moments_merge_to_those_of_all_numbers(batches: list[list[float]]) -> None:
    merged = AvgMinMax()
    for batch in batches:
        merged.add(AvgMinMax.of(batch))
    numbers = [number for batch in batches for number in batch]
    if not numbers:
        assert (merged.min, merged.max) == (math.inf, -math.inf)
        assert set(merged.aggregate().values()) == {0}
        return
    assert merged.mean == pytest.approx(statistics.fmean(numbers), abs=1e-6)
    if len(numbers) > 1:
        deviation = math.sqrt(merged.squares / (merged.total - 1))
        assert deviation == pytest.approx(statistics.stdev(numbers), rel=1e-6, abs=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1.0}, {"a": 1.005}, True),
        ({"a": 1.0}, {"a": 1.006}, False),
        ({"a": 0.5}, {"a": 0.5005}, True),
        ({"a": 0.5}, {"a": 0.5006}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": "x"}, {"a": "y"}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, True),
        ({"a": [{"b": 1}, {"c": 2}]}, {"a": [{"c": 2}, {"b": 1}]}, True),
        ({"a": [1, 1]}, {"a": [1, 2]}, False),
        ({"a": {"Median": 3, "Min": 1}}, {"a": {"Min": 1}}, True),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, False),
        ({"a": None}, {"a": 0}, False),
    ],
)
def test_statistics_are_compared_with_a_tolerance(old: Any, new: Any, *, is_same: bool) -> None:
    assert (differences(old, new) == []) is is_same


LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")))


@given(lines=LINES, ending=st.sampled_from([b"", b"\n"]), longest=st.integers(1, 9), block_bytes=st.integers(1, 20))
def test_lines_are_those_of_the_file(lines: list[bytes], ending: bytes, longest: int, block_bytes: int) -> None:
    content = b"\n".join(lines) + ending
    file = io.BytesIO(content)
    found = list(lines_of(file, 0, len(content), max_row_bytes=longest, block_bytes=block_bytes))
    expected = content.removesuffix(b"\n").split(b"\n") if content else []
    assert [line for _, line in found] == [line if len(line) <= longest else None for line in expected]
    assert all(line is None or content[start:].startswith(line) for start, line in found)
