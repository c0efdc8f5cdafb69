"""Score responses in sessions of their own, within a budget of CPU time, and keep count."""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from nemo_gym.analysis.gold import Items
from nemo_gym.analysis.reverify import verify_items
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.redaction import one_line, redact
from nemo_gym.errors import Cause, GymError, RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.trust.probes import Expected

MAX_MESSAGE = 500
FAILED_REWARD = float("-inf")


def cpu_seconds() -> float:
    """CPU time of this process and of the processes it has waited for."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class Result(NamedTuple):
    """The verdict on a response."""

    reward: float
    """Minus infinity if there is none."""
    cause: str | None = None
    """Why there is no verdict."""
    cpu_s: float = 0.0
    seconds: float = 0.0


class Beat(NamedTuple):
    """The response that is being verified."""

    name: str
    timeout_s: float


class Oracle:
    """Says what a judge that makes no mistakes would answer to the next response."""

    accepts = False


@dataclass(slots=True)
class Budget:
    """A limit on CPU time and on the number of verifications, with the start of its period."""

    cpu_s: float
    max_probes: int | None = None
    probes: int = 0
    started: float = field(default_factory=cpu_seconds)

    @property
    def used(self) -> float:
        """CPU seconds so far."""
        return cpu_seconds() - self.started

    @property
    def is_spent(self) -> bool:
        return self.spent_by(1.0) or (self.max_probes is not None and self.probes >= self.max_probes)

    def spent_by(self, part: float) -> bool:
        """True if more than this part of the CPU time is used up."""
        return self.used >= self.cpu_s * part


@dataclass(slots=True)
class Scorer:
    """Scores responses to rows of one environment."""

    client: ServerClient
    environment: str
    full_reward: float
    timeout_s: float
    budget: Budget
    oracle: Oracle = field(default_factory=Oracle)
    latencies_ms: list[float] = field(default_factory=list)
    failed: dict[str, Counter[str]] = field(default_factory=dict)
    """Responses without a verdict: kinds of responses, and the causes."""
    messages: dict[str, str] = field(default_factory=dict)
    """One error message for each kind that failed."""
    on_probe: Callable[[Beat], None] = lambda _beat: None
    """Called before each verification."""
    skipped: frozenset[str] = frozenset()
    """Names of responses in which the verifier got stuck in an earlier process."""

    def is_full(self, result: Result) -> bool:
        return result.reward >= self.full_reward

    async def score(
        self,
        row: JsonObject,
        items: Items,
        *,
        kind: str,
        expected: Expected = "wrong",
        timeout_s: float | None = None,
        name: str = "",
    ) -> Result:
        """Make the tool calls of a response, verify it, and return the verdict."""
        name = name or kind
        if name in self.skipped:
            return Result(FAILED_REWARD, "timeout", timeout_s or self.timeout_s)
        self.on_probe(Beat(name, timeout_s or self.timeout_s))
        self.oracle.accepts = expected == "right"
        self.budget.probes += 1
        started, cpu = time.perf_counter(), time.process_time()
        try:
            await asyncio.sleep(0)  # direct calls need no turn of the loop, and the watchdog waits for one
            found = await verify_items(
                self.client,
                self.environment,
                row,
                items,
                timeout_s=timeout_s or self.timeout_s,
                what=f"Checking '{self.environment}'",
            )
        except GymError as error:  # one that is no RolloutError interrupted code that blocked the loop
            cause: Cause = error.cause if isinstance(error, RolloutError) else "timeout"
            self.failed.setdefault(kind, Counter())[cause] += 1
            self.messages.setdefault(kind, one_line(redact(str(error)))[:MAX_MESSAGE])
            used = time.process_time() - cpu
            return Result(FAILED_REWARD, cause, used, time.perf_counter() - started)
        used = time.process_time() - cpu
        self.latencies_ms.append(found.seconds * 1000)
        return Result(float(found.record["reward"]), None, used, found.seconds)
