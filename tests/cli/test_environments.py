import json
import sys
from pathlib import Path

import pytest

from nemo_gym import cli
from nemo_gym.cli.environments import data_problems
from nemo_gym.testing import example_row

PASSES = "async def test_it() -> None: ...\n"
FAILS = "def test_it() -> None:\n    assert not 'this is meant to fail'\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with settings of its own, so that nobody's `env.yaml` takes part, and a pytest that starts
    faster."""
    (tmp_path / "env.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_asyncio.plugin")


def exit_code_of(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", [f"ng_{name}", *arguments])
    try:
        getattr(cli, name)()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def write_server(folder: Path, tests: str | None, *, rows: int = 5, readme: bool = True) -> None:
    """A server folder with this test file and so many example rows."""
    (folder / "tests").mkdir(parents=True)
    (folder / "app.py").touch()
    if tests is not None:
        (folder / "tests" / "test_app.py").write_text(tests)
    if readme:
        (folder / "README.md").touch()
    write_rows(folder, [json.dumps(example_row())] * rows)


def write_rows(folder: Path, lines: list[str]) -> Path:
    data = folder / "data"
    data.mkdir(exist_ok=True, parents=True)
    (data / "example.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return data


# ng_test


@pytest.mark.parametrize("name", ["good", "family/good"])
def test_passing_tests_may_import_the_folder_by_either_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"resources_servers.{name.replace('/', '.')}.app"
    imports = f"from {module} import __name__ as name\nfrom app import __name__ as alone\n"
    write_server(tmp_path / "resources_servers" / name, imports + PASSES, rows=0)
    assert exit_code_of(monkeypatch, "test", f"+entrypoint=resources_servers/{name}") == 0


def test_failing_tests_give_the_exit_code_of_pytest_and_the_command_to_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "responses_api_agents/bad"
    write_server(folder, FAILS)
    assert exit_code_of(monkeypatch, "test", "+entrypoint=responses_api_agents/bad") == 1
    captured = capfd.readouterr()
    assert "this is meant to fail" in captured.out
    assert f"cd {folder} && PYTHONPATH={tmp_path}" in captured.err


def test_bad_data_fails_if_it_is_to_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_server(tmp_path / "resources_servers/short", PASSES, rows=3)
    given_arguments = ("+entrypoint=resources_servers/short", "+should_validate_data=true")
    assert exit_code_of(monkeypatch, "test", *given_arguments) == 1
    assert "Found 3 rows" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("/resources_servers/a", "relative path of two parts"),
        ("resources_servers", "relative path of two parts"),
        ("resources_servers/..", "relative path of two parts"),
        ("resource_servers/a", "Did you mean 'resources_servers'?"),
        ("resources_servers/goood", "Did you mean"),
        ("resources_servers/file", "is a file"),
    ],
)
def test_an_entrypoint_that_is_none(
    entrypoint: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "resources_servers/good").mkdir(parents=True)
    (tmp_path / "resources_servers/file").touch()
    assert exit_code_of(monkeypatch, "test", f"+entrypoint={entrypoint}") == 2
    assert message in capsys.readouterr().err


# ng_test_all


def test_all_folders_are_tested_and_shown_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_server(tmp_path / "resources_servers/good", PASSES)
    write_server(tmp_path / "resources_servers/short", FAILS, rows=1)
    write_server(tmp_path / "responses_api_agents/untested", None)
    write_server(tmp_path / "responses_api_models/unfinished", FAILS, readme=False)
    assert exit_code_of(monkeypatch, "test_all") == 1
    report = capfd.readouterr().out.partition("Server  ")[2]
    outcomes = [line.split("  ") for line in report.splitlines()]
    table = {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()][:2] for cells in outcomes if cells[0]}
    assert table["resources_servers/good"] == ["passed", "valid"]
    assert table["resources_servers/short"] == ["failed", "invalid"]
    assert table["responses_api_agents/untested"] == ["no tests", "-"]
    assert table["responses_api_models/unfinished"] == ["skipped: no README.md"]
    assert "1 / 3 (33.33%)" in report
    assert "+should_validate_data=true\nFound 1 rows" in report


@pytest.mark.parametrize(("strict", "code"), [("false", 0), ("true", 1)])
def test_a_folder_passed_over_is_a_failure_only_on_demand(
    strict: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_server(tmp_path / "resources_servers/unfinished", None, readme=False)
    assert exit_code_of(monkeypatch, "test_all", f"+fail_on_total_and_test_mismatch={strict}") == code


# ng_dev_test


def test_the_tests_of_the_project_are_found_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = "-p pytest_asyncio.plugin -p pytest_cov --no-cov -W ignore --collect-only tests/cli/test_environments.py"
    monkeypatch.setenv("PYTEST_ADDOPTS", options)
    assert exit_code_of(monkeypatch, "dev_test") == 0
    assert "test_the_tests_of_the_project_are_found_from_anywhere" in capfd.readouterr().out


# Example data


def test_good_data_has_no_problems(tmp_path: Path) -> None:
    data = write_rows(tmp_path, [*[json.dumps(example_row(extra=1))] * 6, ""])
    (data / "example_metrics.json").write_text('{"Number of examples": 6}')
    (data / "example_rollouts.jsonl").write_text('{"reward": 1.0}\n' * 6)
    assert data_problems(tmp_path) == []


def test_a_folder_without_data(tmp_path: Path) -> None:
    (problem,) = data_problems(tmp_path)
    assert "No " in problem
    assert "expected at least 5 example rows" in problem


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 6: not valid JSON"),
        ("[]", "line 6: found a list, expected a JSON object"),
        ("{}", "responses_create_params: Field required"),
        ('{"responses_create_params": {"input": 3}}', "responses_create_params -> input"),
    ],
)
def test_a_row_that_is_none_is_named_by_its_line(line: str, message: str, tmp_path: Path) -> None:
    write_rows(tmp_path, [*[json.dumps(example_row())] * 5, line])
    (problem,) = data_problems(tmp_path)
    assert "example.jsonl, line 6" in problem
    assert message in problem


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("example_metrics.json", '{"Number of examples": 4}', "Found 4 as 'Number of examples'"),
        ("example_metrics.json", "{}", "Found None as 'Number of examples'"),
        ("example_metrics.json", "4", "expected a JSON object"),
        ("example_rollouts.jsonl", "{}\n", "Found 1 rollouts"),
        ("example_metrics_conflict.json", "{}", "expected no conflict"),
    ],
)
def test_what_goes_with_the_rows_has_to_fit_them(name: str, content: str, message: str, tmp_path: Path) -> None:
    data = write_rows(tmp_path, [json.dumps(example_row())] * 5)
    (data / name).write_text(content)
    (problem,) = data_problems(tmp_path)
    assert message in problem
    assert name in problem
