import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.config.overrides import _parse_with_hydra, apply_overrides, parse_overrides
from nemo_gym.errors import ConfigError


def applied(arguments: list[str], config: dict[str, Any] | None = None, *, missing_ok: bool = False) -> Any:
    result = OmegaConf.create(config or {})
    apply_overrides(parse_overrides(arguments), result, missing_ok=missing_ok)
    return OmegaConf.to_container(result)


@pytest.mark.parametrize("prefix", ["", "+", "++"])
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
    ],
)
def test_values_follow_the_grammar_of_hydra(text: str, value: Any) -> None:
    assert applied([f"+key={text}"]) == {"key": value}


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
    ("argument", "message"),
    [
        ("~my_agnet", "Cannot apply '~my_agnet': there is no key 'my_agnet'. Did you mean 'my_agent'?"),
        ("~my_agent.x", "there is no key 'my_agent.x'"),
        ("~n=2", "Cannot apply '~n=2': 'n' has another value."),
        ("a=1,2", r"Found several values in 'a=1,2', expected one. A list is written 'a=\[a,b\]'."),
        ("word", "Invalid argument 'word': expected \\+key=value"),
        ("a=x=y", """Quote a value that has special characters: 'a="..."'"""),
        ("+a=[1", r"Invalid argument '\+a=\[1'"),
        ("=1", "expected a key"),
        ("a@b=1", "expected a key"),
        ("--agent_name=x", r"Found '--agent_name=x', expected no dashes: write \+agent_name=<value>."),
        ("l.7.x=1", "Cannot apply 'l.7.x=1': list index out of range."),
        ("l.first=1", "Cannot apply 'l.first=1': "),
    ],
)
def test_an_argument_that_cannot_be_used_says_why(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        applied([argument], {"my_agent": 1, "n": 1, "l": [1]})


@pytest.mark.parametrize("argument", ["+hf_token=abc=def", "a.api_key=abc=def,", "--password=abc=def", "key=abc=def"])
def test_a_secret_argument_is_not_repeated_in_an_error(argument: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overrides([argument])
    assert "abc" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "****" in str(caught.value)


def test_reading_the_command_line_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import logging, sys\n"
        "from nemo_gym.config.overrides import parse_overrides\n"
        "assert 'hydra' not in sys.modules\n"
        "parse_overrides(['+a=1'])\n"
        "assert not logging.getLogger().handlers\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


WORDS = st.from_regex(r"[A-Za-z_/0-9.:\-]{0,12}", fullmatch=True)
PLAIN_LOOKING = st.one_of(
    WORDS,
    st.lists(WORDS, max_size=3).map(lambda words: f"[{','.join(words)}]"),
    st.sampled_from(("True", "NULL", "-0")),
)


@given(key=st.from_regex(r"\+{0,2}[a-z_]{1,5}(\.[a-z0-9_]{1,4}){0,2}", fullmatch=True), value=PLAIN_LOOKING)
def test_plain_arguments_mean_what_hydra_reads(key: str, value: str) -> None:
    argument = f"{key}={value}"
    try:
        expected: object = _parse_with_hydra(argument)
    except ConfigError as error:
        expected = str(error)
    try:
        found: object = parse_overrides([argument])[0]
    except ConfigError as error:
        found = str(error)
    assert found == expected
