"""The demo: collect and show scored rollouts of an example environment, without any setup."""

from pathlib import Path
from typing import Any

import orjson

from nemo_gym.cli.collect import collect_with_progress
from nemo_gym.cli.command import command
from nemo_gym.config.loading import load_config
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import MissingExtraError, StartupError
from nemo_gym.rollouts.config import RolloutCollectionConfig

ENVIRONMENT = "resources_servers/example_simple_weather/configs/simple_weather.yaml"
SCRIPTED_MODEL = "responses_api_models/scripted_model/configs/scripted_model.yaml"
LOCAL_MODEL = "responses_api_models/local_model/configs/local_model.yaml"
BRIEFLY: dict[str, Any] = {
    "policy_model": {"responses_api_models": {"local_model": {"max_output_tokens": 48}}},
    "simple_weather_simple_agent": {"responses_api_agents": {"simple_agent": {"max_steps": 4}}},
}
"""A small model may generate very long text or repeat a tool call."""

ROWS = "resources_servers/example_simple_weather/data/example.jsonl"
OUTPUT = Path("results/demo/weather_rollouts.jsonl")


class DemoConfig(CommandConfig):
    """Collect rollouts of the example rows of example_simple_weather with a small model on the CPU, and show
    one of them. If that model cannot run here, a scripted model is used."""


@command(DemoConfig)
def demo() -> None:
    """Collect and show rollouts of example_simple_weather."""
    print(
        "Five rollouts of example_simple_weather, by SmolLM2-135M-Instruct on this machine's CPU.\n"
        "The model is real, but very small, so expect mistakes. No API key, network or GPU is needed.\n"
    )
    try:
        play({"config_paths": [ENVIRONMENT, LOCAL_MODEL], **BRIEFLY})
    except (MissingExtraError, StartupError) as error:
        print(f"\nThe model cannot run here. {error}\n\nUsing a scripted model instead.\n")
        play({"config_paths": [ENVIRONMENT, SCRIPTED_MODEL]})
    print("\nThe first rollout:")
    show(OUTPUT.read_bytes().splitlines()[0])
    print(f"\nAll rollouts: {OUTPUT.resolve()}")


def play(config: dict[str, Any]) -> None:
    """Collect the rollouts again."""
    OUTPUT.unlink(missing_ok=True)
    collect_with_progress(
        load_config(initial=config, use_dotenv=False, fill_ports=False),
        RolloutCollectionConfig(
            agent_name="simple_weather_simple_agent", input_jsonl_fpath=ROWS, output_jsonl_fpath=str(OUTPUT)
        ),
    )


def show(line: bytes) -> None:
    """Print a rollout as a conversation."""
    record = orjson.loads(line)
    for item in [*record["responses_create_params"]["input"], *record["response"]["output"]]:
        match item["type"]:
            case "function_call":
                print(f"  model calls   {item['name']}({item['arguments']})")
            case "function_call_output":
                print(f"  tool answers  {item['output']}")
            case "message":
                print(f"  {item['role']:<13} {_text(item['content'])}")
    print(f"  reward        {record['reward']}")


def _text(content: object) -> str:
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)  # type: ignore[attr-defined]


if __name__ == "__main__":
    demo()
