"""A scripted model plays the game through the real agent, by the strategy of trying all codes that fit the hints."""

from typing import Any

import orjson
import pytest

from nemo_gym import ServerReply
from nemo_gym.testing import (
    BrowserLikeClient,
    client_for,
    example_row,
    response_of,
    rows_of,
    running_servers,
    says,
    server_spec,
)
from resources_servers.example_multi_turn.app import CodeResourcesServer

ROWS = rows_of("resources_servers/example_multi_turn/data/example.jsonl")


async def play(row: dict[str, Any], *guesses: str) -> dict[str, Any]:
    """The record of a game in which the model makes these guesses, the last of them from then on."""
    replies = [{"times": 1, "say": f"I guess {guess}."} for guess in guesses[:-1]] + [{"say": guesses[-1]}]
    servers: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "game"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    stack = [
        server_spec("agent", "responses_api_agents", "multi_turn_agent", **servers),
        server_spec("game", "resources_servers", "example_multi_turn", domain="games"),
        server_spec("policy_model", "responses_api_models", "scripted_model", replies=replies),
    ]
    async with running_servers(stack) as client:
        reply = await client.call("agent", "/run", row, answer=ServerReply)
    record: dict[str, Any] = orjson.loads(reply.content())
    return record


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["secret"]))
async def test_a_game_that_finds_the_code_is_rewarded(row: dict[str, Any]) -> None:
    secret, length = row["secret"], len(row["secret"])
    record = await play(row, "1" * length, secret[::-1] if secret != secret[::-1] else "2" * length, secret)
    assert (record["reward"], record["guesses"]) == (1.0, 3)


@pytest.mark.parametrize(
    "guess",
    [
        pytest.param("11", id="wrong"),
        pytest.param("I give up.", id="no guess"),
        pytest.param("42 or 24", id="the last number counts"),
        pytest.param("not 42", id="denied"),
        pytest.param("<!-- 42 -->", id="hidden"),
        pytest.param("0042", id="too long"),
        pytest.param("<think>42</think>Let me see.", id="only thought of"),
        pytest.param("٤٢", id="other digits"),
        pytest.param(" ".join(f"{code:02}" for code in range(100)), id="all codes at once"),
    ],
)
async def test_a_game_that_does_not_find_it_is_not_rewarded(guess: str) -> None:
    record = await play(ROWS[0], guess)
    assert (record["reward"], record["guesses"]) == (0.0, ROWS[0]["max_guesses"])


async def hint(environment: BrowserLikeClient, guess: str) -> str | None:
    body = {**example_row(), "response": says(guess), "turn": 1}
    message = (await environment.post("/next_message", json=body)).json()["message"]
    return None if message is None else message["content"]


@pytest.mark.parametrize(
    ("guess", "expected"),
    [
        ("6116", "6116: 1 in the right place, 2 elsewhere."),
        ("1366", "1366: 0 in the right place, 4 elsewhere."),
        ("6666", "6666: 2 in the right place, 0 elsewhere."),
        ("999", "That is no code of 4 digits."),
        ("6631.5", "That is no code of 4 digits."),
        ("Guess 3: 6116 (digits 1 to 4)", "6116: 1 in the right place, 2 elsewhere."),
        ("6631", None),
    ],
)
async def test_hints(guess: str, expected: str | None) -> None:
    async with client_for(CodeResourcesServer) as environment:
        await environment.post("/seed_session", json=ROWS[4])
        assert await hint(environment, guess) == expected


async def test_an_answer_without_a_game_scores_nothing() -> None:
    async with client_for(CodeResourcesServer) as environment:
        scored = await environment.post("/verify", json={**ROWS[0], "response": response_of()})
        assert scored.json()["reward"] == 0.0


@pytest.mark.parametrize("role", ["assistant", "user"])
async def test_a_game_goes_on_from_no_message_of_its_row(role: str) -> None:
    """Its guesses would be made again, without those of before."""
    said = [{"role": "assistant", "content": "11"}] if role == "assistant" else []
    given = {"input": [*said, {"role": "user", "content": "11: 0 in the right place."}]}
    async with client_for(CodeResourcesServer) as environment:
        seeded = await environment.post("/seed_session", json={**ROWS[0], "responses_create_params": given})
        assert seeded.status == (422 if role == "assistant" else 200)
