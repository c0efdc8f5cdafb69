"""The one grammar of command lines."""

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import Field

from nemo_gym.cli.environments import InitAgentConfig, InitResourcesServerConfig
from nemo_gym.cli.environments import TestConfig as FolderTestConfig
from nemo_gym.config.command_line import (
    Override,
    parse_command_line,
    process_command_line,
    quoted,
    read_value,
    read_with_hydra,
    running_command,
    shown_arguments,
)
from nemo_gym.config.sources import apply_overrides
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError


class Options(CommandConfig):
    POSITIONAL: ClassVar[tuple[str, ...]] = ("name",)
    SHORT_OPTIONS: ClassVar[dict[str, str]] = {"n": "limit"}

    name: str = ""
    limit: int | None = None
    threshold: float = 0.0
    check: bool = False
    config_paths: list[str] | None = None
    sizes: list[int] = Field(default=[])
    workers: int | Literal["auto"] | None = None
    resume: Literal["ask", "continue"] = "ask"
    prompt: str | None = None
    fields: dict[str, Any] = Field(default={})


def applied(arguments: list[str], config: dict[str, Any] | None = None, *, missing_ok: bool = False) -> Any:
    """The configuration after the arguments of a program without parameters."""
    result = OmegaConf.create(config or {})
    apply_overrides(parse_command_line(arguments).overrides, result, missing_ok=missing_ok)
    return OmegaConf.to_container(result)


def values(*arguments: str) -> dict[str, object]:
    config = OmegaConf.create()
    apply_overrides(parse_command_line(arguments, Options).overrides, config)
    return Options.read(config).model_dump(exclude_unset=True)


# Parameters


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
        (["--config-paths=[a.yaml]"], {"config_paths": ["a.yaml"]}),
        (["--resume", "continue", "+limit=3"], {"resume": "continue", "limit": 3}),
        (["--", "-n"], {"name": "-n"}),
        (["+fields.a=1", "--fields.b", "x"], {"fields": {"a": 1, "b": "x"}}),
    ],
)
def test_options_are_read(arguments: list[str], expected: dict[str, object]) -> None:
    assert values(*arguments) == expected


def forms(key: str, text: str) -> list[tuple[str, ...]]:
    return [(f"--{key.replace('_', '-')}", text), (f"--{key}={text}",), (f"+{key}={text}",), (f"{key}={text}",)]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("name", "007", "007"),
        ("name", "7", "7"),
        ("name", "true", "true"),
        ("name", "null", "null"),
        ("name", "Hello, world: a < b", "Hello, world: a < b"),
        ("name", "'quoted'", "quoted"),
        ("name", "it's", "it's"),
        ("name", "http://host/v1?a=b", "http://host/v1?a=b"),
        ("prompt", "null", None),
        ("limit", "4", 4),
        ("limit", "null", None),
        ("config_paths", "a.yaml,b c.yaml", ["a.yaml", "b c.yaml"]),
        ("config_paths", "['a,b.yaml']", ["a,b.yaml"]),
        ("sizes", "1,2", [1, 2]),
        ("sizes", "[1,2]", [1, 2]),
        ("workers", "auto", "auto"),
        ("workers", "4", 4),
        ("check", "yes", True),
        ("fields", "{a:1,b:[x]}", {"a": 1, "b": ["x"]}),
    ],
)
def test_all_forms_of_a_parameter_mean_the_same(key: str, text: str, value: object) -> None:
    for arguments in forms(key, text):
        assert values(*arguments) == {key: value}, arguments


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@given(TEXTS)
def test_all_forms_mean_the_same_for_any_text(text: str) -> None:
    _, *others = [parse_command_line(arguments, Options).overrides for arguments in forms("name", text)]
    assert others == [others[0]] * len(others)
    assert [each.value for each in others[0]] == [quoted_value(text)]


def quoted_value(text: str) -> str:
    """What a text parameter has: the text itself, unless it is in Hydra's quotes or has Hydra's escapes."""
    if text[0] not in "'\"" and "\\" not in text:
        return text
    value = read_value(text, frozenset((str,)))
    assert isinstance(value, str)
    return value


