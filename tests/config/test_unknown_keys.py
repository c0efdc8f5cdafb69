"""A key that a server does not know is never ignored silently."""

import logging
from typing import Any

import pytest
from pydantic import BaseModel, Field

from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.config.validation import drop_unknown_keys
from nemo_gym.config_types import ModelServerRef
from nemo_gym.errors import ConfigError

PATH = ("env", "resources_servers", "env")
BASE: dict[str, Any] = {"name": "env", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}


class Limits(BaseModel):
    max_calls: int = 3


class OurConfig(BaseResourcesServerConfig, extra="forbid"):
    timeout_s: float = 1.0
    judge_model_server: ModelServerRef | None = None
    limits: list[Limits] = Field(default_factory=list)


class ForeignConfig(BaseResourcesServerConfig):
    timeout_s: float = 1.0


class OpenConfig(BaseResourcesServerConfig, extra="allow"):
    pass


def test_our_own_class_refuses_and_names_the_nearest_key() -> None:
    with pytest.raises(ConfigError) as raised:
        drop_unknown_keys(OurConfig, {**BASE, "timeout_ss": 2}, path=PATH)
    message = str(raised.value)
    assert "'timeout_ss' in env.resources_servers.env (OurConfig)" in message
    assert "'timeout_s'?" in message
    assert "+strict_config=false" in message


@pytest.mark.parametrize(
    ("values", "place", "key"),
    [
        ({"judge_model_server": {"type": "responses_api_models", "nane": "m"}}, "judge_model_server", "nane"),
        ({"limits": [{"max_cals": 2}]}, "limits", "max_cals"),
    ],
)  # fmt: skip
def test_nested_keys_are_checked(values: dict[str, Any], place: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown key '{key}' in env.resources_servers.env.{place} "):
        drop_unknown_keys(OurConfig, {**BASE, **values}, path=PATH)


def test_a_foreign_class_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        kept = drop_unknown_keys(ForeignConfig, {**BASE, "timeout": 2}, path=PATH)
    assert kept == BASE
    assert "Unknown key 'timeout'" in caplog.text
    assert "'timeout_s'?" in caplog.text


def test_a_server_without_a_config_class_of_its_own_refuses() -> None:
    with pytest.raises(ConfigError, match="Unknown key 'timeout_s' in env"):
        drop_unknown_keys(BaseResourcesServerConfig, {**BASE, "timeout_s": 2}, path=PATH)


def test_an_open_class_keeps_every_key(caplog: pytest.LogCaptureFixture) -> None:
    assert drop_unknown_keys(OpenConfig, {**BASE, "timeout": 2}, path=PATH) == {**BASE, "timeout": 2}
    assert not caplog.text


def test_strict_config_decides_for_all(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="Unknown key 'x'"):
        drop_unknown_keys(ForeignConfig, {**BASE, "x": 2}, path=PATH, strict=True)
    assert drop_unknown_keys(OurConfig, {**BASE, "x": 2}, path=PATH, strict=False) == BASE
    assert "Unknown key 'x'" in caplog.text


def test_descriptions_are_no_mistake(caplog: pytest.LogCaptureFixture) -> None:
    described = {**BASE, "description": "d", "value": "v", "datasets": [], "allowed_agents": ["a"]}
    assert drop_unknown_keys(OurConfig, described, path=PATH) == BASE
    assert not caplog.text


def test_every_mistake_has_its_line() -> None:
    with pytest.raises(ConfigError) as raised:
        drop_unknown_keys(OurConfig, {**BASE, "zzz": 1, "qqq": 2}, path=PATH)
    first, second, remedy = str(raised.value).splitlines()
    assert "'zzz'" in first
    assert "cut_off_reward, domain, entrypoint" in first
    assert "'qqq'" in second
    assert "strict_config" in remedy
