import importlib
import logging
import os
import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from pydantic import Field

from nemo_gym.cli.command import command, parameters_of, read_command_line, read_parameters
from nemo_gym.compat import global_config
from nemo_gym.config.keys import SETTINGS_KEYS
from nemo_gym.config.types import CommandConfig, GlobalKeys
from nemo_gym.errors import ConfigError, GymError, MissingPathError, StartupError


class PaintConfig(CommandConfig):
    """Paint something."""

    colour: str
    """Which colour."""

    num_layers: int = 1
    json_format: bool = Field(default=False, alias="json")


@command(PaintConfig)
def paint() -> None:
    """Paint."""
    parameters = read_parameters(PaintConfig)
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
    assert output.startswith("Displaying help for PaintConfig\n")
    assert output.count("Paint something.") == 1


def test_a_configuration_that_a_program_has_set_takes_the_place_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_arguments(monkeypatch, "+colour=red", "--help")
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", OmegaConf.create({"colour": "blue"}))
    paint()
    assert capsys.readouterr().out == "blue 1\n"
    assert read_command_line() == {"colour": "blue"}


def test_a_missing_parameter_is_told_without_a_traceback(
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
    @command()
    def fail() -> None:
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
    @command()
    def fail() -> None:
        raise error

    set_arguments(monkeypatch)
    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error


def test_an_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    @command()
    def wait() -> None:
        raise KeyboardInterrupt

    set_arguments(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        wait()
    assert ended.value.code == 130


def test_a_returned_code_is_the_exit_code_and_zero_just_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter([0, 5])

    @command()
    def work() -> int:
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
    assert caplog.messages == [
        f"'{key}' is not a parameter of this command. Did you mean '{right}'?" for key, right in meant.items()
    ]


def test_all_settings_are_known_to_the_search_for_typos() -> None:
    for module in ("server.limits", "client.settings", "runtime.tracing", "runtime.venvs", "analysis.profiling"):
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
    @command()
    def fail() -> None:
        raise BrokenPipeError

    set_arguments(monkeypatch)
    with capfd.disabled(), pytest.raises(BrokenPipeError):
        fail()
