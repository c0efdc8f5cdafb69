import importlib
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from nemo_gym.cli.command import (
    command,
    config_command,
    json_output,
    parameters_of,
    print_result,
    word_command,
)
from nemo_gym.common.logging import JsonFormatter
from nemo_gym.common.redaction import Redactor, process_redactor, set_process_redactor
from nemo_gym.compat import global_config
from nemo_gym.config.keys import SETTINGS_KEYS
from nemo_gym.config.secrets import Secrets, set_process_secrets
from nemo_gym.config.types import CommandConfig, GlobalKeys
from nemo_gym.errors import ConfigError, GymError, MissingPathError, StartupError
from tests.commands import BIN, ng


class PaintConfig(CommandConfig):
    """Paint something."""

    colour: str
    """Which colour."""

    num_layers: int = 1
    json_format: bool = Field(default=False, alias="json")


class EmptyConfig(CommandConfig):
    """No parameters."""


@command(PaintConfig)
def paint(parameters: PaintConfig) -> None:
    """Paint."""
    print(parameters.colour, parameters.num_layers)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with settings of its own, so that nobody's `env.yaml` takes part."""
    monkeypatch.chdir(str(tmp_path))
    with open("env.yaml", "w") as settings:
        settings.write("num_layers: 2\n")


def set_arguments(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["paint", *arguments])


def test_parameters_come_from_the_command_line_and_from_env_yaml(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_arguments(monkeypatch, "+colour=red")
    paint()
    assert capsys.readouterr().out == "red 2\n"


@pytest.mark.parametrize("flag", ["-h", "--help", "+h=true", "++help=True", "h=1"])
def test_help_needs_no_other_argument(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_arguments(monkeypatch, "not an argument", flag)
    with pytest.raises(SystemExit) as ended:
        paint()
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert output.startswith("Usage: paint [--name value ...]\n")
    assert "PaintConfig" not in output
    assert output.count("Paint something.") == 1


def test_a_configuration_that_a_program_has_set_takes_the_place_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_arguments(monkeypatch, "+colour=red", "--help")
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", OmegaConf.create({"colour": "blue"}))
    paint()
    assert capsys.readouterr().out == "blue 1\n"


@pytest.mark.parametrize("checked", [False, True])
def test_a_command_can_have_the_whole_configuration(
    checked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chosen(given: DictConfig) -> dict[str, Any]:
        return {"wall": f"{given.wall}-{given.num_layers}", "colour": "white"}

    def fill_in(config: DictConfig) -> None:
        config["num_layers"] = 3

    @config_command(PaintConfig, checked=checked, initial=chosen, complete=fill_in)
    def paint_wall(options: PaintConfig, config: DictConfig) -> None:
        print(options.colour, options.num_layers, config.wall, "head_server" in config)

    set_arguments(monkeypatch, "--colour", "red")
    with open("env.yaml", "a") as settings:
        settings.write("wall: north\n")
    paint_wall()
    assert capsys.readouterr().out == f"red 3 north-2 {checked}\n"


def test_a_missing_parameter_is_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_arguments(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        paint()
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "colour: Field required" in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no good"), 2),
        (MissingPathError("no good"), 2),
        (GymError("no good"), 1),
        (StartupError("no good"), 1),
        (ExceptionGroup("several", [ConfigError("no good"), ExceptionGroup("inner", [ConfigError("no good")])]), 2),
        (ExceptionGroup("several", [ConfigError("no good"), GymError("no good")]), 1),
    ],
)
def test_what_we_raise_on_purpose_becomes_one_message_and_an_exit_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @command(EmptyConfig)
    def fail(_options: EmptyConfig) -> None:
        raise error

    set_arguments(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        fail()
    assert ended.value.code == code
    assert capsys.readouterr().err == "no good\n"


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), ExceptionGroup("several", [ConfigError("no good"), ValueError("a bug")])]
)
def test_a_bug_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    @command(EmptyConfig)
    def fail(_options: EmptyConfig) -> None:
        raise error

    set_arguments(monkeypatch)
    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error


