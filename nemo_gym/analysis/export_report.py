"""What an export counts."""

from collections import Counter
from dataclasses import dataclass, field

from nemo_gym.llm_api.base import JsonObject

MASKED = "secrets are masked in it"
"""The reason to drop a record that is not what was said."""


@dataclass(slots=True)
class ExportReport:
    """What became of every rollout: all that were read are used or dropped."""

    read: int = 0
    used: int = 0
    examples: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> JsonObject:
        return {
            "rollouts_read": self.read,
            "rollouts_used": self.used,
            "examples": self.examples,
            "dropped": dict(sorted(self.dropped.items())),
        }
