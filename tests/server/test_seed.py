"""What happens before the first step: rows that cannot be scored are refused, earlier tool calls are replayed."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    SessionState,
    SimpleResourcesServer,
    SlowCheck,
    tool,
)
from nemo_gym.client.server_client import CookieJar, ServerReply
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.config.types import ServerSpec
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.server.seed import RowValidator
from nemo_gym.testing import Transport, client_for, example_row, response_of, running_servers, server_spec
from tests.stacks import counter, scripted_servers

over_both_transports = pytest.mark.parametrize("transport", ["direct", "http"])
LEDGER = PARENT_DIR / "tests/servers/resources_servers/legacy_ledger"
FAILING_MODEL = [{"status": 500}]
DONE = [{"say": "Done."}]


def mcqa() -> ServerSpec:
    return server_spec("mcqa", "resources_servers", "mcqa", domain="knowledge")


def ledger() -> ServerSpec:
    return server_spec("ledger", "resources_servers", "legacy_ledger", folder=LEDGER, domain="other")


def history(*calls: tuple[str, str, str | None], **fields: Any) -> dict[str, Any]:
    """A row that begins with these calls: name, arguments, output."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "Count."}]
    for number, (name, arguments, output) in enumerate(calls):
        call_id = f"call_{number}"
        items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
        if output is not None:
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
    return {"responses_create_params": {"input": items}, **fields}


ADDED = ("increment_counter", '{"count": 2}', '{"success":true}')
READ = ("get_counter_value", "{}", '{"count": 5}')


async def played(environment: ServerSpec, row: dict[str, Any], transport: Transport, replies: Any) -> Any:
    """The reward of a rollout or, if it has no result, its error."""
    async with running_servers(scripted_servers(environment, replies), transport=transport) as client:
        try:
            answer = await client.call("agent", "/run", row, answer=ServerReply, jar=CookieJar())
        except RolloutError as error:
            return error
        return json.loads(answer.content())["reward"]


@over_both_transports
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"expected_answer": "C"}, "'C'"),
        ({"expected_answer": None}, "expected_answer"),
        ({"options": None}, "options"),
        ({"options": "A or B"}, "options"),
        ({"grading_mode": "by_taste"}, "grading_mode"),
    ],
)
async def test_a_row_that_cannot_be_scored_ends_before_the_model_is_called(
    fields: dict[str, Any], named: str, transport: Transport
) -> None:
    row = example_row(**{"options": [{"A": "one"}, {"B": "two"}], "expected_answer": "B", **fields})
    error = await played(mcqa(), row, transport, FAILING_MODEL)
    assert (error.cause, error.server, error.retryable) == ("input", "mcqa", False)
    assert named in str(error)


@over_both_transports
async def test_earlier_calls_are_made_again_before_the_first_turn(transport: Transport) -> None:
    row = history(ADDED, READ, initial_count=3, expected_count=6)
    more = [{"turn": 2, "call": [{"name": "increment_counter", "arguments": {"count": 1}}]}, {"say": "Done."}]
    assert await played(counter(), row, transport, more) == 1.0


@over_both_transports
@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([ADDED, ("get_counter_value", "{}", '{"count": 6}')], '{"count": 6}'),
        ([("increment_counter", '{"count": 2}', None)], "no output"),
        ([("increment_counter", '{"count": "two"}', '{"success":true}')], "increment_counter"),
    ],
)
async def test_earlier_calls_that_answer_otherwise_now_are_no_result(
    calls: list[tuple[str, str, str | None]], named: str, transport: Transport
) -> None:
    row = history(*calls, initial_count=3, expected_count=5)
    error = await played(counter(), row, transport, FAILING_MODEL)
    assert (error.cause, error.retryable) == ("input", False)
    assert named in str(error)


@over_both_transports
async def test_an_earlier_call_of_a_tool_that_the_row_does_not_offer_is_not_made(transport: Transport) -> None:
    row = history(ADDED, ("get_counter_value", "{}", "refused"), initial_count=3, expected_count=3)
    row["responses_create_params"]["tools"] = []
    assert await played(counter(), row, transport, DONE) == 1.0


class Steps(SessionState):
    count: int = 0


class Unsaid(SimpleResourcesServer):
    @tool
    async def step(self, steps: Steps) -> int:
        """Step."""
        steps.count += 1
        return steps.count

    async def verify(self, body: BaseVerifyRequest, steps: Steps) -> float:
        return float(steps.count)


class Ignoring(Unsaid):
    given_history = "ignore"


class Refusing(Unsaid):
    given_history = "refuse"


class Replaying(Unsaid):
    given_history = "replay"


