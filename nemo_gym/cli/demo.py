"""The demo: a real but very small model answers a few questions, without any setup."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_gym.cli.collect import collect_with_progress
from nemo_gym.cli.command import command
from nemo_gym.common.atomic_files import read_jsonl
from nemo_gym.common.words import count_of
from nemo_gym.config.loading import load_config
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import MissingExtraError, StartupError
from nemo_gym.llm_api.base import content_text
from nemo_gym.rollouts.collection import Collection
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.types import is_cut_off

ENVIRONMENT = "resources_servers/mcqa/configs/mcqa.yaml"
AGENT = "mcqa_simple_agent"
ROWS = "resources_servers/mcqa/data/demo.jsonl"
OUTPUT = Path("results/demo/rollouts.jsonl")
SCRIPTED_MODEL = "responses_api_models/scripted_model/configs/scripted_model.yaml"
LOCAL_MODEL = "responses_api_models/local_model/configs/local_model.yaml"
NUM_REPEATS = 2
SETTINGS: dict[str, Any] = {"mcqa": {"resources_servers": {"mcqa": {"cut_off_reward": 0.0}}}}
"""An answer that never ends is not a success."""
REPLIES = [{"user": "capital of France", "say": "Paris."}, {"say": "I do not know."}]
"""Replies of the scripted model if the real one cannot run here."""

_NEXT = f"""
What to type next, after `source .venv/bin/activate`:
  ng view {OUTPUT}     look at these rollouts in a browser
  ng list                                 all environments, agents, models and datasets
  ng eval mcqa --model local -n 4         the same model on other rows
  ng eval mcqa --model gpt-4.1            a better model; set OPENAI_API_KEY first
  ng init_resources_server +entrypoint=resources_servers/my_env   an environment of your own"""


class DemoConfig(CommandConfig):
    """Let a small model on the CPU answer a few questions, and show a solved and a failed conversation. If that model
    cannot run here, a scripted model is used."""


@command(DemoConfig)
def demo(_options: DemoConfig) -> None:
    """Collect and show rollouts of easy questions."""
    print(
        "Eight easy questions, asked twice each, to SmolLM2-135M-Instruct on this machine's CPU.\n"
        "The model is real, but very small, so expect mistakes. No API key, network or GPU is needed.\n",
        flush=True,
    )
    try:
        play({"config_paths": [ENVIRONMENT, LOCAL_MODEL], **SETTINGS})
    except (MissingExtraError, StartupError) as error:
        print(f"\nThe model cannot run here. {error}\n\nUsing a scripted model instead.\n")
        model = {
            "policy_model": {"responses_api_models": {"scripted_model": {"replies": REPLIES, "script_fpath": None}}}
        }
        play({"config_paths": [ENVIRONMENT, SCRIPTED_MODEL], **SETTINGS, **model})
    print("\n".join(report(read_jsonl(OUTPUT))))
    print(_NEXT)


def play(config: dict[str, Any]) -> None:
    """Collect the rollouts again."""
    OUTPUT.unlink(missing_ok=True)
    options = RolloutCollectionConfig(
        agent_name=AGENT, input_jsonl_fpath=ROWS, output_jsonl_fpath=str(OUTPUT), num_repeats=NUM_REPEATS
    )
    collect_with_progress(Collection(load_config(initial=config, use_dotenv=False, fill_ports=False), options))


def report(records: list[dict[str, Any]]) -> Iterator[str]:
    """Print how many rollouts are solved, one that is and one that is not."""
    solved = [record for record in records if record["reward"] >= 1]
    failed = [record for record in records if record["reward"] < 1]
    yield f"\n{len(solved)} of {count_of(len(records), 'rollout')} solved."
    for title, chosen in (("A solved one:", solved), ("A failed one:", failed)):
        if chosen:
            yield from ("", title, *conversation(chosen[0]))


def conversation(record: dict[str, Any]) -> Iterator[str]:
    """A rollout as a conversation, with what was expected."""
    for item in [*record["responses_create_params"]["input"], *record["response"]["output"]]:
        match item["type"]:
            case "function_call":
                yield f"  model calls   {item['name']}({item['arguments']})"
            case "function_call_output":
                yield f"  tool answers  {item['output']}"
            case "message":
                yield f"  {item['role']:<13} {content_text(item['content'])}"
    if is_cut_off(record["response"]):
        yield "  (cut off)"
    options = {name: text for option in record.get("options") or () for name, text in option.items()}
    if record.get("expected_answer") in options:
        yield f"  expected      {options[record['expected_answer']]}"
    yield f"  reward        {record['reward']}"


if __name__ == "__main__":
    demo()
