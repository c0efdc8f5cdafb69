"""Other datasets become rows, and what cannot is dropped for a reason."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.data.import_rows import ImportConfig, import_rows
from nemo_gym.data.metrics import line_numbers, number_ranges
from nemo_gym.data.records import RecordsError, read_records
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.testing import rows_of
from tests.commands import ng
from tests.data.datasets import row


def imported(folder: Path, name: str, content: bytes, **options: Any) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The rows, and how many records were dropped for each reason."""
    (folder / name).write_bytes(content)
    output = folder / "out.jsonl"
    values = {"input_fpath": str(folder / name), "output_jsonl_fpath": str(output), "overwrite": True, **options}
    report = import_rows(ImportConfig.model_validate(values))
    assert report.read == report.rows + sum(report.counts.values())
    return rows_of(output), dict(report.counts)


def asked(rows: list[dict[str, Any]]) -> list[str]:
    return [each["responses_create_params"]["input"][-1]["content"] for each in rows]


CSV = b'question,answer\nWhat is 1 + 1?,2\n"Two\nlines?",x\n,empty\nWhat is 1 + 1?,again\n'


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", CSV), ("a.csv.gz", gzip.compress(CSV))], ids=["plain", "gzip"]
)
def test_columns_of_a_csv_file_become_prompt_and_fields(tmp_path: Path, name: str, content: bytes) -> None:
    mapping = {"prompt": "{question} Answer briefly.", "fields": {"expected_answer": "answer", "kind": "q-{answer}"}}
    rows, dropped = imported(tmp_path, name, content, **mapping)
    assert asked(rows) == ["What is 1 + 1? Answer briefly.", "Two\nlines? Answer briefly.", " Answer briefly."]
    assert rows[0]["expected_answer"] == "2"
    assert rows[0]["kind"] == "q-2"
    assert dropped == {"the same parameters as an earlier row": 1}


def test_a_usual_column_is_the_prompt_and_empty_ones_are_dropped(tmp_path: Path) -> None:
    rows, dropped = imported(tmp_path, "a.csv", CSV, system="Be brief.", keep_columns=True)
    assert asked(rows) == ["What is 1 + 1?", "Two\nlines?"]
    assert rows[0]["responses_create_params"]["input"][0] == {"role": "system", "content": "Be brief."}
    assert rows[0]["answer"] == "2"
    assert dropped == {"an empty prompt": 1, "the same parameters as an earlier row": 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"prompt": "a", "n": 1}\n\n{"prompt": "b", "n": 2}\n'),
        ("a.json", b'[{"prompt": "a", "n": 1}, {"prompt": "b", "n": 2}]'),
        ("a.json", b'{"data": [{"prompt": "a", "n": 1}, {"prompt": "b", "n": 2}]}'),
        ("a.tsv", b"prompt\tn\na\t1\nb\t2\n"),
    ],
)
def test_the_kind_of_a_file_follows_from_its_name(tmp_path: Path, name: str, content: bytes) -> None:
    rows, _ = imported(tmp_path, name, content, fields={"n": "n"})
    assert asked(rows) == ["a", "b"]
    assert [int(each["n"]) for each in rows] == [1, 2]


def test_parquet_is_read(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    messages = [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]]
    pq.write_table(pa.table({"messages": messages}), tmp_path / "x.parquet")
    rows, _ = imported(tmp_path, "a.parquet", (tmp_path / "x.parquet").read_bytes())
    assert rows == [
        {"responses_create_params": {"input": [{"role": "user", "content": "Hi"}]}, "reference_answer": "Hello"}
    ]


