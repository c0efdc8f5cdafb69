"""Which values are secret, and that none of them is shown."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.cli.command import parameters_of
from nemo_gym.cli.commands import COMMANDS
from nemo_gym.common.redaction import Redactor, redact
from nemo_gym.config.loading import dump, load_config
from nemo_gym.config.secrets import (
    MASK,
    Secrets,
    find_secrets,
    is_public,
    is_secret,
    masked,
)
from nemo_gym.errors import ConfigError


def loaded(tmp_path: Path, dotenv: str, *arguments: str) -> Any:
    (tmp_path / "env.yaml").write_text(dotenv)
    return load_config(arguments, dotenv_path=tmp_path / "env.yaml")


@pytest.mark.parametrize(
    ("key", "value", "secret"),
    [
        ("token", "abc", True),
        ("hf_token", "abc", True),
        ("accessToken", "abc", True),
        ("api_tokens", "abc", True),
        ("policy_api_key", "abc", True),
        ("OPENAI_API_KEY", "abc", True),
        ("apikey", "abc", True),
        ("X-API-Key", "abc", True),
        ("apiKeys", "abc", True),
        ("key", "abc", True),
        ("private_key", "abc", True),
        ("client_secret", "abc", True),
        ("password", 123456, True),
        ("credentials", "abc", True),
        ("Authorization", "Bearer abc", True),
        ("Proxy-Authorization", "Basic abc", True),
        ("Cookie", "session=abc", True),
        ("Set-Cookie", "session=abc", True),
        ("cookies", "session=abc", True),
        ("cookie_max_age", 3600, False),
        ("cookie_domain", "example.com", False),
        ("a.b.api_key", "abc", True),
        ("api_key", "", False),
        ("api_key", None, False),
        ("use_api_key", True, False),
        ("max_tokens", 512, False),
        ("max_output_tokens", 1.5, False),
        ("return_token_id_information", True, False),
        ("answer_key", 3, False),
        ("tokenizer", "Qwen/Qwen3", False),
        ("tokenizer_name", "Qwen/Qwen3", False),
        ("tokens_output", "runs/1/tokens.arrow", False),
        ("send_tokens", "last", False),
        ("detokenize", "yes", False),
        ("eos_token", "</s>", False),
        ("stop_token", "</s>", False),
        ("keyboard", "qwerty", False),
        ("monkey", "abc", False),
        ("keys_file", "abc", False),
        ("name", "token", False),
    ],
)
def test_the_name_of_a_key_makes_a_value_secret(key: str, value: Any, secret: bool) -> None:
    assert is_secret(key, value) is secret


def test_masking_goes_into_mappings_and_lists() -> None:
    config = {
        "keys": [{"api_key": "one"}, {"api_key": "two", "name": "kept"}],
        "api_keys": ["three", ["four"]],
        "credentials": {"user": "me", "more": [{"value": "five"}], "valid": True},
        "max_tokens": 3,
        "tokens": {"password": 123456, "limit": 5},
    }
    assert masked(config) == {
        "keys": [{"api_key": MASK}, {"api_key": MASK, "name": "kept"}],
        "api_keys": [MASK, [MASK]],
        "credentials": {"user": MASK, "more": [{"value": MASK}], "valid": True},
        "max_tokens": 3,
        "tokens": {"password": MASK, "limit": 5},
    }


def test_headers_that_authenticate_are_masked_wherever_they_are() -> None:
    secret = {
        "Cookie": "session=abc123def",
        "Set-Cookie": "a=b",
        "X-API-Key": "k",
        "Proxy-Authorization": "Basic eA==",
    }
    config = {"model": {"responses_api_models": {"m": {"default_headers": {**secret, "X-Team": "red"}}}}}
    shown = masked({**config, "text": "it sent session=abc123def"})
    headers = shown["model"]["responses_api_models"]["m"]["default_headers"]
    assert headers == {**dict.fromkeys(secret, MASK), "X-Team": "red"}
    assert shown["text"] == f"it sent {MASK}"


def test_a_server_named_like_a_secret_is_shown() -> None:
    config = {"secret_word": {"resources_servers": {"secret_word": {"entrypoint": "app.py", "password": "x"}}}}
    shown = {"secret_word": {"resources_servers": {"secret_word": {"entrypoint": "app.py", "password": MASK}}}}
    assert masked(config) == shown


def test_a_secret_is_replaced_wherever_else_it_appears() -> None:
    config = OmegaConf.create(
        {
            "hf_token": "hf_abcdef",
            "url": "https://x.org/hf_abcdef/data",
            "interpolated": "Bearer ${hf_token}",
            "lines": ["a hf_abcdef b"],
            "plain_name": "secret-by-use",
            "server": {"api_key": "${plain_name}", "unset": "${nowhere}"},
            "short_key": "abc",
            "alphabet": "abcdef",
        }
    )
    assert OmegaConf.to_container(masked(config)) == {
        "hf_token": MASK,
        "url": f"https://x.org/{MASK}/data",
        "interpolated": "Bearer ${hf_token}",
        "lines": [f"a {MASK} b"],
        "plain_name": MASK,
        "server": {"api_key": MASK, "unset": "${nowhere}"},
        "short_key": MASK,
        "alphabet": "abcdef",
    }
    assert config.hf_token == "hf_abcdef"


def test_a_config_with_circular_interpolations_can_be_masked() -> None:
    config = OmegaConf.create({"a": {"x": "${b}", "api_key": "abcdef"}, "b": {"y": "${a}", "z": ["${a}"]}})
    shown = {"a": {"x": "${b}", "api_key": MASK}, "b": {"y": "${a}", "z": ["${a}"]}}
    assert OmegaConf.to_container(masked(config)) == shown


DOTENV = """
foo: hunter2-long-secret
nested: {deep: [{odd: "another-long-secret"}, "listed-long-secret"]}
letter: q
numbers: 12345678
flag: true
from_environment: ${oc.env:NEMO_GYM_TEST_VALUE}
policy_base_url: https://someone:url-password-1@models.example.com/v1?sig=0123456789abcdef&api-version=2024-10-21
policy_api_key: k
policy_model_name: my-model-8b
my_files: []
agent_name: my_simple_agent
"""


def test_text_from_env_yaml_is_secret_whatever_its_key_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_TEST_VALUE", "value-of-a-variable")
    loaded(tmp_path, DOTENV)
    secrets = ("hunter2-long-secret", "another-long-secret", "listed-long-secret", "value-of-a-variable")
    for secret in (*secrets, "url-password-1", "0123456789abcdef"):
        assert redact(f"before {secret} after") == f"before {MASK} after"


def test_names_numbers_and_short_values_are_not_replaced_in_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMO_GYM_TEST_VALUE", "value-of-a-variable")
    loaded(tmp_path, DOTENV)
    text = (
        "my-model-8b my_simple_agent models.example.com 12345678 True quick key 2024-10-21 https://models.example.com"
    )
    assert redact(text) == text


def test_a_dump_hides_values_of_env_yaml_by_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_TEST_VALUE", "value-of-a-variable")
    config = loaded(tmp_path, DOTENV, "+same=q", "+used.here=${letter}", "+used.inside='<${letter}>'", "+text=quick")
    shown: Any = OmegaConf.create(dump(config))
    assert shown.used == {"here": MASK, "inside": MASK}
    assert (shown.letter, shown.policy_api_key, shown.foo) == (MASK, MASK, MASK)
    assert (shown.same, shown.text) == ("q", "quick")
    assert (shown.numbers, shown.flag, shown.policy_model_name) == (12345678, True, "my-model-8b")
    assert shown.policy_base_url == f"https://{MASK}@models.example.com/v1?sig={MASK}&api-version={MASK}"
    assert config.letter == "q"


def test_a_value_that_is_used_where_it_is_harmless_is_shown(tmp_path: Path) -> None:
    (tmp_path / "servers.yaml").write_text("greeting: hello\n")
    files = f"my_files: [{tmp_path}/servers.yaml]\nmodel: some-model-name\npolicy_model_name: ${{model}}\n"
    config = loaded(tmp_path, files, "+config_paths=${my_files}")
    assert redact(f"{tmp_path}/servers.yaml some-model-name") == f"{tmp_path}/servers.yaml some-model-name"
    assert OmegaConf.create(dump(config)).policy_model_name == "some-model-name"


def test_an_error_while_loading_does_not_show_a_value_of_env_yaml(tmp_path: Path) -> None:
    dotenv = "foo: hunter2-long-secret\nshort: q\n"
    for argument in ("port_range_low=${foo}", "port_range_low=${short}", "+x=${nowhere}${foo}"):
        with pytest.raises(ConfigError) as error:
            dump(loaded(tmp_path, dotenv, argument))
        assert "hunter2" not in redact(str(error.value))
        assert "'q'" not in redact(str(error.value))


@pytest.mark.parametrize(
    ("url", "echoed", "secret"),
    [
        ("https://h/v1?route=abcd1234", "/v1/responses?route=abcd1234", "abcd1234"),
        ("https://h/v1?sig=abcd+efghijklmnop==", "/v1/responses?sig=abcd+efghijklmnop==", "efghijkl"),
        ("https://h/v1?sig=abcd%2Fefghijklmnop", "sig: abcd/efghijklmnop", "efghijkl"),
        ("https://someone:p%40ssword99@h/v1", "Basic " + b64encode(b"someone:p@ssword99").decode(), "Nzd29yZDk5"),
        ("https://someone:p%40ssword99@h/v1", "the password is p@ssword99", "ssword99"),
    ],
)
def test_user_info_and_query_of_a_url_are_secret_in_any_spelling(url: str, echoed: str, secret: str) -> None:
    assert secret in echoed
    assert secret not in Redactor(find_secrets({"policy_base_url": url}).values).text(echoed)


def test_secrets_reach_another_process_as_json() -> None:
    secrets = Secrets(frozenset(("one", "two")), frozenset((("a", 0), ("b",))))
    assert Secrets.from_json(secrets.to_json()) == secrets


def test_the_text_parameters_of_all_commands_may_be_in_env_yaml_and_still_be_shown() -> None:
    kinds = [parameters_of(command.load()) for command in COMMANDS.values()]
    fields = [(field.alias or name, field) for kind in kinds if kind for name, field in kind.model_fields.items()]
    texts = {name for name, field in fields if any(word in str(field.annotation) for word in ("str", "Literal"))}
    unlisted = {name for name in texts if not is_public((name,)) and not is_secret(name, "text")}
    assert not unlisted, f"add {sorted(unlisted)} to PUBLIC_KEYS in nemo_gym/config/secrets.py, if not secret"


WORDS = st.text(alphabet="abcdef", min_size=1, max_size=4)
CONFIGS = st.recursive(
    WORDS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=10,
)


@given(config=CONFIGS, secret=st.text(alphabet="xyz0123456789", min_size=8), before=WORDS, after=WORDS)
def test_no_secret_survives(config: Any, secret: str, before: str, after: str) -> None:
    whole = {"rest": config, "list": [{"api_key": secret}], "text": before + secret + after}
    shown = masked(whole)
    assert secret not in repr(shown)
    assert masked(shown) == shown
    assert shown["rest"] == config


@given(dotenv=CONFIGS, secret=st.text(alphabet="xyz0123456789 /\"'\\\n", min_size=8).map(str.strip))
def test_text_anywhere_in_env_yaml_is_found(dotenv: Any, secret: str) -> None:
    values = {"foo": {"bar": [dotenv, secret]}}
    found = find_secrets(OmegaConf.create(values), values)
    assert secret in found.values or not secret
    assert (("foo", "bar", 1) in found.positions) is (0 < len(secret) < 8)


def test_an_interpolation_of_a_word_does_not_make_it_public() -> None:
    dotenv = {"team": "research"}
    config = OmegaConf.create({**dotenv, "env": {"resources_servers": {"env": {"note": "${team}"}}}})
    assert find_secrets(config, dotenv).values == {"research"}


@pytest.mark.parametrize(
    ("dotenv", "mode", "is_warned"),
    [
        ("policy_api_key: sk-secret-123", 0o644, True),
        ("policy_api_key: sk-secret-123", 0o600, False),
        ("policy_api_key: sk-secret-123", 0o640, False),
        ("policy_model_name: gpt-4.1", 0o644, False),
    ],
)
def test_secrets_in_a_file_that_everybody_can_read_bring_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dotenv: str, mode: int, is_warned: bool
) -> None:
    (tmp_path / "env.yaml").touch(mode=0o600)
    (tmp_path / "env.yaml").chmod(mode)
    loaded(tmp_path, dotenv)
    assert ("chmod 600" in caplog.text) is is_warned
