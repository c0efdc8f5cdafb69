"""Environments that score all rollouts of a group together (`verify_group`).

Their `/verify` refuses with the code `group_verification`, so a rollout that nobody scores has no result, never a
reward. Whoever knows the group, a collection or a trainer's session, calls `/verify_group` once with all that were
played."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from nemo_gym.client.reply import ServerReply
from nemo_gym.client.server_client import ServerClient
from nemo_gym.config.command_line import shown_option
from nemo_gym.errors import GROUP_VERIFICATION, RolloutError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.attempts import read_reply
from nemo_gym.rollouts.store import WriteOutcome, group_by_task
from nemo_gym.rollouts.types import Outcome, Row

VERIFY_TIMEOUT_S = 1200.0


def needs_group(outcome: Outcome) -> bool:
    """True for a rollout that was played and must be scored with its group."""
    return outcome.error is not None and outcome.error.code == GROUP_VERIFICATION


async def verify_group(client: ServerClient, outcomes: list[Outcome]) -> list[Outcome]:
    """Score rollouts of one group together. If that fails, none of them has a result."""
    try:
        environment, bodies = _order(outcomes)
        reply = await client.call(
            environment,
            "/verify_group",
            {"bodies": bodies},
            answer=ServerReply,
            cause="verifier",
            timeout_s=VERIFY_TIMEOUT_S,
        )
        scores = orjson.loads(reply.content())["results"]
        return [
            _scored(environment, outcome, body, score)
            for outcome, body, score in zip(outcomes, bodies, scores, strict=True)
        ]
    except RolloutError as error:
        return [_failed(outcome, error) for outcome in outcomes]


def _order(outcomes: list[Outcome]) -> tuple[str, list[dict[str, Any]]]:
    """Return the environment of a group, and the body of each rollout for `/verify_group`."""
    environments = {outcome.error.server or "" for outcome in outcomes if outcome.error is not None}
    bodies = [{**orjson.loads(outcome.row.body), "response": _response(outcome)} for outcome in outcomes]
    if len(environments) != 1:
        raise RolloutError("input", f"The group has rollouts of several environments: {sorted(environments)}.")
    return environments.pop(), bodies


def _response(outcome: Outcome) -> Any:
    response = None if outcome.error is None else outcome.error.response
    if response is None:
        raise RolloutError("internal", f"'{outcome.row.agent}' does not keep the response of a rollout that fails.")
    return response


def _scored(environment: str, outcome: Outcome, body: dict[str, Any], score: dict[str, Any]) -> Outcome:
    echoed = {name: body[name] for name in ("responses_create_params", "response")}
    scored = read_reply(ServerReply(environment, 200, encode({**echoed, **score})), outcome.row)
    scored.seconds, scored.retries, scored.throttled = outcome.seconds, outcome.retries, outcome.throttled
    return scored


def _failed(outcome: Outcome, error: RolloutError) -> Outcome:
    own = RolloutError(error.cause, str(error), server=error.server, retryable=error.retryable, code=error.code)
    own.response = None if outcome.error is None else outcome.error.response
    return Outcome.failed(outcome.row, own, seconds=outcome.seconds, throttled=outcome.throttled)


class GroupVerifier:
    """Writes outcomes as they come, except those of environments that score groups: they are held until all repeats of
    their row have ended, and scored together. Repeats without a result are left out."""

    def __init__(self, client: ServerClient, write: WriteOutcome, has_others: Callable[[Row], bool]) -> None:
        self._client, self._write, self._has_others = client, write, has_others
        self._left: dict[int, int] = {}
        """The number of repeats of each row that have not ended."""
        self._played: dict[int, list[Outcome]] = {}

    def count(self, rows: Iterable[Row | Outcome]) -> Iterator[Row | Outcome]:
        """Pass rows through and count how many there are of each."""
        for task_index, repeats in group_by_task(rows):
            self._left[task_index] = len(repeats)
            yield from repeats

    async def write(self, outcome: Outcome) -> None:
        task_index = outcome.row.task_index
        left = self._left[task_index] = self._left[task_index] - 1
        if needs_group(outcome):
            self._played.setdefault(task_index, []).append(outcome)
        else:
            await self._write(outcome)
        if left == 0:
            del self._left[task_index]
            if played := self._played.pop(task_index, None):
                await self._score(sorted(played, key=lambda each: each.row.key))

    async def _score(self, played: list[Outcome]) -> None:
        if self._has_others(played[0].row):
            message = (
                "Other repeats of this row were scored without it. To score all of them together: "
                f"{shown_option('resume', 'restart')}"
            )
            error = RolloutError("verifier", message, code="partial_group", retryable=False)
            scored = [_failed(outcome, error) for outcome in played]
        else:
            scored = await verify_group(self._client, played)
        for outcome in scored:
            await self._write(outcome)
