"""`ng_prepare_data` as users run it."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from nemo_gym.testing import rows_of
from tests.commands import BIN
from tests.data.conftest import NgHere
from tests.data.datasets import Ended, dataset, row, write_config, write_rows
from tests.stacks import agent_config


class Prepare(Protocol):
    def __call__(self, *arguments: str, mode: str = "train_preparation") -> Ended: ...


@pytest.fixture
def prepare(ng_here: NgHere) -> Prepare:
    def prepare(*arguments: str, mode: str = "train_preparation") -> Ended:
        return ng_here(
            "ng_prepare_data", "+config_paths=[config.yaml]", "+output_dirpath=out", f"+mode={mode}", *arguments
        )

    return prepare


def test_rows_get_their_agent_and_go_into_one_file_a_type(tmp_path: Path, prepare: Prepare) -> None:
    write_rows(tmp_path / "a.jsonl", [row("a", n=1), row("b", n=2)])
    write_rows(tmp_path / "b.jsonl", [row("c", agent_ref={"name": "other"}), row("d")])
    write_rows(tmp_path / "v.jsonl", [row("v")])
    datasets = [dataset("a.jsonl", num_repeats=2), dataset("v.jsonl", "validation")]
    write_config(tmp_path / "config.yaml", one=datasets, two=[dataset("b.jsonl"), dataset("missing.jsonl", "example")])
    done = prepare()
    assert done.returncode == 0, done.stderr
    train, validation = rows_of(tmp_path / "out/train.jsonl"), rows_of(tmp_path / "out/validation.jsonl")
    texts = [each["responses_create_params"]["input"][0]["content"] for each in train]
    agents = [each["agent_ref"] for each in train]
    assert texts == ["a", "a", "b", "b", "c", "d"]
    assert agents == [{"type": "responses_api_agents", "name": name} for name in ("one",) * 4 + ("two",) * 2]
    assert [list(each)[-1] for each in train + validation] == ["agent_ref"] * 7
    assert rows_of(tmp_path / "a_prepare.jsonl") == train[:4]
    assert json.loads((tmp_path / "out/train_metrics.json").read_text())["Number of examples"] == 6
    saved = json.loads((tmp_path / "a_metrics.json").read_text())
    assert list(saved)[:4] == ["name", "type", "jsonl_fpath", "num_repeats"]
    assert "View your final data!" in done.stdout
    assert "#" * 100 in done.stdout


def test_example_mode_wants_the_example_datasets_alone(tmp_path: Path, prepare: Prepare) -> None:
    write_rows(tmp_path / "e.jsonl", [row("a")])
    write_config(tmp_path / "config.yaml", one=[dataset("missing.jsonl"), dataset("e.jsonl", "example")])
    assert prepare(mode="example_validation").returncode == 0
    assert len(rows_of(tmp_path / "out/example.jsonl")) == 1


def test_a_benchmark_is_prepared_with_its_prompt(tmp_path: Path, prepare: Prepare) -> None:
    asked = [{"question": f"What is {number}?", "responses_create_params": {"temperature": 0.5}} for number in (1, 2)]
    write_rows(tmp_path / "b.jsonl", asked)
    (tmp_path / "ask.yaml").write_text("user: 'Please: {question}'\n")
    benchmark = {**dataset("b.jsonl", "benchmark"), "prompt_config": "ask.yaml", "prepare_script": "prepare.py"}
    write_config(tmp_path / "config.yaml", one=[benchmark])
    done = prepare()
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "out/benchmark.jsonl")
    assert [each["responses_create_params"]["input"][0]["content"] for each in rows] == [
        "Please: What is 1?",
        "Please: What is 2?",
    ]
    assert json.loads((tmp_path / "b_metrics.json").read_text())["Number of examples"] == 2
    (tmp_path / "wrong.yaml").write_text("user: '{answer}'\n")
    write_config(tmp_path / "config.yaml", one=[{**benchmark, "prompt_config": "wrong.yaml"}])
    done = prepare()
    assert done.returncode == 2
    assert "does not fit its rows" in done.stderr
    (tmp_path / "b.jsonl").unlink()
    assert "ng_prepare_benchmark" in prepare("+should_download=true").stderr


def test_only_the_slice_is_used(tmp_path: Path, prepare: Prepare) -> None:
    write_rows(tmp_path / "a.jsonl", [row(f"{n}", n=n) for n in range(10)])
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl", start_idx=3, end_idx=7)])
    assert prepare().returncode == 0
    assert [each["n"] for each in rows_of(tmp_path / "out/train.jsonl")] == [3, 4, 5, 6]
    assert json.loads((tmp_path / "a_metrics.json").read_text())["start_idx"] == 3


def test_missing_files_are_reported_before_any_work(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "bad.jsonl").write_text("not json\n")
    write_config(tmp_path / "config.yaml", one=[dataset("bad.jsonl"), dataset("gone.jsonl", "validation")])
    done = prepare()
    assert done.returncode != 0
    assert "`+should_download=true`" in done.stderr
    assert "gone.jsonl" in done.stderr
    assert "MISSING: 1\n- gone.jsonl" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "config.yaml"]


def test_an_output_folder_that_is_a_file_is_an_error(tmp_path: Path, prepare: Prepare) -> None:
    write_rows(tmp_path / "a.jsonl", [row("a")])
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl")])
    (tmp_path / "out").touch()
    done = prepare()
    assert done.returncode == 1
    assert "Cannot create the folder out" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_examples_have_to_be_provided(tmp_path: Path, prepare: Prepare) -> None:
    write_config(tmp_path / "config.yaml", one=[dataset("gone.jsonl", "example")])
    done = prepare("+should_download=true", mode="example_validation")
    assert "gone.jsonl" in done.stderr
    assert done.returncode != 0


GOOD = json.dumps(row("fine")).encode()
BAD_FILE = b"\n".join(
    [
        *(GOOD, b"not json", b"[]", b"{}", b'{"responses_create_params": {"input": "\xff"}}', b"", GOOD),
        *(b'{"responses_create_params": {"input": "x"}, "a": 1, "a": 1}', b"not json", b"not json"),
        b'{"responses_create_params": {"input": "' + b"x" * 2**21 + b'"}}',
        b'{"responses_create_params": {"input": "x", "temperature": "hot"}}',
        GOOD[:-5],
    ]
)


def test_every_kind_of_bad_row_is_listed_and_nothing_is_collated(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "a.jsonl").write_bytes(BAD_FILE)
    (tmp_path / "empty.jsonl").write_bytes(b"\n")
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl"), dataset("empty.jsonl", "validation")])
    done = prepare("+max_row_mb=1")
    assert done.returncode == 1, done.stderr
    for words in (
        "lines 2, 9-10: not valid JSON",
        "line 3: found a list, expected a JSON object",
        "line 4: responses_create_params: Field required",
        "line 5: not valid UTF-8",
        "line 8: the key 'a' occurs twice in one object",
        "line 11: longer than 1048576 bytes",
        "line 12: responses_create_params -> temperature",
        "line 13: not valid JSON",
        "empty.jsonl: no rows",
    ):
        assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/train.jsonl").exists()
    assert not (tmp_path / "a_metrics.json").exists()


def test_a_line_of_100_mb_is_listed_and_never_in_memory(tmp_path: Path, prepare: Prepare) -> None:
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.write(b'{"responses_create_params": {"input": "')
        for _ in range(100):
            file.write(b"x" * 2**20)
        file.write(b'"}}\n' + GOOD)
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl")])
    done = prepare()
    assert done.returncode == 1
    assert "line 1: longer than 67108864 bytes" in done.stderr


def test_bad_rows_can_be_left_out(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "a.jsonl").write_bytes(BAD_FILE)
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl", num_repeats=3)])
    done = prepare("+max_row_mb=1", "+drop_offending=true")
    assert done.returncode == 0, done.stderr
    assert "Left out: " in done.stderr
    assert len(rows_of(tmp_path / "out/train.jsonl")) == 6
    assert json.loads((tmp_path / "out/train_metrics.json").read_text())["Number of examples"] == 6


def test_blank_lines_and_line_breaks_of_windows_do_no_harm(tmp_path: Path, prepare: Prepare) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([GOOD, b"   ", b"", GOOD + b"\r", b" " + GOOD, b"\t"]))
    (tmp_path / "b.jsonl").write_bytes(b"\n" + GOOD + b"\n\n" + GOOD)
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl"), dataset("b.jsonl")])
    assert prepare().returncode == 0
    rows = rows_of(tmp_path / "out/train.jsonl")
    assert rows == [{**row("fine"), "agent_ref": {"type": "responses_api_agents", "name": "one"}}] * 5


def test_sampling_parameters_are_measured_however_they_are_written(tmp_path: Path, prepare: Prepare) -> None:
    values: list[dict[str, Any]] = [
        {"temperature": "0.5", "top_p": 1},
        {"temperature": 1.5, "max_output_tokens": "7"},
        {"temperature": None},
    ]
    write_rows(
        tmp_path / "a.jsonl", [{"responses_create_params": {"input": f"{n}", **each}} for n, each in enumerate(values)]
    )
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl")])
    done = prepare()
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "a_metrics.json").read_text())
    assert (metrics["Temperature"]["Average"], metrics["Temperature"]["Total # non-null values"]) == (1.0, 2)
    assert (metrics["Top p"]["Average"], metrics["Max output tokens"]["Max"]) == (1.0, 7.0)


def test_statistics_that_contradict_the_data_are_reported_and_kept(tmp_path: Path, prepare: Prepare) -> None:
    write_rows(tmp_path / "a.jsonl", [row("a"), row("b")])
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl")])
    assert prepare().returncode == 0
    before = (tmp_path / "a_metrics.json").read_text()
    write_rows(tmp_path / "a.jsonl", [row("a"), row("b"), row("c")])
    done = prepare()
    assert done.returncode == 1
    assert "a_metrics.json" in done.stderr
    assert "Number of examples: was 2, is 3" in done.stderr
    assert (tmp_path / "a_metrics.json").read_text() == before
    assert json.loads((tmp_path / "a_metrics_conflict.json").read_text())["Number of examples"] == 3
    assert len(rows_of(tmp_path / "out/train.jsonl")) == 2
    assert prepare("+overwrite_metrics_conflicts=true").returncode == 0
    assert not (tmp_path / "a_metrics_conflict.json").exists()
    assert len(rows_of(tmp_path / "out/train.jsonl")) == 3


def test_duplicates_and_overlap_are_reported(tmp_path: Path, prepare: Prepare) -> None:
    long = "The quick brown fox jumps over the lazy dog while a hundred curious cats watch from the old stone wall "
    train = [row(long + "today."), row("What is 2 + 3?"), row("What is 2 + 3?"), row(long + "Today!")]
    write_rows(tmp_path / "t.jsonl", train)
    write_rows(tmp_path / "v.jsonl", [row("What is 2 + 3?"), row(long + "again."), row("Something else entirely?")])
    write_config(tmp_path / "config.yaml", one=[dataset("t.jsonl"), dataset("v.jsonl", "validation")])
    done = prepare()
    assert "in train: 1 equal" in done.stdout
    assert f"- {tmp_path / 't.jsonl'}:3 repeats {tmp_path / 't.jsonl'}:2" in done.stdout
    assert "in train: 1 nearly equal" in done.stdout
    assert "validation and train: 1 equal" in done.stdout
    assert "validation and train: 1 nearly equal" in done.stdout
    assert f"- {tmp_path / 'v.jsonl'}:2 repeats {tmp_path / 't.jsonl'}" in done.stdout


def test_two_agents_can_use_the_same_file(tmp_path: Path, prepare: Prepare) -> None:
    write_rows(tmp_path / "a.jsonl", [row("a")])
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl")], two=[dataset("a.jsonl")])
    assert prepare().returncode == 0
    agents = [each["agent_ref"]["name"] for each in rows_of(tmp_path / "out/train.jsonl")]
    assert agents == ["one", "two"]
    assert prepare().returncode == 0


def test_the_bytes_are_the_same_on_any_number_of_processes(tmp_path: Path, prepare: Prepare) -> None:
    write_rows(tmp_path / "a.jsonl", [row("word " * 400 + str(n), n=n / 7) for n in range(5000)])
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl")])
    results = []
    for count in (1, 2):
        done = prepare(f"+num_processes={count}", "+near_duplicates=false")
        assert done.returncode == 0, done.stderr
        files = [tmp_path / "a_metrics.json", *sorted((tmp_path / "out").iterdir())]
        results.append([path.read_bytes() for path in files])
    assert results[0] == results[1]


def final_files(folder: Path) -> list[Path]:
    names = ("train.jsonl", "train_metrics.json", "a_metrics.json", "a_prepare.jsonl")
    return [path for name in names for path in (folder / name, folder / "out" / name) if path.exists()]


@pytest.mark.parametrize("moment", range(6))
def test_killed_at_any_moment_no_half_file_has_a_final_name(tmp_path: Path, moment: int) -> None:
    count = 5_000
    write_rows(tmp_path / "a.jsonl", [row("word " * 40 + str(n), n=n) for n in range(count)])
    write_config(tmp_path / "config.yaml", one=[dataset("a.jsonl")])
    signs: list[Any] = [
        (tmp_path / "out").exists,
        (tmp_path / "a_metrics.json").exists,
        lambda: list(tmp_path.glob(".a_prepare.jsonl*.part")),
        (tmp_path / "a_prepare.jsonl").exists,
        lambda: list((tmp_path / "out").glob(".train.jsonl*.part")),
        (tmp_path / "out" / "train.jsonl").exists,
    ]
    command = [str(BIN / "ng_prepare_data"), "+config_paths=[config.yaml]", "+output_dirpath=out"]
    command += ["+mode=train_preparation", "+near_duplicates=false", "+count_tokens=false"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        while not signs[moment]() and process.poll() is None:
            time.sleep(0.001)
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        for child in family:
            child.wait(60)
    for path in final_files(tmp_path):
        if path.suffix == ".json":
            assert json.loads(path.read_text())["Number of examples"] == count
        else:
            assert len(rows_of(path)) == count


def test_rows_that_their_environment_cannot_score_are_listed_with_their_lines(
    tmp_path: Path, prepare: Prepare
) -> None:
    options = [{"A": "one"}, {"B": "two"}]
    rows = [row("a", options=options, expected_answer=letter) for letter in ("A", "C", "B", "C")]
    write_rows(tmp_path / "a.jsonl", [*rows, row("b", options=options, expected_answer="A", grading_mode="harsh")])
    config = json.loads(agent_config("mcqa"))
    config["agent"]["responses_api_agents"]["simple_agent"]["datasets"] = [dataset("a.jsonl")]
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    done = prepare()
    assert done.returncode == 1
    assert "lines 2, 4: expected_answer 'C'" in done.stderr
    assert "line 5: grading_mode" in done.stderr
    done = prepare("+drop_offending=true")
    assert done.returncode == 0, done.stderr
    assert [each["expected_answer"] for each in rows_of(tmp_path / "out/train.jsonl")] == ["A", "B"]


@pytest.mark.parametrize("should_use_judge", [False, True])
def test_gold_answers_that_math_verify_cannot_parse_are_listed_unless_there_is_a_judge(
    tmp_path: Path, prepare: Prepare, should_use_judge: bool
) -> None:
    golds = ["4", "???", r"x^2 \le 4", "4 +", r"\frac{1}{2}"]
    write_rows(tmp_path / "a.jsonl", [row(gold, question="How much?", expected_answer=gold) for gold in golds])
    config = json.loads(agent_config("math_with_judge"))
    config["agent"]["responses_api_agents"]["simple_agent"]["datasets"] = [dataset("a.jsonl")]
    judge = {"judge_model_server": {"type": "responses_api_models", "name": "policy_model"}}
    config["math_with_judge"]["resources_servers"]["math_with_judge"] |= {
        "should_use_judge": should_use_judge,
        **judge,
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    done = prepare()
    assert done.returncode == (0 if should_use_judge else 1)
    assert should_use_judge or "line 2: math-verify cannot parse expected_answer: '???'" in done.stderr
    assert should_use_judge or "line 4: math-verify cannot parse" in done.stderr
    done = prepare("+drop_offending=true")
    kept = [each["expected_answer"] for each in rows_of(tmp_path / "out/train.jsonl")]
    assert kept == [gold for gold in golds if should_use_judge or gold not in ("???", "4 +")]


def test_rows_of_an_environment_that_cannot_be_imported_are_not_checked_by_it(
    tmp_path: Path, prepare: Prepare, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "resources_servers" / "elsewhere"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("import no_such_package\n")
    write_rows(tmp_path / "a.jsonl", [row("a")])
    config = json.loads(agent_config("elsewhere"))
    config["agent"]["responses_api_agents"]["simple_agent"]["datasets"] = [dataset("a.jsonl")]
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    done = prepare()
    assert done.returncode == 0, done.stderr
    assert "'elsewhere'" in caplog.text
    assert "no_such_package" in caplog.text
