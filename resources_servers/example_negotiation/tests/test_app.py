"""Scripted policies negotiate through the real agent: a deal is shared, words alone are worth nothing."""

from typing import Any

import orjson
import pytest

from nemo_gym import ServerReply
from nemo_gym.testing import ServerSpec, client_for, rows_of, running_servers, says, server_spec
from resources_servers.example_negotiation.app import NegotiationResourcesServer, shares

ROWS = rows_of("resources_servers/example_negotiation/data/example.jsonl")
Replies = list[dict[str, Any]]


def reference(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "name": name}


def offers(price: int) -> dict[str, Any]:
    return {"call": [{"name": "make_offer", "arguments": {"price": price}}]}


ACCEPTS = {"call": [{"name": "accept_offer"}]}


def servers(seller: Replies, buyer: Replies) -> list[ServerSpec]:
    models = {name: reference("responses_api_models", f"{name}_model") for name in ("seller", "buyer")}
    config: dict[str, Any] = {
        "resources_server": reference("resources_servers", "negotiation"),
        "model_server": models["seller"],
        "policy_model_servers": {"buyer": models["buyer"]},
        "max_turns": 6,
    }
    return [
        server_spec("agent", "responses_api_agents", "multi_policy_agent", **config),
        server_spec("negotiation", "resources_servers", "example_negotiation", domain="games"),
        server_spec("seller_model", "responses_api_models", "scripted_model", replies=seller),
        server_spec("buyer_model", "responses_api_models", "scripted_model", replies=buyer),
    ]


async def play(row: dict[str, Any], seller: Replies, buyer: Replies) -> dict[str, Any]:
    async with running_servers(servers(seller, buyer)) as client:
        reply = await client.call("agent", "/run", row, answer=ServerReply)
    record: dict[str, Any] = orjson.loads(reply.content())
    return record


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["buyer_limit"]))
async def test_a_deal_is_shared(row: dict[str, Any]) -> None:
    low, high = row["seller_limit"], row["buyer_limit"]
    seller: Replies = [{**offers(high), "user": "listens|says: Hello", "turn": 0}, {"say": f"I want {high}."}]
    buyer: Replies = [{"user": "listens", "say": "Hello."}, {**ACCEPTS, "turn": 0}, {"say": "Deal."}]
    record = await play(row, seller, buyer)
    assert (record["price"], record["has_deal"], record["rewards"]) == (high, True, {"seller": 1.0, "buyer": 0.0})
    assert record["reward"] == 1.0
    bargain = await play(
        row, [{**ACCEPTS, "turn": 0}, {"say": "Deal."}], [{**offers(low), "turn": 0}, {"say": "Please."}]
    )
    assert (bargain["rewards"], bargain["reward"]) == ({"seller": 0.0, "buyer": 1.0}, 0.0)


SILENT_BUYER: Replies = [{"say": "Hm."}]


@pytest.mark.parametrize(
    ("seller", "buyer"),
    [
        pytest.param([{"say": "Deal at 140."}], [{"say": "Deal at 140!"}], id="words alone"),
        pytest.param(
            [{**offers(140), "turn": 0}, {**ACCEPTS, "turn": 1}, {"say": "Deal."}], SILENT_BUYER, id="own offer"
        ),
        pytest.param([{**ACCEPTS, "turn": 0}, {"say": "Deal."}], SILENT_BUYER, id="no offer"),
        pytest.param([{**offers(140), "turn": 0}, {"say": "140."}], SILENT_BUYER, id="not accepted"),
        pytest.param(
            [{"call": [{"name": "make_offer", "arguments": {"price": 10**15}}], "turn": 0}, {"say": "Much."}],
            [{**ACCEPTS, "turn": 0}, {"say": "Yes."}],
            id="no price",
        ),
    ],
)
async def test_without_a_deal_nobody_gains(seller: Replies, buyer: Replies) -> None:
    record = await play(ROWS[0], seller, buyer)
    assert (record["has_deal"], record["rewards"]) == (False, {"seller": 0.0, "buyer": 0.0})
    assert record["response"]["ended_by"] == "max_turns"


@pytest.mark.parametrize(
    ("price", "seller", "buyer"),
    [(110, 0.5, 0.5), (80, 0.0, 1.0), (140, 1.0, 0.0), (50, -0.5, 1.0), (170, 1.0, -0.5), (1_000_000, 1.0, -1.0)],
)
def test_shares(price: int, seller: float, buyer: float) -> None:
    assert shares(price, 80, 140) == {"seller": seller, "buyer": buyer}


async def test_a_policy_that_is_neither_seller_nor_buyer_cannot_offer() -> None:
    async with client_for(NegotiationResourcesServer) as environment:
        await environment.post("/seed_session", json=ROWS[0])
        offered = await environment.post("/make_offer", json={"price": 90})
        accepted = await environment.post("/accept_offer", json={})
        assert "error" in offered.json()
        assert "error" in accepted.json()
        scored = await environment.post("/verify", json={**ROWS[0], "response": says("Deal.")})
        assert scored.json()["has_deal"] is False
