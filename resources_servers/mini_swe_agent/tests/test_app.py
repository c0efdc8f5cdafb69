"""The placeholder."""

from nemo_gym.testing import client_for, example_row, says
from resources_servers.mini_swe_agent.app import MiniSWEResourcesServer


async def test_verify_always_gives_one() -> None:
    async with client_for(MiniSWEResourcesServer) as environment:
        answer = await environment.post("/verify", json=example_row(response=says("anything")))
        assert answer.json()["reward"] == 1.0
