import pickle
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError

from nemo_gym.config.sources import UnsetKeyError, read_sources, resolve
from nemo_gym.errors import ConfigError


def test_values_are_plain_and_interpolations_are_followed() -> None:
    config = OmegaConf.create({"a": {"b": ["${c}", {"d": "x-${e}"}], "n": None}, "c": {"k": 1}, "e": "${f}", "f": 2})
    values = resolve(config)
    assert values["a"] == {"b": [{"k": 1}, {"d": "x-2"}], "n": None}
    assert type(values["a"]["b"][0]) is dict
    assert resolve(config, ("a", "b", 1, "d")) == "x-2"


def error_of(config: dict[str, Any], *arguments: str) -> ConfigError:
    sources = read_sources(arguments, initial=config, use_dotenv=False)
    with pytest.raises(ConfigError) as caught:
        resolve(sources.merge(), sources=sources)
    return caught.value


def test_an_unset_key_names_who_uses_it_and_the_nearest_key() -> None:
    error = error_of({"policy_base_ulr": "x", "model": {"list": [{"base_url": "http://${policy_base_url}"}]}})
    message = str(error)
    assert "'policy_base_url' not found" in message
    assert "model.list.0.base_url (in the config passed in from Python) is 'http://${policy_base_url}'" in message
    assert "env.yaml" in message
    assert "+policy_base_url=<value>" in message
    assert message.endswith("'policy_base_ulr'?")
    assert isinstance(error, InterpolationKeyError)


def test_an_unset_key_behind_another_is_the_one_that_is_named() -> None:
    message = str(error_of({"b": "${c}"}, "~b", "a=${b}", "b=${c}"))
    assert "'c' not found: a (in the command line) is '${b}'." in message


def test_a_secret_around_an_unset_key_is_not_shown() -> None:
    message = str(error_of({"api_key": "sk-abc${unset}", "x": 1}))
    assert "sk-abc" not in message
    assert "is '${unset}'" in message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"a": {"b": "???"}}, r"^a\.b \(in .*\) is required: it is '\?\?\?'. Write \+a\.b=<value>\.$"),
        ({"a": "${oc.env:NOT_A_VARIABLE}"}, "^a .* is '.*': KeyError raised .*'NOT_A_VARIABLE' not found"),
        ({"a": "${no_such_resolver:1}"}, "^a .* is '.*': Unsupported interpolation type no_such_resolver"),
        ({"a": "${b}", "b": "${a}"}, "^a .* is '.*': Recursive interpolation detected"),
        (
            {"a": {"x": "${b}", "y": "${b}"}, "b": {"z": ["${a}"]}},
            r"^b\.z\.0 .*: it refers to a value that contains it",
        ),
    ],
)
def test_what_cannot_be_resolved_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        raise error_of(config)


def test_the_error_survives_pickling() -> None:
    error = error_of({"a": "${b}"})
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (UnsetKeyError, str(error))
