"""Conversations of several turns: who speaks, who ends it, what is recorded of whom."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym import ServerClient, ServerReply
from nemo_gym.errors import RolloutError
from nemo_gym.testing import (
    TRANSPORTS,
    ServerSpec,
    Transport,
    example_row,
    message,
    response_of,
    rows_of,
    running_servers,
    server_spec,
)
from nemo_gym.training import samples_of
from tests.token_items import generations, is_one_sequence

GAME = "resources_servers/example_multi_turn"
DESK_ROW = rows_of("resources_servers/example_user_simulation/data/example.jsonl")[1]
TOKEN_MODEL = Path("tests/servers/responses_api_models/token_model").absolute()
SYSTEM = "A secret of the desk."


def reference(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "name": name}


def agent(environment: str, *, user: bool = False, **config: Any) -> ServerSpec:
    servers: dict[str, Any] = {
        "resources_server": reference("resources_servers", environment),
        "model_server": reference("responses_api_models", "policy_model"),
        **({"user_model_server": reference("responses_api_models", "user_model")} if user else {}),
    }
    return server_spec("agent", "responses_api_agents", "multi_turn_agent", **servers, **config)


def model(name: str, *replies: dict[str, Any]) -> ServerSpec:
    return server_spec(name, "responses_api_models", "token_model", folder=TOKEN_MODEL, replies=list(replies))


def desk(policy: list[dict[str, Any]], user: list[dict[str, Any]], **config: Any) -> list[ServerSpec]:
    return [
        agent("desk", user=True, **config),
        server_spec("desk", "resources_servers", "example_user_simulation", domain="agent"),
        model("policy_model", *policy),
        model("user_model", *user),
    ]


def game(*replies: dict[str, Any], **config: Any) -> list[ServerSpec]:
    environment = server_spec("game", "resources_servers", "example_multi_turn", domain="games")
    return [agent("game", **config), environment, model("policy_model", *replies)]


def row(**user: Any) -> dict[str, Any]:
    """A row of the desk with another persona."""
    params = {**DESK_ROW["responses_create_params"], "input": [{"role": "system", "content": SYSTEM}]}
    own = {"persona": "You are Ben.", "tools": DESK_ROW["user"]["tools"], **user}
    return {**DESK_ROW, "responses_create_params": params, "user": own}


async def play(servers: list[ServerSpec], row: dict[str, Any], *, transport: Transport = "direct") -> dict[str, Any]:
    async with running_servers(servers, transport=transport) as client:
        return await run(client, row)


async def run(client: ServerClient, row: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = orjson.loads((await client.call("agent", "/run", row, answer=ServerReply)).content())
    return record


def said(items: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """Who produced each message, in which turn, and its text."""
    messages = [item for item in items if item["type"] == "message"]
    return [(item["produced_by"], item["turn"], text(item["content"])) for item in messages]


def text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


SOLVED: list[dict[str, Any]] = [{"user": "first", "say": "24"}, {"user": "24: 0", "say": "Let me think: 42"}]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_environment_opens_answers_and_ends(transport: Transport) -> None:
    record = await play(game(*SOLVED), rows_of(f"{GAME}/data/example.jsonl")[0], transport=transport)
    response = record["response"]
    assert said(response["output"]) == [
        ("environment", 0, "My code has 2 digits. You have 6 guesses. What is the first?"),
        ("policy", 1, "24"),
        ("environment", 1, "24: 0 in the right place, 2 elsewhere."),
        ("policy", 2, "Let me think: 42"),
    ]
    assert (record["reward"], response["ended_by"], response["turns"]) == (1.0, "environment", 2)
    assert (response["model_calls"], response["usage"]["output_tokens"]) == (2, 5)
    assert "participants" not in response


async def test_a_row_that_ends_with_a_message_of_the_user_needs_no_opening() -> None:
    record = await play(game({"say": "42"}), example_row("Guess.", secret="42", max_guesses=3))
    assert said(record["response"]["output"]) == [("policy", 1, "42")]


@pytest.mark.parametrize(
    ("config", "reply", "ended_by", "guesses"),
    [
        ({"max_turns": 3}, {"say": "11"}, "max_turns", 3),
        ({"max_steps": 4}, {"call": [{"name": "peek"}]}, "max_steps", 0),
        ({}, {"say": "11"}, "environment", 6),
        ({}, {"say": "4", "incomplete": "max_output_tokens"}, "incomplete", 0),
        ({}, {"think": "Hm."}, "silent", 0),
    ],
)
async def test_what_ends_a_conversation(
    config: dict[str, Any], reply: dict[str, Any], ended_by: str, guesses: int
) -> None:
    """The environment judges every turn of the policy, also the last one."""
    record = await play(game(reply, **config), rows_of(f"{GAME}/data/example.jsonl")[0])
    assert (record["response"]["ended_by"], record["guesses"], record["reward"]) == (ended_by, guesses, 0.0)


async def test_all_turns_are_one_token_trace() -> None:
    record = await play(game(*SOLVED), rows_of(f"{GAME}/data/example.jsonl")[0])
    calls = generations(record["response"]["output"])
    assert [call.text for call in calls] == ["24<end>", "Let me think: 42<end>"]
    assert is_one_sequence(calls)


async def test_an_environment_without_next_message_is_no_result() -> None:
    servers = desk([{"say": "Hello."}], [])
    del servers[0].config["user_model_server"]
    with pytest.raises(RolloutError, match="'desk' has no next_message") as caught:
        await play(servers, DESK_ROW)
    assert (caught.value.cause, caught.value.server, caught.value.retryable) == ("environment", "desk", False)


POLICY: list[dict[str, Any]] = [
    {"user": "broken", "turn": 0, "call": [{"name": "test_line"}]},
    {"user": "broken", "turn": 1, "think": "A private thought.", "say": "Restart it."},
    {"say": "Goodbye."},
]
USER: list[dict[str, Any]] = [
    {"user": "How can I help", "say": "It is broken."},
    {"user": "Restart", "turn": 0, "call": [{"name": "restart_router"}]},
    {"user": "Restart", "turn": 1, "think": "Persona.", "say": "It works."},
    {"say": "Thanks. ###STOP### and more"},
]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_both_sides_are_recorded_apart(transport: Transport) -> None:
    record = await play(desk(POLICY, USER), row(tools=DESK_ROW["user"]["tools"]), transport=transport)
    response = record["response"]
    policy, user = response["output"], response["participants"]["user"]
    assert said(policy) == [
        ("user", 0, "It is broken."),
        ("policy", 1, "Restart it."),
        ("user", 1, "It works."),
        ("policy", 2, "Goodbye."),
        ("user", 2, "Thanks."),
    ]
    assert [item["produced_by"] for item in policy if item["type"] != "message"] == ["policy", "tool", "policy"]
    assert said(user["response"]["output"]) == [
        ("user", 0, "It is broken."),
        ("policy", 1, "Restart it."),
        ("user", 1, "It works."),
        ("policy", 2, "Goodbye."),
        ("user", 2, "Thanks. ###STOP### and more"),
    ]
    outputs = [item["output"] for item in user["response"]["output"] if item["type"] == "function_call_output"]
    assert outputs == ['{"router":"It has restarted."}']
    assert (response["ended_by"], response["turns"], response["model_calls"]) == ("user", 2, 3)
    assert user["response"]["model_calls"] == 4
    assert response["usage"]["output_tokens"] == 3 + 2 + 1
    assert user["response"]["usage"]["output_tokens"] == 3 + 1 + 2 + 4
    assert response["model_seconds"] > 0
    assert user["response"]["model_seconds"] > 0


async def test_only_the_tokens_of_the_policy_are_in_the_record() -> None:
    record = await play(desk(POLICY, USER), row(tools=DESK_ROW["user"]["tools"]))
    response = record["response"]
    user = response.pop("participants")["user"]
    calls = generations(response["output"])
    assert [call.text for call in calls] == ["test_line({})<end>", "Restart it.<end>", "Goodbye.<end>"]
    assert is_one_sequence(calls)
    (sample,) = samples_of(record)
    assert bytes(sample.tokens.sampled_ids) == b"test_line({})<end>Restart it.<end>Goodbye.<end>"
    assert b"token_ids" not in orjson.dumps(user)
    assert b"log_probs" not in orjson.dumps(user)
    assert user["is_trainable"] is False


async def test_neither_side_sees_the_prompt_the_thoughts_or_the_tools_of_the_other() -> None:
    response = (await play(desk(POLICY, USER), row(tools=DESK_ROW["user"]["tools"])))["response"]
    user = response.pop("participants")["user"]
    seen_by_user = orjson.dumps([user["responses_create_params"]["input"], user["response"]["output"]]).decode()
    for hidden in (SYSTEM, "A private thought.", "test_line"):
        assert hidden not in seen_by_user
    prompts = [call.prompt for call in generations(response["output"])]
    for hidden in ("You are Ben.", "restart_router", "Persona.", "###STOP###"):
        assert all(hidden not in prompt for prompt in prompts)


async def test_the_first_message_may_be_given_by_the_row() -> None:
    goodbye = [{"user": "Goodbye", "say": "###STOP###"}]
    greeted = await play(desk([{"say": "Goodbye."}], goodbye), row(greeting="Hello!"))
    given = {**row()}
    given["responses_create_params"] = {**given["responses_create_params"], "input": "Hello!"}
    from_input = await play(desk([{"say": "Goodbye."}], goodbye), given)
    assert said(greeted["response"]["output"]) == [("user", 0, "Hello!"), ("policy", 1, "Goodbye.")]
    assert said(from_input["response"]["output"]) == [("policy", 1, "Goodbye.")]
    for record in (greeted, from_input):
        user_input = record["response"]["participants"]["user"]["responses_create_params"]["input"]
        assert [(item["role"], item["content"]) for item in user_input[1:]] == [
            ("user", "Hello. How can I help you?"),
            ("assistant", "Hello!"),
        ]


async def test_the_row_may_have_its_own_template_marker_and_limit() -> None:
    user = {"template": "<{persona}|{stop_marker}>", "stop_marker": "BYE", "greeting": "Hello!"}
    stopped = await play(desk([{"say": "Hm."}], [{"say": "BYE"}]), row(**user))
    user_input = stopped["response"]["participants"]["user"]["responses_create_params"]["input"][0]
    assert (user_input["role"], user_input["content"]) == ("system", "<You are Ben.|BYE>")
    assert stopped["response"]["ended_by"] == "user"
    limited = await play(desk([{"say": "Hm."}], [{"say": "And?"}]), row(max_turns=3, greeting="Hello!"))
    assert limited["response"]["ended_by"] == "user_max_turns"
    assert [who for who, _, _ in said(limited["response"]["output"])] == ["user", "policy"] * 3


REFUSAL = {"type": "refusal", "refusal": "I cannot play this person."}


def raw(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A reply of the scripted model with exactly these items and fields."""
    return {"garbage": orjson.dumps(response_of(*items, **fields)).decode()}


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ({"status": 500}, None),
        ({"garbage": "<html>"}, None),
        ({"say": "  "}, "empty"),
        ({"think": "Hm."}, "silent"),
        ({"say": "I wan", "incomplete": "max_output_tokens"}, "incomplete"),
        (raw({**message("I wan"), "status": "incomplete"}), "incomplete"),
        (raw(message("I wan"), status="incomplete"), "incomplete"),
        (raw(message("I want"), error={"code": "server_error", "message": "Oops."}), "failed"),
        (raw({**message(""), "content": [REFUSAL]}), "refused"),
        (raw({**message(""), "content": [*message("I want")["content"], REFUSAL]}), "refused"),
        (raw({**message(""), "content": [REFUSAL]}, message("I want")), "refused"),
        ({"call": [{"name": "restart_router"}]}, "max_steps"),
    ],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_simulated_user_that_fails_is_no_result_of_its_model_server(
    reply: dict[str, Any], code: str | None, transport: Transport
) -> None:
    user = [{"user": "Please", **reply}]
    with pytest.raises(RolloutError) as caught:
        await play(desk([{"say": "Please explain."}], user, max_steps=5), row(greeting="Hello!"), transport=transport)
    assert (caught.value.cause, caught.value.server, caught.value.code) == ("model", "user_model", code)


@pytest.mark.parametrize("user", [None, {}, {"persona": 7}, {"persona": "Ben", "greetings": "Hi"}, "Ben"])
async def test_a_row_without_a_valid_persona_is_an_input_error(user: Any) -> None:
    with pytest.raises(RolloutError, match="user") as caught:
        await play(desk([], []), {**DESK_ROW, "user": user})
    assert (caught.value.cause, caught.value.retryable) == ("input", False)
