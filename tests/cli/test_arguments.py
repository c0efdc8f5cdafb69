"""The usual style of options, beside Hydra's."""

import logging
import os
import subprocess
from pathlib import Path
from typing import ClassVar, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.cli.arguments import read_arguments
from nemo_gym.cli.init import InitAgentConfig, InitResourcesServerConfig
from nemo_gym.cli.tests import TestConfig as FolderTestConfig
from nemo_gym.common.logging import JsonFormatter
from nemo_gym.common.redaction import Redactor, process_redactor, set_process_redactor
from nemo_gym.config.overrides import apply_overrides, parse_overrides
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError
from tests.commands import BIN, ng


class Options(CommandConfig):
    POSITIONAL: ClassVar[tuple[str, ...]] = ("name",)
    SHORT_OPTIONS: ClassVar[dict[str, str]] = {"n": "limit"}

    name: str = ""
    limit: int | None = None
    threshold: float = 0.0
    check: bool = False
    config_paths: list[str] | None = None
    resume: Literal["ask", "continue"] = "ask"


def values(*arguments: str) -> dict[str, object]:
    config = OmegaConf.create()
    apply_overrides(parse_overrides(read_arguments(arguments, Options).overrides), config)
    return Options.read(config).model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["mcqa", "-n", "4"], {"name": "mcqa", "limit": 4}),
        (["-n4", "mcqa"], {"name": "mcqa", "limit": 4}),
        (["--limit", "4", "--check"], {"limit": 4, "check": True}),
        (["--limit=4", "--no-check"], {"limit": 4, "check": False}),
        (["--check", "false"], {"check": False}),
        (["--check", "mcqa"], {"check": True, "name": "mcqa"}),
        (["--threshold", "-0.5"], {"threshold": -0.5}),
        (["--config-paths", "a.yaml,b c.yaml"], {"config_paths": ["a.yaml", "b c.yaml"]}),
        (["--config-paths=[a.yaml]"], {"config_paths": ["a.yaml"]}),
        (["--resume", "continue", "+limit=3"], {"resume": "continue", "limit": 3}),
        (["--name", "007"], {"name": "007"}),
        (["--name", "true"], {"name": "true"}),
        (["--", "-n"], {"name": "-n"}),
    ],
)
def test_options_are_read(arguments: list[str], expected: dict[str, object]) -> None:
    assert values(*arguments) == expected


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_any_text_is_passed_on_as_it_is(text: str) -> None:
    assert values(f"--name={text}")["name"] == text


def test_settings_of_servers_are_options_too() -> None:
    given = ("--policy_api_key", "0123", "--policy_model.responses_api_models.x.max_steps", "5", "--flags", "[1,2]")
    config = OmegaConf.create()
    apply_overrides(parse_overrides(read_arguments(given, Options).overrides), config)
    assert OmegaConf.to_container(config) == {
        "policy_api_key": "0123",
        "policy_model": {"responses_api_models": {"x": {"max_steps": 5}}},
        "flags": [1, 2],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limt", "3"], "'--limt' is not an option of this command. Did you mean '--limit'?"),
        (["--limit"], "'--limit' needs a value: --limit <value>."),
        (
            ["--no-open"],
            "'--no-open' is not an option of this command, and a configuration's key needs a value: "
            "--no-open <value>.",
        ),
        (["--limit", "--check"], "'--limit' needs a value: --limit <value>."),
        (["mcqa", "calendar"], "Unexpected argument 'calendar'. Expected at most: <name>."),
        (["mcqa", "-x"], "Unexpected argument '-x'. Write --name value."),
    ],
)
def test_a_mistake_names_its_remedy(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_arguments(arguments, Options)
    assert str(raised.value) == message


def test_every_command_has_the_common_options() -> None:
    read = read_arguments(["-v", "--json", "--log-format", "json", "--limit", "3"], Options)
    assert (read.common.is_verbose, read.common.is_quiet, read.common.wants_json) == (True, False, True)
    assert (read.common.log_format, read.overrides) == ("json", ["+limit=3"])


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


def test_a_sampling_parameter_says_where_it_belongs() -> None:
    """As a key of the configuration it would have no effect."""
    with pytest.raises(ConfigError, match=r"'--top-p' is not .* Write --responses_create_params\.top_p <value>\."):
        read_arguments(["--top-p", "0.9"], Options)


@pytest.mark.parametrize("kind", [InitResourcesServerConfig, InitAgentConfig, FolderTestConfig])
def test_a_server_folder_needs_no_name(kind: type[CommandConfig]) -> None:
    assert read_arguments(["resources_servers/mine"], kind).overrides == ["+entrypoint=resources_servers/mine"]
