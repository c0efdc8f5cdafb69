"""A trainer's groups with workers on two Ray nodes, one of which is killed: verifiers that wait for their group, and
those that score it as a whole."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.testing import says
from nemo_gym.training import RolloutSession, Source
from tests.cluster.test_ray import nodes
from tests.polling import until
from tests.stub_endpoint import Request, stub_endpoint
from tests.training.test_group_verification import LONGEST
from tests.training.test_session import COHORT, config_at, row_of

GROUPS, GROUP_SIZE = 6, 4


def server(folder: Path, name: str, app: str) -> dict[str, Any]:
    (folder / "resources_servers" / name).mkdir(parents=True)
    (folder / "resources_servers" / name / "app.py").write_text(app)
    return {"resources_servers": {name: {"entrypoint": "app.py", "domain": "agent"}}}


def agent_of(environment: str) -> dict[str, Any]:
    servers = {
        "resources_server": {"type": "resources_servers", "name": environment},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **servers}}}


def workers() -> list[psutil.Process]:
    found = [each for each in psutil.process_iter(["name", "environ"]) if each.info["name"] == "ray::StackActor"]
    return [each for each in found if os.environ[EXTRA_ROOTS_ENV_VAR] in str(each.info["environ"])]


async def test_groups_stay_together_on_ray_though_a_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    monkeypatch.setenv(EXTRA_ROOTS_ENV_VAR, str(tmp_path))
    asked = 0

    async def reply(_request: Request) -> Any:
        nonlocal asked
        asked += 1
        reply = says("x" * asked)
        await asyncio.sleep(0.3)
        return reply

    servers = {
        "counter": server(tmp_path, "cohort", COHORT),
        "longest": server(tmp_path, "longest", LONGEST),
        "longest_agent": agent_of("longest"),
    }
    cohorts = [{**row_of(number, expected=0), "cohort": number} for number in range(GROUPS)]
    whole = [row_of(number, expected=0, agent="longest_agent") for number in range(GROUPS)]
    with nodes(2) as cluster:
        async with stub_endpoint(reply) as endpoint:
            config = config_at(endpoint.url, tmp_path, num_workers=2, **servers)
            config["ray_head_node_address"] = cluster.address
            async with RolloutSession(config) as session:
                stream = session.groups({"cohorts": Source(cohorts), "whole": Source(whole)}, group_size=GROUP_SIZE)
                groups = aiter(stream)
                await until(lambda: asked >= GROUPS)
                alive = workers()
                assert len(alive) == 2
                os.kill(alive[0].pid, signal.SIGKILL)
                taken = [group async for group in groups]
    rewards = {
        name: [[each["reward"] for each in group.results] for group in taken if group.source == name]
        for name in ("cohorts", "whole")
    }
    assert rewards["cohorts"] == [[1.0] * GROUP_SIZE] * GROUPS
    assert [sorted(group) for group in rewards["whole"]] == [[0.0, 0.0, 0.0, 1.0]] * GROUPS
