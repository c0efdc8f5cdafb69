"""The folders of environments, agents and models that ship, and the servers of each of their configs."""

import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.common.paths import PARENT_DIR, SERVER_FOLDERS
from nemo_gym.runtime.requirements import missing_requirements
from nemo_gym.testing import ServerSpec, servers_of
from tests.benchmarks import require

FOLDERS = sorted(app.parent for kind in SERVER_FOLDERS for app in (PARENT_DIR / kind).glob("*/app.py"))
ENVIRONMENTS = [folder for folder in FOLDERS if folder.parent.name == "resources_servers"]
CONFIGS = [config for folder in FOLDERS for config in sorted(folder.glob("configs/*.yaml"))]

SCRIPTED_MODEL = "responses_api_models/scripted_model/configs/scripted_model.yaml"
WEATHER = "resources_servers/example_simple_weather/configs/simple_weather.yaml"
SETTINGS = {
    "policy_base_url": "http://127.0.0.1:9/v1",
    "policy_api_key": "no key",
    "policy_model_name": "no model",
}
LEFT_OPEN: dict[str, dict[str, Any]] = {
    "azure_openai_model.yaml": {
        "policy_model": {
            "responses_api_models": {"azure_openai_model": {"default_query": {"api-version": "2024-10-21"}}}
        },
    },
    "google_search.yaml": {
        "google_search": {"resources_servers": {"google_search": {"google_api_key": "no key", "google_cx": "none"}}},
    },
    "simple_agent.yaml": {
        "config_paths": [WEATHER],
        "simple_agent": {
            "responses_api_agents": {"simple_agent": {"resources_server": {"name": "example_simple_weather"}}}
        },
    },
    "multi_turn_agent.yaml": {
        "config_paths": [WEATHER],
        "multi_turn_agent": {
            "responses_api_agents": {"multi_turn_agent": {"resources_server": {"name": "example_simple_weather"}}}
        },
    },
    "openai_agents.yaml": {
        "config_paths": [WEATHER],
        "openai_agents": {
            "responses_api_agents": {"command_agent": {"resources_server": {"name": "example_simple_weather"}}}
        },
    },
    "mini_swe_agent_command.yaml": {
        "config_paths": [WEATHER],
        "mini_swe_agent_command": {
            "responses_api_agents": {
                "command_agent": {"resources_server": {"name": "example_simple_weather"}, "sandbox_provider": None}
            }
        },
    },
    "multi_policy_agent.yaml": {
        "config_paths": [WEATHER],
        "multi_policy_agent": {
            "responses_api_agents": {"multi_policy_agent": {"resources_server": {"name": "example_simple_weather"}}}
        },
    },
    "math_stack_overflow.yaml": {
        "math_with_judge": {
            "resources_servers": {"math_with_judge": {"judge_model_server": {"name": "policy_model"}}}
        },
    },
}
"""What the user of a config must add to it."""


@cache
def servers_in(config: Path) -> list[ServerSpec]:
    """The servers of a config file, with the scripted model if it brings none."""
    added = dict(LEFT_OPEN.get(config.name, {}))
    paths = [str(config), *added.pop("config_paths", ())]
    if "policy_model" not in yaml.safe_load(config.read_text()):
        paths.append(SCRIPTED_MODEL)
    return servers_of(*paths, **SETTINGS, **added)


EXAMPLES_OF_WHEELS = {"agentdojo": "agentdojo/agentdojo"}
"""Environments whose example rows are played with code of a wheel, and a dataset that names it."""


def skip_if_isolated(folder: Path) -> None:
    """tests/test_isolated_folders.py runs these tests in the virtualenv of such a folder."""
    if folder.name == "scienceworld" and not (find_spec("scienceworld") and shutil.which("java")):
        pytest.skip("scienceworld or java is not installed")
    if folder.name in EXAMPLES_OF_WHEELS:
        require(EXAMPLES_OF_WHEELS[folder.name])
    if missing := missing_requirements(folder):
        pytest.skip(f"this interpreter does not have {', '.join(missing)}")
