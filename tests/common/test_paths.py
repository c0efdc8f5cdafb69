"""Paths that users give, also under the second name of an environment."""

from pathlib import Path

import pytest

from nemo_gym.common.paths import FOLDER_ALIASES, PARENT_DIR, find
from nemo_gym.errors import MissingPathError
from nemo_gym.testing import rows_of, running_servers, server_spec, servers_of

SCRIPTED_MODEL = "responses_api_models/scripted_model/configs/scripted_model.yaml"
SERVER_NAMES = {
    "multineedle": {"multineedle_resources_server", "multineedle_simple_agent"},
    "example_single_tool_call": {"example_single_tool_call", "example_single_tool_call_simple_agent"},
    "example_session_state_mgmt": {"example_session_state_mgmt", "example_session_state_mgmt_simple_agent"},
}
each_alias = pytest.mark.parametrize("alias", FOLDER_ALIASES)


@each_alias
def test_an_alias_is_the_folder_it_stands_for(alias: str) -> None:
    folder = PARENT_DIR / FOLDER_ALIASES[alias]
    assert find(alias) == find(PARENT_DIR / alias) == folder
    assert find(f"{alias}/data/example.jsonl") == folder / "data/example.jsonl"
    with pytest.raises(MissingPathError, match=f"{alias}/nothing"):
        find(f"{alias}/nothing")


@each_alias
async def test_the_config_of_an_alias_has_its_own_server_names_and_starts(alias: str) -> None:
    name = Path(alias).name
    servers = servers_of(f"{alias}/configs/{name}.yaml", SCRIPTED_MODEL)
    assert {server.name for server in servers} == {"policy_model", *SERVER_NAMES[name]}
    async with running_servers(servers) as client:
        for row in rows_of(f"{alias}/data/example.jsonl"):
            reply = await client.send(next(iter(client.local)), "/seed_session", row)
            assert reply.status == 200


async def test_a_folder_of_the_users_own_comes_before_an_alias(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "resources_servers/multineedle"
    (folder / "data").mkdir(parents=True)
    (folder / "data/rollouts.jsonl").write_text("{}\n")
    assert find("resources_servers/multineedle/data/rollouts.jsonl") == folder / "data/rollouts.jsonl"
    assert find("resources_servers/multineedle") == PARENT_DIR / "resources_servers/example_multi_step"
    async with running_servers([server_spec("environment", "resources_servers", "multineedle")]):
        pass
    (folder / "app.py").write_text("")
    assert find("resources_servers/multineedle") == folder
