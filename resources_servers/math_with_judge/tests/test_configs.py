from pathlib import Path

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.config.loading import load_config
from nemo_gym.errors import ConfigError
from nemo_gym.testing import client_for, running_servers, server_spec, servers_of
from resources_servers.math_with_judge.app import LibraryJudgeMathResourcesServer

FOLDER = Path("resources_servers/math_with_judge")
CONFIGS = sorted((PARENT_DIR / FOLDER / "configs").glob("*.yaml"))
SCRIPTED_MODEL = "responses_api_models/scripted_model/configs/scripted_model.yaml"
JUDGE_NAME = "math_with_judge.resources_servers.math_with_judge.judge_model_server.name"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
async def test_every_config_has_the_names_that_users_know(config: Path) -> None:
    block = {"judge_model_server": {"type": "responses_api_models", "name": "policy_model"}}
    named = {"math_with_judge": {"resources_servers": {"math_with_judge": block}}}
    servers = servers_of(str(config), SCRIPTED_MODEL, **named)
    assert {"math_with_judge", "math_with_judge_simple_agent", "policy_model"} == {server.name for server in servers}


@pytest.mark.parametrize(
    "config", [path for path in CONFIGS if "overflow" not in path.stem], ids=lambda path: path.stem
)
async def test_a_judge_that_is_off_needs_no_name(config: Path) -> None:
    async with running_servers(servers_of(str(config), SCRIPTED_MODEL)) as stack:
        assert "math_with_judge" in stack.local


async def test_a_judge_that_is_off_may_be_left_out_altogether() -> None:
    async with client_for(LibraryJudgeMathResourcesServer, should_use_judge=False) as served:
        assert (await served.get("/health")).status == 200


async def test_a_judge_that_is_on_has_to_be_named() -> None:
    paths = f"+config_paths=[{FOLDER}/configs/math_stack_overflow.yaml,{SCRIPTED_MODEL}]"
    with pytest.raises(ConfigError, match=r"judge_model_server\.name .*'\?\?\?'"):
        load_config([paths], use_dotenv=False)
    config = load_config([paths, f"+{JUDGE_NAME}=policy_model"], use_dotenv=False)
    block = config.math_with_judge.resources_servers.math_with_judge
    assert (block.judge_model_server.name, block.should_use_judge) == ("policy_model", True)


async def test_the_judge_can_be_turned_on_from_the_command_line() -> None:
    arguments = [
        f"+config_paths=[{FOLDER}/configs/math_with_judge.yaml,{SCRIPTED_MODEL}]",
        "+math_with_judge.resources_servers.math_with_judge.should_use_judge=true",
        f"+{JUDGE_NAME}=policy_model",
    ]
    config = load_config(arguments, use_dotenv=False)
    assert config.math_with_judge.resources_servers.math_with_judge.should_use_judge is True


async def test_a_server_that_asks_a_nameless_judge_does_not_start() -> None:
    nameless = server_spec("math_with_judge", "resources_servers", "math_with_judge", domain="math")
    with pytest.raises(ConfigError, match=r"judge_model_server\.name"):
        async with running_servers([nameless]):
            pass