class Misspelt(Unsaid):
    given_history = "reply"  # type: ignore[assignment]


class Stateless(SimpleResourcesServer):
    @tool
    async def step(self) -> int:
        """Step."""
        return 1

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("kind", "reward"), [(Unsaid, None), (Refusing, None), (Ignoring, 0.0), (Replaying, 2.0), (Stateless, 0.0)]
)
async def test_an_environment_with_state_says_what_earlier_calls_mean(
    kind: type[SimpleResourcesServer], reward: float | None
) -> None:
    row = history(("step", "{}", "1"), ("step", "{}", "2"))
    async with client_for(kind) as environment:
        seeded = await environment.post("/seed_session", json=row)
        assert seeded.status == (422 if reward is None else 200)
        if reward is None:
            assert (seeded.json()["error"]["cause"], "given_history" in seeded.text) == ("input", True)
        else:
            scored = await environment.post("/verify", json={**row, "response": response_of()})
            assert scored.json()["reward"] == reward


def test_a_value_of_given_history_that_means_nothing_is_an_error_at_start() -> None:
    with pytest.raises(ConfigError, match=r"'reply'.*replay, ignore, refuse"):
        RowValidator(Misspelt)


@over_both_transports
async def test_a_public_environment_ignores_earlier_calls_with_one_warning(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    row = history(("book", '{"amount": 1}', "1"), opening_balance=1, expected_balance=1)
    with caplog.at_level(logging.WARNING):
        async with running_servers([ledger()], transport=transport) as client:
            for _ in range(2):
                await client.call("ledger", "/seed_session", row, answer=ServerReply, jar=CookieJar())
    assert [record.message.count("given_history") for record in caplog.records] == [1]


@over_both_transports
async def test_a_public_environment_may_get_fields_from_its_agent_later(transport: Transport) -> None:
    async with running_servers([ledger()], transport=transport) as client:
        row = example_row(opening_balance=1)
        assert (await client.send("ledger", "/seed_session", row, jar=CookieJar())).status == 200


class SeedRequest(BaseSeedSessionRequest):
    number: int


class Checking(SimpleResourcesServer):
    async def seed_session(self, body: SeedRequest) -> None:
        """Nothing."""

    @classmethod
    def check_row(cls, row: dict[str, Any]) -> None:
        if row["number"] < row.get("least", 0) or row["responses_create_params"]["input"] == "":
            raise ValueError("negative or empty")

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("number", "text", "status"), [(1, "x", 200), (-1, "x", 422), (1, "", 422), ("one", "x", 422)]
)
async def test_check_row_sees_the_whole_row_after_its_fields_were_checked(number: Any, text: str, status: int) -> None:
    row = {"responses_create_params": {"input": text}, "number": number}
    async with client_for(Checking) as environment:
        assert (await environment.post("/seed_session", json=row)).status == status
        assert (await environment.post("/seed_session", json={"number": 1})).status == 200  # no row
    if status == 200:
        RowValidator(Checking).check(row)
    else:
        with pytest.raises(ValueError, match=r"negative|number"):
            RowValidator(Checking).check(row)


async def test_a_row_that_check_row_cannot_read_is_not_valid() -> None:
    row = {"responses_create_params": {"input": "x"}, "number": 1, "least": "none"}
    async with client_for(Checking) as environment:
        assert (await environment.post("/seed_session", json=row)).status == 422
    with pytest.raises(ValueError, match="TypeError"):
        RowValidator(Checking).check(row)


class CheckingSlowly(SimpleResourcesServer):
    @classmethod
    def slow_check(cls, row: dict[str, Any], settings: Mapping[str, Any]) -> SlowCheck | None:
        return None if row["word"] == "plain" else SlowCheck(slow_reason, (row["word"], row["log"]), 1.0)

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


def slow_reason(word: str, log: str) -> str | None:
    """Notes that it was called."""
    with Path(log).open("a") as file:
        file.write(f"{word}\n")
    while word == "endless":
        pass
    return f"{word} is bad" if word == "bad" else None


async def test_a_slow_check_runs_once_before_the_rollout_and_its_time_is_limited(tmp_path: Path) -> None:
    log = tmp_path / "log"
    row = {"responses_create_params": {"input": ""}, "log": str(log)}
    async with client_for(CheckingSlowly) as environment:
        for word, status in (
            ("plain", 200),
            ("good", 200),
            ("good", 200),
            ("bad", 422),
            ("bad", 422),
            ("endless", 422),
        ):
            reply = await environment.post("/seed_session", json={**row, "word": word})
            assert reply.status == status
            assert ("bad is bad" in reply.text) == (word == "bad")
    assert log.read_text().split() == ["good", "bad", "endless"]
