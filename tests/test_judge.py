"""Verdicts of a scripted judge, and what becomes of a judge that fails."""

import asyncio
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.answers import last_part_of_last_item
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.common.deadline import timeout
from nemo_gym.errors import RolloutError
from nemo_gym.judge import MAX_ATTEMPTS, Judge, JudgeConfig, JudgeError, Verdict, ask_both_ways, first_label
from nemo_gym.llm_api.responses import NeMoGymResponse
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import TRANSPORTS, Transport, calls, message, response_of, running_servers, says, server_spec

REFUSAL = {"type": "refusal", "refusal": "[[A=B]]"}
USER = {"type": "message", "role": "user", "content": "[[A=B]]"}


def scripted(*replies: dict[str, Any], **config: Any) -> ServerSpec:
    return server_spec("judge", "responses_api_models", "scripted_model", replies=list(replies), **config)


def config(**fields: Any) -> JudgeConfig:
    return JudgeConfig.model_validate({"judge_model_server": {"name": "judge"}, **fields})


async def asked(reply: dict[str, Any], *more: dict[str, Any], **fields: Any) -> Verdict:
    async with running_servers([scripted(reply, *more)]) as client:
        return await Judge(config(**fields)).ask(client, "Are they equal?")


def with_content(*parts: dict[str, Any]) -> dict[str, Any]:
    return response_of({**message(""), "content": list(parts)})


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (says("one", "two"), "two"),
        (with_content(part("one"), part("two")), "two"),
        (with_content(part("one"), REFUSAL), ""),
        (with_content(), ""),
        (response_of(message("one"), calls("tool")), ""),
        (response_of(message("one"), USER), ""),
        (response_of({"type": "message", "role": "assistant", "content": "plain"}), "plain"),
        (response_of(), ""),
    ],
)
def test_the_last_part_of_the_last_item_is_the_verdict(response: dict[str, Any], text: str) -> None:
    assert last_part_of_last_item(NeMoGymResponse.model_validate(response)) == text


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("so [[A=B]]", "[[A=B]]"),
        ("so [[A!=B]]", "[[A!=B]]"),
        ("[[A=B]] or [[A!=B]]", "[[A=B]]"),
        ("[[A!=B]] or [[A=B]]", "[[A!=B]]"),
        ("[[a=b]] [A=B]", None),
        ("", None),
    ],
)
def test_the_first_label_wins(text: str, label: str | None) -> None:
    assert first_label(text, "[[A=B]]", "[[A!=B]]") == label


@pytest.mark.parametrize(
    ("reply", "label", "is_equal"),
    [
        ({"say": "Same. [[A=B]]"}, "[[A=B]]", True),
        ({"say": "Not the same. [[A!=B]]"}, "[[A!=B]]", False),
        ({"say": "I cannot tell."}, None, False),
        ({"say": "[[A=B]]", "call": [{"name": "help"}]}, None, False),
    ],
)
async def test_a_judge_that_answers_gives_a_verdict(reply: dict[str, Any], label: str | None, is_equal: bool) -> None:
    verdict = await asked(reply)
    assert (verdict.label, verdict.is_equal) == (label, is_equal)


async def test_other_labels_can_be_agreed_on() -> None:
    async with running_servers([scripted({"say": "NO, not YES"})]) as client:
        verdict = await Judge(config(), equal_label="YES", not_equal_label="NO").ask(client, "Are they equal?")
    assert (verdict.label, verdict.is_equal) == ("NO", False)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_judge_is_asked_with_the_configured_params_and_messages(transport: Transport) -> None:
    params = {"temperature": 0.5, "max_output_tokens": 9, "input": [{"role": "user", "content": "Not used."}]}
    async with running_servers([scripted({"say": "[[A=B]]"})], transport=transport) as client:
        judge = Judge(config(judge_responses_create_params=params), system="Be fair.")
        verdict = await judge.ask(client, "Are {they} equal?")
    assert verdict.params.model_dump(exclude_unset=True, exclude_none=True) == {
        "temperature": 0.5,
        "max_output_tokens": 9,
        "input": [{"role": "system", "content": "Be fair."}, {"role": "user", "content": "Are {they} equal?"}],
    }
    assert verdict.response.temperature == 0.5
    assert verdict.is_equal


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({"status": 500}, "answered 500"),
        ({"status": 400}, "answered 400"),
        ({"garbage": '{"not": "a response"}'}, "no valid NeMoGymResponse"),
        ({"garbage": "{cut off"}, "no valid NeMoGymResponse"),
        ({"user": "something else", "say": "[[A=B]]"}, "no reply"),
        (
            {"garbage": '{"id":"r","created_at":0,"model":"m","output":[],"status":"failed"}'},
            r"has no verdict \(failed\)",
        ),
        ({"think": "[[A=B]]"}, r"has no verdict \(empty\)"),
        ({}, r"has no verdict \(empty\)"),
    ],
)
async def test_a_judge_that_fails_ends_the_rollout_without_a_result(reply: dict[str, Any], message: str) -> None:
    with pytest.raises(RolloutError, match=message) as caught:
        await asked(reply)
    assert (caught.value.cause, caught.value.server) == ("judge", "judge")


