"""The demo: real rollouts of a real environment, scored, with nothing to set up."""

from pathlib import Path

import orjson

from nemo_gym.cli.rollouts import collect_with_progress
from nemo_gym.command import command
from nemo_gym.config_types import CommandConfig
from nemo_gym.global_config import load_config
from nemo_gym.rollout_collection import RolloutCollectionConfig

CONFIG_PATHS = [
    "resources_servers/example_simple_weather/configs/simple_weather.yaml",
    "responses_api_models/scripted_model/configs/scripted_model.yaml",
]
ROWS = "resources_servers/example_simple_weather/data/example.jsonl"
OUTPUT = Path("results/demo/weather_rollouts.jsonl")


class DemoConfig(CommandConfig):
    """Play the five example rows of example_simple_weather with the scripted model and show the scored rollouts."""


@command(DemoConfig)
def demo() -> None:
    """Play example_simple_weather and show the scored rollouts."""
    print("Five rollouts of example_simple_weather. The model follows a script: no key, no network, no GPU.\n")
    OUTPUT.unlink(missing_ok=True)
    collect_with_progress(
        load_config(initial={"config_paths": CONFIG_PATHS}, use_dotenv=False, fill_ports=False),
        RolloutCollectionConfig(
            agent_name="simple_weather_simple_agent", input_jsonl_fpath=ROWS, output_jsonl_fpath=str(OUTPUT)
        ),
    )
    print("\nThe first of them:")
    show(OUTPUT.read_bytes().splitlines()[0])
    print(f"\nAll of them, in full: {OUTPUT.resolve()}")


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