@given(TEXTS)
def test_quoting_keeps_any_text(text: str) -> None:
    config = OmegaConf.create()
    apply_overrides(parse_command_line([f"+name={quoted(text)}"], Options).overrides, config)
    assert config.name == text


@pytest.mark.parametrize("kind", [InitResourcesServerConfig, InitAgentConfig, FolderTestConfig])
def test_a_server_folder_needs_no_name(kind: type[CommandConfig]) -> None:
    line = parse_command_line(["resources_servers/mine"], kind)
    assert line.overrides == (Override("entrypoint", "resources_servers/mine"),)


def test_every_command_has_the_common_options() -> None:
    line = parse_command_line(["-v", "--json", "--log-format", "json", "--limit", "3"], Options)
    assert (line.is_verbose, line.is_quiet, line.wants_json, line.log_format) == (True, False, True, "json")
    assert line.overrides == (Override("limit", 3),)


def test_words_are_kept_for_a_command_that_takes_them() -> None:
    assert parse_command_line(["words", "--", "eval", "--model"], takes_words=True).words == (
        *("words", "eval", "--model"),
    )


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--limt", "3"], ["'--limt'", "Did you mean '--limit'?"]),
        (["--limit"], ["'--limit' needs a value", "--limit <value>"]),
        (["--limit", "--check"], ["'--limit' needs a value"]),
        (["--no-open"], ["'--no-open' is not an option", "needs a value"]),
        (["--top-p", "0.9"], ["'--top-p' is not an option", "--responses_create_params.top_p <value>"]),
        (["mcqa", "calendar"], ["Unexpected argument 'calendar'", "<name>"]),
        (["mcqa", "-x"], ["Unexpected argument '-x'", "--name value"]),
        (["+word"], ["Invalid argument '+word'", "+key=value"]),
    ],
)
def test_a_mistake_names_its_remedy(arguments: list[str], facts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_command_line(arguments, Options)
    assert all(fact in str(raised.value) for fact in facts), raised.value


def test_the_running_command_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "--a", "1"])
    line = parse_command_line(["mcqa"], Options)
    with running_command(line):
        assert process_command_line() is line
    assert process_command_line().overrides == (Override("a", 1),)


# Keys of the configuration


@pytest.mark.parametrize("prefix", ["", "+", "++", "--"])
def test_a_key_is_set_whether_it_was_there_or_not(prefix: str) -> None:
    assert applied([f"{prefix}a.b=2"], {"a": {"b": 1, "c": 3}}) == {"a": {"b": 2, "c": 3}}
    assert applied([f"{prefix}a.b=2"]) == {"a": {"b": 2}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 0.001),
        ("true", True),
        ("null", None),
        ("", ""),
        ("word", "word"),
        ("'quoted, text=1'", "quoted, text=1"),
        ('"1"', "1"),
        ("[x,1,null]", ["x", 1, None]),
        ("{k:v,n:{m:2}}", {"k": "v", "n": {"m": 2}}),
        ("/path/to-a/file_1.yaml", "/path/to-a/file_1.yaml"),
        ("http://host:80/v1", "http://host:80/v1"),
        ("${other}", "${other}"),
        ("a\\,b", "a,b"),
        ("x=y", "x=y"),
        ("Hello, world", "Hello, world"),
    ],
)
def test_values_follow_the_grammar_of_hydra_and_all_else_is_text(text: str, value: Any) -> None:
    for arguments in forms("key_of_config", text):
        assert applied(list(arguments)) == {"key_of_config": value}, arguments


def test_keys_that_are_named_like_text_have_text() -> None:
    given = ["--policy_api_key", "0123", "+policy_model_name=42", "+policy_base_url=[http://a/v1,http://b/v1]"]
    assert applied(given) == {
        "policy_api_key": "0123",
        "policy_model_name": "42",
        "policy_base_url": ["http://a/v1", "http://b/v1"],
    }


def test_a_mapping_is_merged_and_a_list_replaced() -> None:
    assert applied(["a={c:2}", "l=[3]"], {"a": {"b": 1}, "l": [1, 2]}) == {"a": {"b": 1, "c": 2}, "l": [3]}


def test_an_item_of_a_list_is_set_by_its_number() -> None:
    assert applied(["l.1.x=5"], {"l": [{"x": 1}, {"x": 2}]}) == {"l": [{"x": 1}, {"x": 5}]}