async def test_a_judge_that_is_late_ends_the_rollout_without_a_result() -> None:
    with pytest.raises(RolloutError, match=r"did not finish within 0\.2 s") as caught:
        await asked({"say": "[[A=B]]", "latency_s": 60}, judge_timeout_s=0.2)
    assert (caught.value.cause, caught.value.server) == ("judge", "judge")


async def test_a_rollout_whose_own_time_is_up_says_so() -> None:
    with pytest.raises(RolloutError) as caught:
        async with timeout(0.5, what="The rollout"):
            await asked({"say": "[[A=B]]", "latency_s": 60})
    assert caught.value.cause == "timeout"


async def test_an_answer_that_was_cut_off_is_asked_for_again_but_not_for_ever() -> None:
    last_chance: dict[str, Any] = {"user": "equal", "say": "[[A=B]]"}
    garbage = {"user": "equal", "garbage": "{cut"}
    assert (await asked({**garbage, "times": MAX_ATTEMPTS - 1}, last_chance)).is_equal
    with pytest.raises(RolloutError):
        await asked({**garbage, "times": MAX_ATTEMPTS}, last_chance)


async def test_an_error_status_is_not_tried_again_since_the_model_server_did() -> None:
    with pytest.raises(RolloutError):
        await asked({"user": "equal", "status": 503, "times": 1}, {"user": "equal", "say": "[[A=B]]"})


@pytest.mark.parametrize("name", ["judge", "nobody"])
async def test_an_unreachable_judge_is_a_judge_that_fails(name: str) -> None:
    async with ServerClient(addresses={"judge": "http://127.0.0.1:1"}) as client:
        judge = Judge(config(judge_model_server={"name": name}, judge_timeout_s=0.5))
        with pytest.raises(RolloutError, match="The judge failed") as caught:
            await judge.ask(client, "Are they equal?")
    assert caught.value.cause == "judge"


class CountingPeer:
    """A judge that counts how many ask it at once."""

    def __init__(self) -> None:
        self.asking = self.most_asking = 0
        self.concurrency: int | None = None

    async def direct(self, *_args: Any, **_options: Any) -> ServerReply:
        self.asking += 1
        self.most_asking = max(self.most_asking, self.asking)
        for _ in range(200):  # let everybody else come this far
            await asyncio.sleep(0)
        self.asking -= 1
        return ServerReply("judge", 200, NeMoGymResponse.model_validate(says("[[A=B]]")))

    def does_nothing(self, path: str) -> bool:
        return False

    def release(self, token: str) -> None: ...

    def blocked(self) -> dict[str, dict[str, float]]:
        return {}


@pytest.mark.parametrize(("most", "most_asking"), [(1, 1), (3, 3), (None, 100)])
async def test_no_more_questions_are_open_than_allowed(most: int | None, most_asking: int) -> None:
    peer = CountingPeer()
    client, judge = ServerClient(local={"judge": peer}), Judge(config(judge_endpoint_max_concurrency=most))
    verdicts = await asyncio.gather(*(judge.ask(client, "Are they equal?") for _ in range(100)))
    assert all(verdict.is_equal for verdict in verdicts)
    assert peer.most_asking == most_asking


def test_the_default_limit_is_64() -> None:
    assert config().judge_endpoint_max_concurrency == 64


async def test_waiting_for_a_turn_counts_against_the_time_of_a_question() -> None:
    async with running_servers([scripted({"say": "[[A=B]]"}, latency_s=0.2)]) as client:
        judge = Judge(config(judge_endpoint_max_concurrency=1, judge_timeout_s=0.3))
        asking = (judge.ask(client, "Are they equal?") for _ in range(2))
        _, second = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(second, RolloutError)
    assert second.cause == "judge"


@pytest.mark.parametrize(
    ("replies", "verdicts"),
    [
        ([("A: one", "[[A=B]]"), ("A: two", "[[A=B]]")], [True, True]),
        ([("A: one", "[[A=B]]"), ("A: two", "[[A!=B]]")], [True, False]),
        ([("A: one", "[[A!=B]]")], [False]),
    ],
)
async def test_answers_that_are_found_equal_are_shown_again_the_other_way_round(
    replies: list[tuple[str, str]], verdicts: list[bool]
) -> None:
    async with running_servers([scripted(*({"user": user, "say": say} for user, say in replies))]) as client:
        judge = Judge(config())

        async def ask(one: str, other: str) -> Verdict:
            return await judge.ask(client, f"A: {one} B: {other}")

        assert [verdict.is_equal for verdict in await ask_both_ways(ask, "one", "two")] == verdicts


def test_a_judge_that_is_asked_has_to_be_named() -> None:
    with pytest.raises(ValidationError, match=r"judge_model_server\.name has to be given"):
        JudgeConfig()


def test_a_judge_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(JudgeError("refused", "no verdict", server="judge")))
    assert (error.cause, error.code, error.server, str(error)) == ("judge", "refused", "judge", "no verdict")


@pytest.mark.parametrize("reward", [float("nan"), {"failed": 0.0}, {"unknown": 0.0}])
def test_a_failure_reward_is_finite_and_for_replies_only(reward: Any) -> None:
    with pytest.raises(ValidationError):
        config(judge_failure_reward=reward)
