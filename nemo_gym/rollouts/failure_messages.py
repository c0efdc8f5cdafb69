"""Why rollouts failed, for people: the most frequent messages, and what to do about an endpoint set up wrongly."""

import re
from collections import Counter

from nemo_gym.common.words import shorten
from nemo_gym.rollouts.types import NoResult

MAX_KINDS = 1000
"""Upper bound for distinct messages. Later ones are counted together, so that memory does not grow with the rows."""
MAX_SHOWN = 160
OTHER = "other messages"

_UPSTREAM = re.compile(r"^(?:The judge failed: )?\S+ answered (\d{3}): ")
_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{12,}|\d+", re.I)
_REMEDIES = {
    "unauthorized": "Check {api_key}.",
    "no_quota": "Add credits to the account of {api_key}.",
    "unknown_model": "Check {model_name}.",
    "not_found": "Check {base_url} and {model_name}.",
    "unreachable": "Is the endpoint running? Check {base_url}.",
}
_UNTRUSTED = (
    "Is its certificate of an authority that this machine trusts? If not, name the file with it in SSL_CERT_FILE."
)
_OF_POLICY = {"api_key": "policy_api_key", "model_name": "policy_model_name", "base_url": "policy_base_url"}
_OF_OTHERS = {"api_key": "its API key", "model_name": "the name of its model", "base_url": "its base URL"}


class FailureMessages:
    """Counts failures that differ in numbers only as one kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, failure: NoResult) -> None:
        """Count one failed rollout."""
        text = short_message(failure)
        kind = _VARYING.sub("#", text)
        if kind not in self._examples:
            if len(self._examples) >= MAX_KINDS:
                kind = text = OTHER
            self._examples[kind] = text
        self._counts[kind] += 1

    def most_common(self, count: int) -> list[tuple[str, int]]:
        """The most frequent messages, each with how often it occurred."""
        return [(self._examples[kind], times) for kind, times in self._counts.most_common(count)]


def short_message(failure: NoResult) -> str:
    """The failing server and what it said, on one line: `policy_model: 401 Incorrect API key`."""
    text = _UPSTREAM.sub(lambda match: f"{match[1]} ", " ".join(failure.message.split()))
    named = f"{failure.server}: {text}" if failure.server and failure.server not in text else text
    if failure.cause == "input" and failure.server:
        named = f"row {failure.id.task_index + 1}: {named}"
    return shorten(named, MAX_SHOWN)


def setup_message(failure: NoResult) -> str:
    """Why no rollout can succeed, and what to check."""
    names = _OF_POLICY if failure.server == "policy_model" else _OF_OTHERS
    is_untrusted = "certificate verify failed" in failure.message
    remedy = _UNTRUSTED if is_untrusted else _REMEDIES[failure.code or ""].format(**names)
    return f"{failure.server or 'The model'} cannot be used: {failure.message.rstrip('.')}. {remedy}"
