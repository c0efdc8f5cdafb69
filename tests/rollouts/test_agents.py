from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.dataset import check_agent, check_rows_name_agents

SETTINGS: dict[str, Any] = {
    "head_server": {"host": "127.0.0.1", "port": 1},
    "mcqa_resources_server": {"resources_servers": {"mcqa": {"entrypoint": "app.py"}}},
    "mcqa_simple_agent": {
        "responses_api_agents": {
            "simple_agent": {"resources_server": {"type": "resources_servers", "name": "mcqa_resources_server"}}
        }
    },
    "other_agent": {"responses_api_agents": {"simple_agent": {}}},
    "policy_model": {"responses_api_models": {"openai_model": {}}},
}


@pytest.mark.parametrize("name", ["mcqa", "mcqa_resources_server", "policy_model", "mcqa_agent"])
def test_the_error_for_an_unknown_agent_lists_agents_and_environments(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_agent(name, SETTINGS)
    agents = "mcqa_simple_agent (of mcqa_resources_server), other_agent."
    assert str(raised.value).startswith(f"No agent is called '{name}'. Agents: {agents}")
    assert name != "mcqa_agent" or str(raised.value).endswith(" Did you mean 'mcqa_simple_agent'?")


def test_an_agent_passes_and_so_does_any_name_if_the_configuration_is_unknown() -> None:
    check_agent("other_agent", SETTINGS)
    check_agent("anything", {})


def test_rows_that_name_no_agent_are_an_error_before_the_first_rollout(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"responses_create_params": {"input": "hi"}}\n' * 3)
    with pytest.raises(ConfigError, match=r"agents: mcqa_simple_agent, other_agent\.$"):
        check_rows_name_agents(rows, SETTINGS)
    rows.write_text('{"a": 1}\n{"agent_ref": {"name": "other_agent"}}\n')
    check_rows_name_agents(rows, SETTINGS)
