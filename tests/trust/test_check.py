"""Verifiers are tried with made-up answers: planted defects are found, sound verifiers are not accused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.gold import Gold, guessed_golds
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import TRANSPORTS, Transport, example_row, rows_of, running_servers, server_spec
from nemo_gym.trust.check import Checked, CheckVerifierConfig, try_verifier
from nemo_gym.trust.report import TrustReport
from resources_servers.example_stateful_counter.app import StatefulCounterResourcesServer
from tests.commands import free_port, ng
from tests.jsonl import write_lines

SERVERS = Path(__file__).parent.parent / "servers"
MODEL = "responses_api_models/scripted_model/configs/scripted_model.yaml"
MCQA = "resources_servers/mcqa/configs/mcqa.yaml"
MCQA_ROWS = "resources_servers/mcqa/data/example.jsonl"
COUNTER_ROWS = "resources_servers/example_stateful_counter/data/example.jsonl"


def mcqa() -> ServerSpec:
    return server_spec("env", "resources_servers", "mcqa", domain="knowledge")


def local(name: str) -> ServerSpec:
    return server_spec("env", "resources_servers", name, folder=SERVERS / "resources_servers" / name, domain="other")


async def report_of(
    server: ServerSpec, rows: list[dict[str, Any]], *, transport: Transport = "direct", golds_of: Any = guessed_golds
) -> TrustReport:
    async with running_servers([server], transport=transport) as client:
        config = CheckVerifierConfig(max_probes=150)
        return await try_verifier(config, client, Checked("env", rows, golds_of))


def kinds_found(report: TrustReport) -> set[str]:
    return {finding.kind for finding in report.findings()}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_right_letter_scores_full_and_nothing_near_it_does(transport: Transport) -> None:
    report = await report_of(mcqa(), rows_of(MCQA_ROWS)[:3], transport=transport)
    assert (report.rows, report.rows_with_gold, report.trivial_rows) == (3, 3, 0)
    assert (report.false_negative_rate, report.false_positive_rate) == (0.0, 0.0)
    assert report.kinds["gold"].full_rows == {0, 1, 2}
    assert list(report.findings()) == []
    assert 0 < (report.latency_ms(50) or 0) <= (report.latency_ms(99) or 0)


async def test_a_verifier_that_rewards_everything_does_not_discriminate() -> None:
    weather = server_spec("env", "resources_servers", "example_simple_weather", domain="agent")
    report = await report_of(weather, [example_row(expected_answer="cold")])
    assert not report.discriminates
    assert report.false_negative_rate == 0.0
    assert report.false_positive_rate is None


async def test_a_verifier_that_wavers_is_caught() -> None:
    report = await report_of(local("wavering"), [example_row()])
    assert "varied" in kinds_found(report)


async def test_a_verifier_that_crashes_is_reported_with_its_cause() -> None:
    report = await report_of(local("unsure"), [example_row(way="crash", expected_answer="4")])
    assert report.failed["gold"]["verifier"] > 0
    assert "failed" in kinds_found(report)
    assert "no idea" in report.messages["gold"]


async def test_right_answers_that_are_rejected_are_false_negatives_but_rejected_guesses_no_evidence() -> None:
    row = {**rows_of(MCQA_ROWS)[0], "expected_answer": "AB"}
    report = await report_of(mcqa(), [row])
    assert report.false_negative_rate is None
    assert any("no form of the expected answers" in what for what in report.not_done)
    report = await report_of(mcqa(), [{**rows_of(MCQA_ROWS)[0], "gold_response": "I do not know."}])
    assert report.false_negative_rate == 1.0
    assert "gold" in kinds_found(report)


async def test_tool_calls_bring_the_environment_to_its_state() -> None:
    counter = server_spec("env", "resources_servers", "example_stateful_counter", domain="agent")

    def golds_of(row: dict[str, Any]) -> list[Gold]:
        return [Gold(StatefulCounterResourcesServer.gold_response(row))]

    report = await report_of(counter, rows_of(COUNTER_ROWS), golds_of=golds_of)
    assert report.rows_with_gold == report.rows == 5
    assert (report.false_negative_rate, report.false_positive_rate, report.failed) == (0.0, 0.0, {})


@pytest.mark.parametrize("expected", [None, "", " ", True, ["a"], {}])
def test_a_row_without_a_plain_expected_answer_has_no_guessed_gold(expected: Any) -> None:
    assert guessed_golds(example_row(expected_answer=expected)) == []


def test_an_expected_answer_in_the_metadata_is_found() -> None:
    assert [gold.bare for gold in guessed_golds(example_row(metadata={"expected_answer": 4}))] == ["4"] * 5


def check(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    done = ng("ng", "trust", "+max_probes=120", *arguments, f"+head_server.port={free_port()}", cwd=cwd, timeout_s=120)
    return done.returncode, done.stdout, done.stderr


def test_the_command_takes_the_examples_of_the_environment_and_writes_metrics(tmp_path: Path) -> None:
    code, shown, said = check(f"+config_paths=[{MCQA},{MODEL}]", "+limit=1", "+output_fpath=out/v.json", cwd=tmp_path)
    assert code == 0, said
    assert shown.splitlines()[1].split()[:5] == ["mcqa", "1", "1", "0.0%", "0.0%"]
    [stats] = json.loads((tmp_path / "out/v.json").read_text())
    assert (stats["environment"], stats["discriminates"], stats["false_negative_rate"]) == ("mcqa", True, 0.0)
    assert stats["kinds"]["gold"]["expected"] == "right"
    assert (stats["false_negatives"]["errors"], stats["false_negatives"]["trials"]) == (0, 1)


def test_the_command_fails_for_a_verifier_that_wavers(tmp_path: Path) -> None:
    config = {"env": {"resources_servers": {"wavering": {"entrypoint": "app.py", "domain": "other"}}}}
    (tmp_path / "wavering.yaml").write_text(json.dumps(config))
    write_lines(tmp_path / "rows.jsonl", [example_row()])
    arguments = (f"+config_paths=[{tmp_path}/wavering.yaml]", f"+input_jsonl_fpath={tmp_path}/rows.jsonl")
    code, shown, _ = check(*arguments, cwd=SERVERS)
    assert code == 1
    assert re.search("env: FOUND: does not give the same reward twice", shown)


@pytest.mark.parametrize(("most", "code"), [("0.0", 1), ("1.0", 0)])
def test_false_positives_fail_the_command_only_with_the_option(tmp_path: Path, most: str, code: int) -> None:
    row = {**rows_of(MCQA_ROWS)[0], "expected_answer": "D"}
    row["responses_create_params"] = {"input": r"Say \boxed{D}."}
    write_lines(tmp_path / "rows.jsonl", [row])
    arguments = (
        f"+config_paths=[{MCQA},{MODEL}]",
        "+input_jsonl_fpath=rows.jsonl",
        f"+max_false_positive_rate={most}",
    )
    found, shown, _ = check(*arguments, cwd=tmp_path)
    assert found == code
    assert re.search("mcqa: echoed_prompt .* in 1 of 1 rows", shown)


@pytest.mark.parametrize(
    ("arguments", "message_part"),
    [
        (("+resources_server=mcqq",), "Did you mean 'mcqa'"),
        (("+input_jsonl_fpath=nowhere.jsonl",), "nowhere.jsonl"),
        (("+input_jsonl_fpath=broken.jsonl",), "broken.jsonl:1"),
    ],
)
def test_what_is_not_there_is_wrong_usage(tmp_path: Path, arguments: tuple[str, ...], message_part: str) -> None:
    write_lines(tmp_path / "broken.jsonl", [{"question": "Which?"}])
    code, _, said = check(f"+config_paths=[{MCQA},{MODEL}]", *arguments, cwd=tmp_path)
    assert code == 2
    assert message_part in said


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_row_without_tools_is_checked_with_those_of_its_environment(transport: Transport) -> None:
    counter = server_spec("env", "resources_servers", "example_stateful_counter", domain="agent")
    row = example_row("Add 2.", initial_count=3, expected_count=5)
    assert "tools" not in row["responses_create_params"]

    def golds_of(row: dict[str, Any]) -> list[Gold]:
        return [Gold(StatefulCounterResourcesServer.gold_response(row))]

    report = await report_of(counter, [row], transport=transport, golds_of=golds_of)
    assert (report.rows_with_gold, report.false_negative_rate) == (1, 0.0)
    without = {**row, "responses_create_params": {**row["responses_create_params"], "tools": []}}
    assert (await report_of(counter, [without], transport=transport, golds_of=golds_of)).false_negative_rate == 1.0
