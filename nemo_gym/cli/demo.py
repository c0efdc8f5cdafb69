"""The demo: a real but very small model answers a few questions, without any setup."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nemo_gym as gym
from nemo_gym.cli.command import command
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import MissingExtraError, StartupError
from nemo_gym.evaluation.result import Evaluation, Rollout

OUTPUT = Path("results/demo/rollouts.jsonl")
NUM_REPEATS = 2
SAMPLING: dict[str, Any] = {"temperature": 0.2, "max_output_tokens": 40}
REPLIES = [{"user": "capital of France", "say": "Paris."}, {"say": "I do not know."}]
"""Replies of the scripted model if the real one cannot run here."""


class Questions(gym.Environment):
    """Short questions. A reply is right if it names the answer, in one of its forms, and no wrong option."""

    async def verify(self, response: gym.NeMoGymResponse, right: list[str], wrong: list[str]) -> float:
        is_whole = response.incomplete_details is None
        return float(
            is_whole and names_one(response.output_text, right) and not names_one(response.output_text, wrong)
        )


def names_one(text: str, forms: list[str]) -> bool:
    """True if the text has one of these words."""
    return re.search(rf"\b({'|'.join(map(re.escape, forms))})\b", text, re.IGNORECASE) is not None


def _row(question: str, right: str, wrong: str) -> dict[str, Any]:
    prompt = f"{question} Answer in one short sentence."
    return {"prompt": prompt, "right": right.split("|"), "wrong": wrong.split("|")}


ROWS = [
    _row("What is the capital of France?", "Paris", "Berlin|Madrid|Rome"),
    _row("How many legs does a spider have?", "8|eight", "4|four|6|six|10|ten"),
    _row("What is the opposite of hot?", "cold", "warm|dry|wet"),
    _row("Who wrote Romeo and Juliet?", "Shakespeare", "Dickens|Goethe|Homer"),
    _row("How many days are in a week?", "7|seven", "5|five|6|six|8|eight"),
    _row("Which planet is the largest in the solar system?", "Jupiter", "Mars|Venus|Neptune|Uranus|Saturn"),
    _row("What is 17 + 25?", "42|forty-two", "32|52|47"),
    _row("Which letter comes after G in the alphabet?", "H", "F|I|K"),
]

_NEXT = f"""
What to type next, after `source .venv/bin/activate`:
  ng view {OUTPUT}     look at these rollouts in a browser
  ng list                                 all environments, agents, models and datasets
  ng eval mcqa --model local -n 4         the same model in another environment
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
        result = play("local")
    except (MissingExtraError, StartupError) as error:
        print(f"\nThe model cannot run here. {error}\n\nUsing a scripted model instead.\n")
        result = play(gym.Scripted(REPLIES))
    print(result)
    print("\n".join(report(list(result.rollouts))))
    print(_NEXT)


def play(model: Any) -> Evaluation:
    """Collect the rollouts again."""
    OUTPUT.unlink(missing_ok=True)
    return gym.evaluate(Questions, ROWS, model=model, repeats=NUM_REPEATS, params=SAMPLING, output=OUTPUT)


def report(rollouts: list[Rollout]) -> Iterator[str]:
    """Print how many rollouts are solved, one that is and one that is not."""
    solved = [rollout for rollout in rollouts if rollout.reward >= 1]
    failed = [rollout for rollout in rollouts if rollout.reward < 1]
    yield f"\n{len(solved)} of {len(rollouts)} rollouts solved."
    for title, chosen in (("A solved one:", solved), ("A failed one:", failed)):
        if chosen:
            yield from ("", title, *conversation(chosen[0]))


def conversation(rollout: Rollout) -> Iterator[str]:
    """A rollout as a conversation, with what was expected."""
    for turn in rollout.conversation:
        yield f"  {turn.who:<10} {turn.text}"
    if rollout.is_cut_off:
        yield "  (cut off)"
    yield f"  expected   {' or '.join(rollout['right'])}"
    yield f"  reward     {rollout.reward:g}"


if __name__ == "__main__":
    demo()
