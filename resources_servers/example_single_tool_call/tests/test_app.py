from nemo_gym.common.paths import find
from nemo_gym.runtime.class_loader import load_server_class
from nemo_gym.testing import held, rows_of, running
from resources_servers.example_simple_weather.app import SimpleWeatherResourcesServer


def test_the_folder_serves_the_original() -> None:
    folder = find("resources_servers/example_single_tool_call")
    assert (
        load_server_class("resources_servers", "example_single_tool_call", folder, "app.py")
        is SimpleWeatherResourcesServer
    )


def test_the_rows_are_those_of_the_original() -> None:
    own, original = (
        rows_of(f"resources_servers/{name}/data/example.jsonl")
        for name in ("example_single_tool_call", "example_simple_weather")
    )
    assert own == original


async def test_the_rows_seed() -> None:
    async with running([held("environment", "resources_servers", "example_single_tool_call")]) as client:
        for row in rows_of("resources_servers/example_single_tool_call/data/example.jsonl"):
            assert (await client.send("environment", "/seed_session", row)).status == 200
