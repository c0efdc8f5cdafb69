"""Several policies under one rollout: each with its own conversation, reward and token trace."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym import ServerReply
from nemo_gym.errors import RolloutError
from nemo_gym.participants import policy_records
from nemo_gym.testing import TRANSPORTS, ServerSpec, Transport, rows_of, running_servers, server_spec
from nemo_gym.training import make_groups
from tests.token_items import generations, is_one_sequence

ROW = rows_of("resources_servers/example_negotiation/data/example.jsonl")[0]
TOKEN_MODEL = Path("tests/servers/responses_api_models/token_model").absolute()
REPLIES: list[dict[str, Any]] = [
    {"user": "listens", "turn": 0, "call": [{"name": "make_offer", "arguments": {"price": 95}}]},
    {"user": "listens", "turn": 1, "say": "I give 95."},
    {"user": "I give 95.", "think": "Too little.", "say": "No."},
    {"user": "says: No", "say": "Please!"},
    {"user": "Please", "turn": 0, "call": [{"name": "accept_offer"}]},
    {"user": "Please", "turn": 1, "say": "Fine."},
]
"""Self-play: one model, two policies."""


def servers(
    replies: list[dict[str, Any]],
    *,
    environment: str = "example_negotiation",
    cut_off_reward: float | None = None,
    **config: Any,
) -> list[ServerSpec]:
    references: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "negotiation"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    referee: dict[str, Any] = {"domain": "games", "cut_off_reward": cut_off_reward}
    return [
        server_spec("agent", "responses_api_agents", "multi_policy_agent", **references, **config),
        server_spec("negotiation", "resources_servers", environment, **referee),
        server_spec("policy_model", "responses_api_models", "token_model", folder=TOKEN_MODEL, replies=replies),
    ]


async def play(
    servers: list[ServerSpec], row: dict[str, Any] = ROW, *, transport: Transport = "direct"
) -> dict[str, Any]:
    async with running_servers(servers, transport=transport) as client:
        reply = await client.call("agent", "/run", row, answer=ServerReply)
    record: dict[str, Any] = orjson.loads(reply.content())
    return record


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_each_policy_has_its_own_conversation_reward_and_tokens(transport: Transport) -> None:
    record = await play(servers(REPLIES), transport=transport)
    policies = policy_records(record)
    assert list(policies) == ["seller", "buyer"]
    assert {name: policy["reward"] for name, policy in policies.items()} == {"seller": 0.25, "buyer": 0.75}
    generated = {name: generations(policy["response"]["output"]) for name, policy in policies.items()}
    assert {name: [call.text for call in calls] for name, calls in generated.items()} == {
        "seller": ["No.<end>", "accept_offer({})<end>", "Fine.<end>"],
        "buyer": ['make_offer({"price":95})<end>', "I give 95.<end>", "Please!<end>"],
    }
    for name, calls in generated.items():
        assert is_one_sequence(calls)
        prompt = policies[name]["responses_create_params"]["input"][0]["content"]
        assert calls[0].prompt.startswith(f"<system>{prompt}<end>")
    assert (record["response"]["turns"], record["response"]["ended_by"]) == (4, "environment")
    assert policies["buyer"]["response"]["model_calls"] == 3
    assert policies["buyer"]["response"]["usage"]["output_tokens"] == 4


async def test_a_trainer_gets_the_samples_of_each_policy_with_its_reward() -> None:
    policies = policy_records(await play(servers(REPLIES)))
    groups = make_groups(policies.items())
    samples = {str(group.key): group.samples for group in groups}
    sampled = {name: [bytes(sample.tokens.sampled_ids) for sample in each] for name, each in samples.items()}
    assert sampled == {
        "seller": [b"No.<end>accept_offer({})<end>Fine.<end>"],
        "buyer": [b'make_offer({"price":95})<end>I give 95.<end>Please!<end>'],
    }
    assert [group.rewards for group in groups] == [[0.25], [0.75]]


async def test_items_say_who_produced_them_and_when() -> None:
    policies = policy_records(await play(servers(REPLIES)))
    conversations = {
        name: [(item["produced_by"], item["turn"], item["type"]) for item in policy["response"]["output"]]
        for name, policy in policies.items()
    }
    assert conversations["buyer"] == [
        ("environment", 0, "message"),
        ("buyer", 1, "function_call"),
        ("tool", 1, "function_call_output"),
        ("buyer", 1, "message"),
        ("environment", 2, "message"),
        ("buyer", 3, "message"),
    ]
    assert [who for who, _, _ in conversations["seller"]] == [
        "environment",
        "seller",
        "seller",
        "environment",
        "seller",
        "tool",
        "seller",
    ]


async def test_no_policy_sees_the_prompt_or_the_thoughts_of_the_other() -> None:
    policies = policy_records(await play(servers(REPLIES)))
    prompts = [call.prompt for call in generations(policies["buyer"]["response"]["output"])]
    assert all("It cost you" not in prompt and "Too little" not in prompt for prompt in prompts)


@pytest.mark.parametrize(
    ("config", "reply", "ended_by"),
    [
        ({"max_turns": 3}, {"say": "Hm."}, "max_turns"),
        ({"max_steps": 2}, {"call": [{"name": "accept_offer"}]}, "max_steps"),
        ({}, {"say": "H", "incomplete": "max_output_tokens"}, "incomplete"),
    ],
)
async def test_what_ends_a_rollout(config: dict[str, Any], reply: dict[str, Any], ended_by: str) -> None:
    record = await play(servers([reply], **config))
    assert (record["response"]["ended_by"], record["rewards"]) == (ended_by, {"seller": 0.0, "buyer": 0.0})


CUT_OFF = {"say": "H", "incomplete": "max_output_tokens"}
BUYS: list[dict[str, Any]] = [
    {"user": "listens", "turn": 0, "call": [{"name": "make_offer", "arguments": {"price": 95}}]},
    {"user": "listens", "turn": 1, "say": "I give 95."},
    {"user": "I give 95.", "turn": 0, "call": [{"name": "accept_offer"}]},
]


@pytest.mark.parametrize(
    ("replies", "rewards"),
    [
        (BUYS, {"seller": -1.0, "buyer": 0.75}),
        ([], {"seller": 0.0, "buyer": -1.0}),
        (REPLIES, {"seller": 0.25, "buyer": 0.75}),
    ],
    ids=["seller", "buyer", "neither"],
)
async def test_only_the_policy_that_was_cut_off_gets_the_reward_for_it(
    replies: list[dict[str, Any]], rewards: dict[str, float]
) -> None:
    record = await play(servers([*replies, CUT_OFF], cut_off_reward=-1.0))
    assert (record["reward"], record["rewards"]) == (rewards["seller"], rewards)
    assert {name: policy["reward"] for name, policy in policy_records(record).items()} == rewards


@pytest.mark.parametrize("policies", [None, {}, [], {"seller": 7}, {"seller": {"inputs": []}}])
async def test_a_row_without_valid_policies_is_an_input_error(policies: Any) -> None:
    with pytest.raises(RolloutError, match="policies") as caught:
        await play(servers(REPLIES), {**ROW, "policies": policies})
    assert caught.value.cause == "input"


async def test_policies_that_the_environment_does_not_have_are_an_error_of_the_row() -> None:
    with pytest.raises(RolloutError, match="ann, bob") as caught:
        await play(servers(REPLIES), {**ROW, "policies": {"ann": {"input": "Hi"}, "bob": {"input": "Hi"}}})
    assert (caught.value.cause, caught.value.server) == ("input", "negotiation")


async def test_an_environment_that_rewards_only_the_rollout_is_no_result_of_the_verifier() -> None:
    stack = servers([{"say": "42"}], environment="example_multi_turn")
    row = {"responses_create_params": {"input": []}, "secret": "42", "max_guesses": 1}
    with pytest.raises(RolloutError) as caught:
        await play(stack, {**row, "policies": {"policy": {"input": "Hi"}}})
    assert caught.value.cause in ("environment", "verifier")
