from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.config.secrets import MASK, is_secret, mask_text, masked, secret_values


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
    }
    assert masked(config) == {
        "keys": [{"api_key": MASK}, {"api_key": MASK, "name": "kept"}],
        "api_keys": [MASK, [MASK]],
        "credentials": {"user": MASK, "more": [{"value": MASK}], "valid": True},
        "max_tokens": 3,
    }


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
    assert secret_values(config) == {"hf_abcdef", "secret-by-use"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pass@host:80/a", f"http://me:{MASK}@host:80/a"),
        ("http://me:p@ss@host", f"http://me:{MASK}@host"),
        ("postgres://:pass@host", f"postgres://:{MASK}@host"),
        ("see http://a:b@c and http://d:e@f", f"see http://a:{MASK}@c and http://d:{MASK}@f"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        ("http://h/?api_key=x&page=2#t", f"http://h/?api_key={MASK}&page=2#t"),
        ("http://h/?max_tokens_shown=", "http://h/?max_tokens_shown="),
    ],
)
def test_secrets_in_urls_are_masked(text: str, shown: str) -> None:
    assert mask_text(text) == shown


def test_a_longer_secret_is_replaced_before_a_part_of_it() -> None:
    assert mask_text("abcdef-123456", ["abcdef", "abcdef-123456"]) == MASK


def test_a_config_that_goes_round_in_a_circle_can_be_masked() -> None:
    config = OmegaConf.create({"a": {"x": "${b}", "api_key": "abcdef"}, "b": {"y": "${a}", "z": ["${a}"]}})
    shown = {"a": {"x": "${b}", "api_key": MASK}, "b": {"y": "${a}", "z": ["${a}"]}}
    assert OmegaConf.to_container(masked(config)) == shown


WORDS = st.text(alphabet="abcdef", min_size=1, max_size=4)
CONFIGS = st.recursive(
    WORDS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=10,
)


@given(config=CONFIGS, secret=st.text(alphabet="xyz0123456789", min_size=6), before=WORDS, after=WORDS)
def test_no_secret_survives(config: Any, secret: str, before: str, after: str) -> None:
    whole = {"rest": config, "list": [{"api_key": secret}], "text": before + secret + after}
    shown = masked(whole)
    assert secret not in repr(shown)
    assert masked(shown) == shown
    assert shown["rest"] == config
