"""Right answers to rows: what the environment or the row says, or guesses in the usual formats."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.config.types import ServerSpec
from nemo_gym.errors import StartupError
from nemo_gym.llm_api.base import JsonObject, content_text
from nemo_gym.llm_api.builders import message
from nemo_gym.runtime.class_loader import load_server_class

logger = logging.getLogger(__name__)

Items = list[JsonObject]
"""The output of a response."""


class Gold(NamedTuple):
    """A right answer, in one of the formats that a verifier may expect."""

    items: Items
    bare: str | None = None
    """The answer without its format, if known."""


def guessed_golds(row: JsonObject) -> list[Gold]:
    """Guess the expected answer of a row from the usual fields, in the usual formats; empty if there is none.

    A generated row may have a `gold_response`: a text, or output items.
    """
    written = row.get("gold_response")
    if isinstance(written, str | list):
        return [Gold([message(written)] if isinstance(written, str) else written)]
    metadata = row.get("metadata")
    places = (row, metadata if isinstance(metadata, dict) else {})
    answer = next((place["expected_answer"] for place in places if "expected_answer" in place), None)
    if not isinstance(answer, str | int | float) or isinstance(answer, bool) or not str(answer).strip():
        return []
    bare = str(answer)
    forms = (rf"\boxed{{{bare}}}", bare, f"Answer: {bare}", f"Final Answer: {bare}", f"<answer>{bare}</answer>")
    return [Gold([message(text)], bare) for text in forms]


def gold_finder(environment: ServerSpec) -> Callable[[JsonObject], list[Gold]]:
    """Return a function that finds the right answers of a row: the environment's own `gold_response`, or guesses
    if its code cannot be imported."""
    try:
        kind = environment.served_class or load_server_class(
            environment.server_type, environment.folder, environment.entrypoint
        )
    except StartupError as error:
        logger.warning(
            "right answers of '%s' are guessed, because its code cannot be imported: %s", environment.name, error
        )
        return guessed_golds
    if not issubclass(kind, SimpleResourcesServer):
        return guessed_golds

    def golds_of(row: JsonObject) -> list[Gold]:
        said = kind.gold_response(row)
        items = [message(said)] if isinstance(said, str) else said
        return guessed_golds(row) if items is None else [Gold(items)]

    return golds_of


def prompt_texts(row: JsonObject) -> list[str]:
    """Return the text of each message of the prompt."""
    prompt = row["responses_create_params"]["input"]
    return [prompt] if isinstance(prompt, str) else [content_text(item.get("content")) for item in prompt]


def text_of(items: Items) -> str:
    """Return what the messages among output items say."""
    return "\n".join(content_text(item.get("content")) for item in items if item["type"] == "message")