def test_chat_messages_become_items_and_the_last_answer_a_field(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    records = [
        {
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": [{"type": "text", "text": "U"}]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "7"},
                {"role": "user", "content": "And now?"},
                {"role": "assistant", "content": "Done"},
            ],
            "functions": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        },
        {"messages": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
        {"messages": [{"role": "wizard", "content": "?"}]},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "alone"}]},
    ]
    content = "\n".join(map(json.dumps, records)).encode()
    rows, dropped = imported(tmp_path, "a.jsonl", content, tools="functions")
    params = rows[0]["responses_create_params"]
    kinds = [item.get("type", item.get("role")) for item in params["input"]]
    assert kinds == ["system", "user", "function_call", "function_call_output", "user"]
    assert params["tools"] == [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    assert [each["reference_answer"] for each in rows] == ["Done", "A"]
    assert dropped == {"a message with the role 'wizard'": 1, "no list of messages": 1, "no user message": 1}


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ("text", "tool calls that are not a list"),
        ({"name": "f"}, "tool calls that are not a list"),
        (["text"], "a tool call without a name"),
        ([{"function": "f"}], "a tool call without a name"),
        ([{"function": {"arguments": "{}"}}], "a tool call without a name"),
    ],
)
def test_a_record_with_malformed_tool_calls_is_dropped(tmp_path: Path, calls: Any, reason: str) -> None:
    good = {"messages": [{"role": "user", "content": "a"}]}
    bad = {"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "tool_calls": calls}]}
    rows, dropped = imported(tmp_path, "a.jsonl", "\n".join(map(json.dumps, (bad, good))).encode())
    assert asked(rows) == ["a"]
    assert dropped == {reason: 1}


def test_rows_stay_as_they_are_and_bad_ones_are_dropped(tmp_path: Path) -> None:
    good, bad = row("a", n=1), {"responses_create_params": {"input": 3}}
    content = "\n".join(map(json.dumps, (good, bad))).encode()
    rows, dropped = imported(tmp_path, "a.jsonl", content, keep_columns=True)
    assert rows == [good]
    assert len(dropped) == 1


def test_a_column_that_is_not_there_is_a_mistake_of_the_mapping(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'questoin'.*'question'"):
        imported(tmp_path, "a.csv", CSV, prompt="{questoin}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"not json\n", "a.jsonl:1 is not JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1"),
        ("a.json", b"{", "is not JSON"),
        ("a.json", b"5", "neither a list of records nor an object"),
        ("a.json", b'"text"', "neither a list of records nor an object"),
        ("a.csv", b"a,b\n\xff,1\n", "cannot be read"),
        ("a.csv", b"prompt,answer\nx,1\ny, and z,2\n", r"a\.csv:3 has more cells than the header"),
        ("a.csv.gz", gzip.compress(CSV, mtime=0)[:10] + b"\xff" * 40, "cannot be read"),
        ("a.txt", b"a", "unknown format"),
        ("a.jsonl", b"", "None of the 0 records can be used"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(GymError, match=message):
        imported(tmp_path, name, content)
    assert not (tmp_path / "out.jsonl").exists()


READ = """
import re, sys
from pathlib import Path
from nemo_gym.data.records import RecordsError, read_records
try:
    print(sum(1 for _ in read_records(Path(sys.argv[1]))), "records")
except RecordsError as error:
    print(error)
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # maxrss counts that of the parent
"""


@pytest.mark.parametrize(
    ("name", "start", "repeated", "mb", "message"),
    [
        ("a.jsonl.gz", b'{"prompt": "', b"x" * 999 + b" ", 1200, "a.jsonl.gz:1 has more than 67108864 bytes"),
        ("a.csv.gz", b'prompt\n"', b"x" * 999 + b"\n", 1200, "field larger than field limit (67108864)"),
        ("a.jsonl.gz", b"", b" " * 99_999 + b"\n", 1200, "unpacks to more than 1073741824 bytes"),
        ("a.json.gz", b"[{}", b",{}", 30, "too many values"),
    ],
    ids=["a line", "a cell", "a file", "a document"],
)
def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    tmp_path: Path, name: str, start: bytes, repeated: bytes, mb: int, message: str
) -> None:
    block = repeated * (1_000_000 // len(repeated))
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(mb):
            file.write(block)
    done = subprocess.run([sys.executable, "-c", READ, tmp_path / name], capture_output=True, text=True, check=True)
    assert message in done.stdout
    assert int(done.stdout.split()[-1]) < 500_000, "peak kB"


def test_the_command_says_what_it_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    done = ng("ng_import", "+input_fpath=a.csv", "+output_jsonl_fpath=out.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 rows in out.jsonl" in done.stdout
    assert "1 dropped: an empty prompt (record 3)" in done.stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", 'prompt,answer\nhi,"open\n', r"a\.csv:2: unexpected end of data\. Is a quote missing\?"),
        ("a.csv", "prompt,answer\nhi\n", r"a\.csv:2 has fewer cells than the header"),
        ("a.csv", "prompt,prompt\nhi,ho\n", r"a\.csv:1 has several columns 'prompt'"),
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": "hi", "prompt": "ho"}\n', r"a\.jsonl:2 has the key 'prompt' twice"),
        ("a.json", '[{"prompt": "hi", "x": {"y": 1, "y": 2}}]', r"a\.json has the key 'y' twice"),
    ],
)
def test_what_would_lose_data_silently_is_an_error(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RecordsError, match=message):
        list(read_records(tmp_path / name))


def test_bad_rows_are_named_by_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n\n{}\n{}\n\n{}\n")
    assert line_numbers(file, {0, 1, 3}) == {0: 1, 1: 3, 3: 6}
    assert number_ranges([3, 4, 6], "line") == "lines 3-4, 6"
