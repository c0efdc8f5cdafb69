from nemo_gym.common.paths import find
from nemo_gym.runtime.class_loader import load_server_class
from nemo_gym.testing import held, rows_of, running
from resources_servers.example_multi_step.app import MultiStepResourcesServer


def test_the_folder_serves_the_original() -> None:
    folder = find("resources_servers/multineedle")
    assert load_server_class("resources_servers", "multineedle", folder, "app.py") is MultiStepResourcesServer


def test_the_rows_are_those_of_the_original() -> None:
    own, original = (
        rows_of(f"resources_servers/{name}/data/example.jsonl") for name in ("multineedle", "example_multi_step")
    )
    assert own == original


async def test_the_rows_seed() -> None:
    async with running([held("environment", "resources_servers", "multineedle")]) as client:
        for row in rows_of("resources_servers/multineedle/data/example.jsonl"):
            assert (await client.send("environment", "/seed_session", row)).status == 200
