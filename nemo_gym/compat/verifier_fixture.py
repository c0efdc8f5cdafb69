"""Cases of a verifier: requests with the reward, or the error, that it must give for them."""

import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from nemo_gym.common.atomic_files import read_jsonl

Kind = Literal["full_reward", "zero_reward", "malformed", "determinism"]
Determinism = Literal["seeded", "stochastic", "unknown"]
REQUIRED: tuple[Kind, ...] = ("full_reward", "zero_reward", "malformed")
TIMES = 2
"""Number of times that a case of a seeded verifier is scored."""


class VerifierFixtureError(ValueError):
    """A verifier does not do what its cases say, or the cases are not complete."""


@dataclass(frozen=True)
class VerifierFixture:
    """The factory of a verifier, and the file of its cases."""

    server_factory: Callable[[], Any]
    request_model: type[BaseModel]
    cases_path: Path
    invoke: Callable[..., Any] | None = None
    """Scores `request` with `server`. By default `server.verify(request)`."""
    reseed: Callable[..., Any] | None = None
    """Called with the server before each score of a seeded verifier."""


@dataclass(frozen=True)
class CaseResult:
    """The result of a verifier for a case."""

    name: str
    kind: Kind
    observed_rewards: tuple[float, ...] = ()
    error: str | None = None


async def exercise_verifier_fixture(
    fixture: VerifierFixture,
    *,
    reward_range: tuple[float, float],
    higher_is_better: bool = True,
    determinism: Determinism,
    update_expected: bool = False,
) -> list[CaseResult]:
    """Score all cases, each with a new server, and check the rewards and errors."""
    cases = list(read_jsonl(fixture.cases_path))
    wanted = (*REQUIRED, "determinism") if determinism == "seeded" else REQUIRED
    missing = [kind for kind in wanted if kind not in {case.get("kind") for case in cases}]
    if missing:
        raise VerifierFixtureError(f"{fixture.cases_path} has no case of the kind {', '.join(missing)}")
    results = [await _exercise(fixture, case, determinism) for case in cases]
    low, high = reward_range if higher_is_better else reward_range[::-1]
    for case, result in zip(cases, results, strict=True):
        if update_expected and result.observed_rewards:
            case["expected_reward"] = result.observed_rewards[0]
        _check(case, result, zero=low, full=high)
    if update_expected:
        fixture.cases_path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    return results


async def _exercise(fixture: VerifierFixture, case: dict[str, Any], determinism: Determinism) -> CaseResult:
    name, kind = str(case.get("name")), case["kind"]
    times = TIMES if determinism == "seeded" and kind == "determinism" else 1
    rewards: list[float] = []
    try:
        for _ in range(times):
            server = fixture.server_factory()
            if fixture.reseed is not None:
                await _value(fixture.reseed(server))
            rewards.append(await _score(fixture, server, case["request"]))
    except Exception as error:
        if kind != "malformed":
            raise VerifierFixtureError(f"{name}: {type(error).__name__}: {error}") from error
        return CaseResult(name, kind, error=f"{type(error).__name__}: {error}")
    return CaseResult(name, kind, tuple(rewards))


async def _score(fixture: VerifierFixture, server: Any, request: Any) -> float:
    body = fixture.request_model.model_validate(request)
    call = fixture.invoke(server, body) if fixture.invoke is not None else server.verify(body)
    answer = await _value(call)
    reward = answer if isinstance(answer, int | float) else answer.reward
    return float(reward)


async def _value(result: Any) -> Any:
    if inspect.isawaitable(result):
        awaited: Awaitable[Any] = result
        return await awaited
    return result


def _check(case: dict[str, Any], result: CaseResult, *, zero: float, full: float) -> None:
    if result.kind == "malformed":
        expected = str(case.get("expected_error", ""))
        if result.error is None or expected not in result.error:
            raise VerifierFixtureError(f"{result.name}: the error is {result.error!r}; expected {expected!r} in it")
        return
    ends = {"full_reward": full, "zero_reward": zero}
    for wanted in (case.get("expected_reward"), ends.get(result.kind)):
        if wanted is not None and any(reward != float(wanted) for reward in result.observed_rewards):
            raise VerifierFixtureError(f"{result.name}: rewarded {result.observed_rewards}; expected {wanted}")
    if len(set(result.observed_rewards)) > 1:
        raise VerifierFixtureError(f"{result.name}: rewarded {result.observed_rewards}; expected equal rewards")