def test_an_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    @command(EmptyConfig)
    def wait(_options: EmptyConfig) -> None:
        raise KeyboardInterrupt

    set_arguments(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        wait()
    assert ended.value.code == 130


def test_a_returned_code_is_the_exit_code_and_zero_just_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter([0, 5])

    @command(EmptyConfig)
    def work(_options: EmptyConfig) -> int:
        return next(codes)

    set_arguments(monkeypatch)
    work()
    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 5


def test_a_word_that_is_nearly_a_parameter_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    typos = ("+num_layer=3", "++profiling_enable=true", "+head_sever.port=1")
    set_arguments(monkeypatch, "+colour=red", "+policy_model.seed=1", "+policy_api_key=k", *typos)
    with caplog.at_level(logging.WARNING):
        paint()
    meant = {"num_layer": "num_layers", "profiling_enable": "profiling_enabled", "head_sever": "head_server"}
    assert [re.findall(r"'(\w+)'", message) for message in caplog.messages] == [list(pair) for pair in meant.items()]


def test_all_settings_are_known_to_the_search_for_typos() -> None:
    for module in (
        "server.request_checks",
        "client.connection",
        "runtime.tracing",
        "runtime.venvs",
        "analysis.cpu_profile",
    ):
        importlib.import_module(f"nemo_gym.{module}")
    assert {name for kind in GlobalKeys.__subclasses__() for name in kind.model_fields} <= SETTINGS_KEYS


def test_a_command_knows_its_parameters() -> None:
    assert parameters_of(paint) is PaintConfig


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    program = "from nemo_gym.cli import main; main()"
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as output:
        done = subprocess.run([sys.executable, "-c", program], stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_another_broken_pipe_is_an_error(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    @command(EmptyConfig)
    def fail(_options: EmptyConfig) -> None:
        raise BrokenPipeError

    set_arguments(monkeypatch)
    with capfd.disabled(), pytest.raises(BrokenPipeError):
        fail()


def test_a_command_of_words_takes_no_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @word_command
    def say(words: list[str]) -> None:
        print(*words)

    set_arguments(monkeypatch, "a", "--", "--b")
    say()
    assert capsys.readouterr().out == "a --b\n"
    set_arguments(monkeypatch, "--b", "c")
    with pytest.raises(SystemExit) as ended:
        say()
    assert ended.value.code == 2


def test_a_json_log_line_has_no_secret_and_no_line_break() -> None:
    before = process_redactor()
    set_process_redactor(Redactor(["very-secret-value"]))
    try:
        record = logging.makeLogRecord({"name": "a", "levelname": "INFO", "msg": "key very-secret-value\nforged"})
        line = JsonFormatter().format(record)
    finally:
        set_process_redactor(before)
    assert "\n" not in line
    fields = orjson.loads(line)
    assert (fields["level"], fields["logger"], fields["message"]) == ("info", "a", "key ****\nforged")


def test_json_is_one_document_also_for_an_error(tmp_path: Path) -> None:
    done = ng("ng", "version", "--json", cwd=tmp_path)
    assert orjson.loads(done.stdout)["nemo_gym"]
    failed = ng("ng", "dump_config", "--config-paths", "none.yaml", "--json", cwd=tmp_path)
    document = orjson.loads(failed.stdout)
    assert failed.returncode == document["exit_code"] == 2
    assert document["error"].startswith("No config file 'none.yaml'")


def test_an_invalid_log_setting_is_a_message(tmp_path: Path) -> None:
    for variable, message in (
        ("NEMO_GYM_LOG_LEVEL", "expected one of debug, info"),
        ("NEMO_GYM_LOG_FORMAT", "expected text or json"),
    ):
        done = subprocess.run(
            [str(BIN / "ng_version")], cwd=tmp_path, env={**os.environ, variable: "loud"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr


def test_a_document_has_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    set_process_secrets(Secrets(frozenset(("pineapple",))))
    with json_output() as ended:
        print_result({"a pineapple": ["pineapple 7"], "mean": 0.5})
        ended.error = "no pineapple"
    document = json.loads(capsys.readouterr().out)
    assert document == {"a ****": ["**** 7"], "mean": 0.5, "error": "no ****", "exit_code": 0}