def test_arguments_are_applied_in_order() -> None:
    assert applied(["~a", "+a.c=1"], {"a": {"b": 1}}) == {"a": {"c": 1}}
    assert applied(["+a.c=1", "~a"], {"a": {"b": 1}}) == {}


@pytest.mark.parametrize(
    ("argument", "left"),
    [
        ("~a", {"l": [1, 2]}),
        ("~a.b", {"a": {"c": None}, "l": [1, 2]}),
        ("~a.b=1", {"a": {"c": None}, "l": [1, 2]}),
        ("~a.c=null", {"a": {"b": 1}, "l": [1, 2]}),
        ("~l.0", {"a": {"b": 1, "c": None}, "l": [2]}),
    ],
)
def test_a_key_is_deleted(argument: str, left: Any) -> None:
    assert applied([argument], {"a": {"b": 1, "c": None}, "l": [1, 2]}) == left


def test_deleting_what_is_not_there_can_be_allowed() -> None:
    assert applied(["~b", "~a.x.y"], {"a": 1}, missing_ok=True) == {"a": 1}


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_usual_help_flags_ask_for_help(flag: str) -> None:
    assert applied([flag]) == {"help": True}


@pytest.mark.parametrize(
    ("argument", "facts"),
    [
        ("~my_agnet", ["'~my_agnet'", "no key 'my_agnet'", "Did you mean 'my_agent'?"]),
        ("~my_agent.x", ["no key 'my_agent.x'"]),
        ("~n=2", ["'~n=2'", "another value"]),
        ("word", ["'word'", "+name=value"]),
        ("+a=[1", ["'+a=[1'", "Quote"]),
        ("+a={b", ["'+a={b'", "Quote"]),
        ("+=1", ["'+=1'", "+key=value"]),
        ("+a@b=1", ["'+a@b=1'", "+key=value"]),
        ("l.7.x=1", ["'l.7.x=1'", "out of range"]),
        ("l.first=1", ["'l.first=1'"]),
    ],
)
def test_an_argument_that_cannot_be_used_says_why(argument: str, facts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        applied([argument], {"my_agent": 1, "n": 1, "l": [1]})
    assert all(fact in str(raised.value) for fact in facts), raised.value


@pytest.mark.parametrize(
    "arguments", [["+hf_token=[abc"], ["a.api_key=[abc"], ["--password", "[abc"], ["--password=[abc"], ["~key=[abc"]]
)
def test_a_secret_argument_is_not_repeated_in_an_error(arguments: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_command_line(arguments)
    assert "abc" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "****" in str(caught.value)


def test_a_command_line_is_shown_without_secrets() -> None:
    given = ["mcqa", "--policy-api-key", "short", "--policy-base-url", "http://x/v1", "+hf_token=x", "-n", "4"]
    shown = ["mcqa", "--policy-api-key", "****", "--policy-base-url", "http://x/v1", "+hf_token=****", "-n", "4"]
    assert shown_arguments(given) == shown


def test_reading_the_command_line_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import logging, sys\n"
        "from nemo_gym.config.command_line import parse_command_line\n"
        "parse_command_line(['+a=1', '--b', 'c/d.yaml', '+config_paths=[a.yaml,b.yaml]'])\n"
        "assert not {'hydra', 'omegaconf', 'pydantic'} & set(sys.modules)\n"
        "assert not logging.getLogger().handlers\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


WORDS = st.from_regex(r"[A-Za-z_/0-9.:\-]{0,12}", fullmatch=True)
PLAIN_LOOKING = st.one_of(
    WORDS,
    st.lists(WORDS, max_size=3).map(lambda words: f"[{','.join(words)}]"),
    st.sampled_from(("True", "NULL", "-0", "[nan,inf]")),
)


@given(PLAIN_LOOKING)
def test_plain_values_mean_what_hydra_reads(text: str) -> None:
    try:
        expected = read_with_hydra(text)
    except ValueError:
        if text.startswith("["):
            with pytest.raises(ValueError, match="grammar"):
                read_value(text, frozenset())
            return
        expected = text
    found = read_value(text, frozenset())
    assert (repr(found), type(found)) == (repr(expected), type(expected))
