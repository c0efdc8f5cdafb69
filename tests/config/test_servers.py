from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.loading import load_config, server_instances
from nemo_gym.config.types import ServerSpec
from nemo_gym.errors import ConfigError, MissingPathError

WEATHER = "resources_servers/weather"


@pytest.fixture(autouse=True)
def _in_a_folder_with_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (WEATHER, "responses_api_agents/simple_agent"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "app.py").touch()


def resources(implementation: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"resources_servers": {implementation: {"entrypoint": "app.py", "domain": "agent", **fields}}}


def instances(config: dict[str, Any], *, fill_ports: bool = True) -> list[ServerSpec]:
    return server_instances(load_config(initial=config, use_dotenv=False, fill_ports=fill_ports))


def test_a_server_instance_has_all_that_is_needed_to_start_it(tmp_path: Path) -> None:
    config = {
        "unit": "C",
        "default_host": "10.0.0.1",
        "sky": resources(units=["${unit}"], port=9000, isolation="process", num_workers=2),
        "agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}},
    }
    sky, agent = instances(config, fill_ports=False)
    assert sky == ServerSpec(
        name="sky",
        server_type="resources_servers",
        implementation="weather",
        entrypoint="app.py",
        folder=tmp_path / WEATHER,
        config={
            "entrypoint": "app.py",
            "domain": "agent",
            "units": ["C"],
            "port": 9000,
            "isolation": "process",
            "num_workers": 2,
            "host": "10.0.0.1",
            "name": "sky",
        },
        host="10.0.0.1",
        port=9000,
        isolation="process",
    )
    assert (agent.port, agent.isolation) == (None, "shared")
    assert agent.config == {"entrypoint": "app.py", "host": "10.0.0.1", "name": "agent"}


def test_an_instance_can_be_logged_without_its_secrets() -> None:
    (sky,) = instances({"sky": resources(api_key="sk-abcdef")})
    assert "sk-abcdef" not in repr(sky)
    assert sky.config["api_key"] == "sk-abcdef"


def test_a_chosen_port_is_in_the_instance_and_in_its_config() -> None:
    (sky,) = instances({"sky": resources()})
    assert sky.port == sky.config["port"]
    assert sky.port is not None
    assert 10001 <= sky.port <= 20000


def test_almost_servers_are_left_out() -> None:
    config = {"good": resources(), "wrong": resources(domain="x"), "error_on_almost_servers": False}
    assert [instance.name for instance in instances(config)] == ["good"]


def test_a_missing_folder_names_the_nearest_and_the_key(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError) as caught:
        instances({"sky": resources("wether")})
    message = str(caught.value)
    assert "No server folder 'resources_servers/wether'" in message
    assert f"Did you mean '{tmp_path}/{WEATHER}'?" in message
    assert message.endswith("It is named by sky.resources_servers.wether in the configuration.")


def test_a_missing_entrypoint_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        instances({"sky": resources(entrypoint="apps.py")})
    assert f"No entrypoint 'apps.py' in {tmp_path}/{WEATHER}." in str(caught.value)
    assert "sky.resources_servers.weather" in str(caught.value)
    assert str(caught.value).endswith("Did you mean 'app.py'?")


def test_an_entrypoint_is_relative_to_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"relative to .*weather"):
        instances({"sky": resources(entrypoint=str(tmp_path / WEATHER / "app.py"))})
