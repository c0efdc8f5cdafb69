"""A command that holds its servers itself: they see its configuration, and are as many as it says."""

import os
from pathlib import Path

import pytest
from omegaconf import DictConfig

from nemo_gym.client.head import list_workers
from nemo_gym.client.server_client import ServerReply
from nemo_gym.compat.global_config import get_global_config_dict
from nemo_gym.config.loading import load_config, server_instances
from nemo_gym.errors import ConfigError
from nemo_gym.runtime.class_loader import worker_count
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.runtime.stack import process_config, publish_config
from tests.commands import free_port

CURIOUS = """
from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool
from nemo_gym.global_config import get_global_config_dict

class CuriousResourcesServer(SimpleResourcesServer):
    @tool
    async def look_up(self, key: str) -> str:
        return str(get_global_config_dict().get(key))

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0
"""


@pytest.fixture(autouse=True)
def _curious_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program", "+config_paths=[no_such_file.yaml]"])
    folder = tmp_path / "resources_servers" / implementation()
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(CURIOUS)


def implementation() -> str:
    """Another name in each test: the module stays imported."""
    return f"curious_{abs(hash(Path.cwd()))}"


def config(*arguments: str, isolation: str = "shared", num_workers: int | None = None) -> DictConfig:
    block = {"entrypoint": "app.py", "domain": "other", "isolation": isolation, "num_workers": num_workers}
    initial = {
        "config_paths": [],
        "curious": {"resources_servers": {implementation(): block}},
        "head_server": {"host": "127.0.0.1", "port": free_port()},
        "colour": "blue",
    }
    Path("config.yaml").write_text("{}")
    return load_config(["config_paths=[config.yaml]", *arguments], initial=initial, use_dotenv=False, fill_ports=False)


@pytest.mark.parametrize("isolation", ["shared", "process"])
async def test_servers_read_the_configuration_of_the_command_that_holds_them(isolation: str) -> None:
    async with connect_servers(config(isolation=isolation)) as client:
        found = await client.call("curious", "/look_up", {"key": "colour"}, answer=ServerReply)
    assert found.text == "blue"


@pytest.mark.parametrize("isolation", ["shared", "process"])
async def test_a_server_gets_as_many_workers_as_it_asks_for(isolation: str) -> None:
    async with connect_servers(config(isolation=isolation, num_workers=3)) as client:
        workers = await list_workers(client) or []
        assert len({worker.pid for worker in workers}) == 3
        assert {worker.servers for worker in workers} == {("curious",)}


@pytest.mark.parametrize("given", ["0", "-1", "many", "true", "1.5"])
async def test_a_number_of_workers_that_makes_no_sense_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"num_workers is .* from 1, or 'auto'"):
        async with connect_servers(config(f"num_workers={given}")):
            pass


def test_auto_is_one_worker_for_each_core() -> None:
    servers = server_instances(config())
    assert worker_count({"num_workers": "auto"}, servers) == len(os.sched_getaffinity(0))
    assert worker_count({"num_workers": 5}, servers) == 5
    assert worker_count({}, servers) == 1


def test_the_configuration_is_published_only_inside_the_block() -> None:
    with publish_config({"a": 1}):
        assert get_global_config_dict() == {"a": 1}
        with publish_config({"a": 2}):
            assert get_global_config_dict() == {"a": 2}
        assert get_global_config_dict() is get_global_config_dict()
        assert get_global_config_dict() == {"a": 1}
    assert process_config() is None
