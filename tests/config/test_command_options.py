import re
import traceback
from typing import Any, ClassVar, Literal

import pytest
from omegaconf import OmegaConf
from pydantic import Field, ValidationError

from nemo_gym.cli.command import parameters_of
from nemo_gym.cli.commands import COMMANDS
from nemo_gym.config.command_options import COMMON_OPTIONS, help_text, type_words
from nemo_gym.config.types import BaseNeMoGymCLIConfig, CommandConfig
from nemo_gym.errors import ConfigError


class CollectConfig(CommandConfig):
    """Collect rollouts.

    Examples:

    ```bash
    ng_collect +agent_name=a
    ```
    """

    agent_name: str
    """The agent that answers,
    by its name."""

    limit: int | None = None
    """How many rows."""

    num_repeats: int = Field(default=1, ge=1)
    """How many rollouts of each row."""

    params: dict[str, float] = Field(default_factory=dict)

    json_format: bool = Field(default=False, alias="json")


class NothingToSayConfig(BaseNeMoGymCLIConfig): ...


@pytest.mark.parametrize("data", [{"h": True}, {"help": "yes"}, {"h": True, "agent_name": "a", "num_repeats": -1}])
def test_help_is_printed_once_and_ends_the_command_well(
    data: dict[str, object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        CollectConfig.model_validate(data)
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "Collect rollouts.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  ng_collect +agent_name=a\n"
        "\n"
        "Parameters\n"
        "----------\n"
        "- agent_name (text)            The agent that answers, by its name. [required]\n"
        "- limit (whole number)         How many rows.\n"
        "- num_repeats (whole number)   How many rollouts of each row. [default: 1]\n"
        "- params (keys and values)\n"
        "- json (yes/no)                [default: no]\n"
        "\n"
    )
    assert text.count("Collect rollouts.") == 1
    assert all(option in text for option, _ in COMMON_OPTIONS)
    assert "Config" not in text


def test_help_of_a_command_without_parameters_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        NothingToSayConfig.model_validate(OmegaConf.create({"h": True}))
    assert capsys.readouterr().out.startswith("There are no arguments to this CLI command!\n")


@pytest.mark.parametrize("columns", [40, 70, 120])
def test_help_is_wrapped_to_the_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in COMMANDS.values():
        parameters = parameters_of(command.load())
        if parameters is not None:
            text = re.sub(r"(?s)Examples:.*?Parameters", "", help_text(parameters, f"ng_{command.name}"))
            long = [line for line in text.splitlines() if len(line) > columns and " " in line.strip("- ")]
            assert [line for line in long if not line.startswith(("- ", "Usage:"))] == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if parameters_of(COMMANDS[name].load())])
def test_help_and_reference_have_no_type_expressions(name: str) -> None:
    parameters = parameters_of(COMMANDS[name].load())
    assert parameters is not None
    text = help_text(parameters, f"ng_{name}")
    assert parameters.__name__ not in text
    types = [type_words(field.annotation, key) for key, field in parameters.model_fields.items()]
    assert [each for each in types if re.search(r"\bstr\b|\bint\b|\bNone\b|\[|\||Literal", each)] == []


@pytest.mark.parametrize(
    ("annotation", "name", "words"),
    [
        (str, "name", "text"),
        (str | None, "input_jsonl_fpath", "file"),
        (str, "output_dirpath", "folder"),
        (list[str] | None, "config_paths", "list of files"),
        (list[int], "turns", "list of whole numbers"),
        (bool, "check", "yes/no"),
        (int | Literal["auto"] | None, "num_workers", "whole number or auto"),
        (Literal["ask", "continue"], "resume", "one of ask, continue"),
        (int | dict[str, int], "num_repeats", "whole number or keys and values"),
        (Any, "value", "any value"),
    ],
)
def test_types_are_plain_words(annotation: Any, name: str, words: str) -> None:
    assert type_words(annotation, name) == words


def test_help_is_not_shown_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    CollectConfig.model_validate({"agent_name": "a", "h": False, "unknown": 1})
    assert capsys.readouterr().out == ""


def test_a_command_reads_only_its_own_keys_of_a_config() -> None:
    config = OmegaConf.create(
        {"agent_name": "${name}", "name": "a", "params": {"t": "${t}"}, "t": 0.5, "json": True, "other": "${unset}"}
    )
    command = CollectConfig.read(config)
    assert (command.agent_name, command.params, command.json_format) == ("a", {"t": 0.5}, True)
    assert type(command.params) is dict


def test_a_command_config_is_frozen() -> None:
    command = CollectConfig.read({"agent_name": "a"})
    with pytest.raises(ValidationError, match="frozen"):
        command.agent_name = "b"  # type: ignore[misc]


def test_missing_and_wrong_parameters_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        CollectConfig.read(OmegaConf.create({"num_repeats": 0, "limit": "many"}))
    message = str(caught.value)
    assert "- agent_name: Field required; found only: " in message
    assert re.search(r"- num_repeats: .*; found 0\.", message)
    assert re.search(r"- limit: .*integer", message)
    assert "found 'many'" in message
    assert "+name=value" in message


def test_an_unset_interpolation_names_the_parameter() -> None:
    with pytest.raises(ConfigError, match=r"'nme'.*agent_name is '\$\{nme\}'.* 'name'"):
        CollectConfig.read(OmegaConf.create({"agent_name": "${nme}", "name": "a"}))


def test_a_secret_is_not_repeated_in_an_error() -> None:
    class KeyConfig(CommandConfig):
        api_key: int

    secret = "-".join(("sk", "verysecret"))
    with pytest.raises(ConfigError) as caught:
        KeyConfig.read({"api_key": secret})
    assert secret not in "".join(traceback.format_exception(caught.value))
    assert "found '****'" in str(caught.value)


class PaintConfig(CommandConfig):
    POSITIONAL: ClassVar[tuple[str, ...]] = ("wall",)

    wall: str
    """What to paint, such as `north`."""


def test_a_missing_argument_is_named_with_its_meaning() -> None:
    with pytest.raises(ConfigError, match=r"<wall> .*: What to paint, such as `north`\."):
        PaintConfig.read({})
