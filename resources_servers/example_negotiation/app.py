"""A seller and a buyer negotiate a price. Each knows only their own limit; both share what a deal is worth."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from nemo_gym import JsonObject
from nemo_gym.answers import last_text
from nemo_gym.base_resources_server import (
    BaseNextMessageRequest,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    NextMessage,
    Participant,
    Score,
    SessionState,
    SimpleResourcesServer,
    tool,
)

Price = Annotated[int, Field(ge=0, le=1_000_000)]
SELLER, BUYER = "seller", "buyer"
OTHER = {SELLER: BUYER, BUYER: SELLER}


class Policies(BaseModel):
    model_config = ConfigDict(extra="forbid")

    seller: JsonObject
    buyer: JsonObject


class NegotiationSeedRequest(BaseSeedSessionRequest):
    policies: Policies
    seller_limit: StrictInt = Field(ge=0)
    """The article's cost for the seller, who loses at a lower price."""
    buyer_limit: StrictInt
    """The article's value for the buyer, who loses at a higher price."""


class Negotiation(SessionState):
    seller_limit: int = 0
    buyer_limit: int = 0
    offered_by: str | None = None
    offer: int | None = None
    price: int | None = None
    """The price of the deal."""


class NegotiationResourcesServer(SimpleResourcesServer):
    given_history = "refuse"

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse limits between which no deal is worth anything."""
        if row["buyer_limit"] <= row["seller_limit"]:
            raise ValueError(f"buyer_limit {row['buyer_limit']} is not above seller_limit {row['seller_limit']}")

    async def seed_session(self, body: NegotiationSeedRequest, talk: Negotiation) -> None:
        talk.seller_limit, talk.buyer_limit = body.seller_limit, body.buyer_limit

    @tool
    async def make_offer(self, price: Price, who: Participant, talk: Negotiation) -> dict[str, int | str]:
        """Offer a price. It replaces any offer before."""
        if talk.price is not None or who not in OTHER:
            return {"error": "There is nothing to negotiate."}
        talk.offered_by, talk.offer = str(who), price
        return {"offer": price}

    @tool
    async def accept_offer(self, who: Participant, talk: Negotiation) -> dict[str, int | str]:
        """Accept the last offer of the other side. This ends the negotiation."""
        if talk.price is not None or who not in OTHER or talk.offered_by != OTHER[who]:
            return {"error": "There is no offer of the other side."}
        talk.price = talk.offer
        return {"deal": talk.price or 0}

    async def next_message(self, body: BaseNextMessageRequest, talk: Negotiation) -> NextMessage | None:
        """Pass on what one side says to the other."""
        if body.turn == 0:
            return NextMessage(to=BUYER, content="The seller listens. What do you say?")
        if talk.price is not None:
            return None
        offer = "There is no offer." if talk.offer is None else f"Last offer: {talk.offer}, by the {talk.offered_by}."
        said = f"The {body.participant} says: " + "\n> ".join(last_text(body.response).splitlines())
        return NextMessage(to=OTHER[body.participant], content=f"{said}\n\n{offer}")

    async def verify(self, body: BaseVerifyRequest, talk: Negotiation) -> Score:
        rewards = shares(talk.price, talk.seller_limit, talk.buyer_limit)
        return Score(rewards[SELLER], rewards=rewards, price=talk.price, has_deal=talk.price is not None)


def shares(price: int | None, seller_limit: int, buyer_limit: int) -> dict[str, float]:
    """Share of the possible gain for each party: together 1 in a deal, and nothing without one. A side that
    goes beyond its limit loses. No share is beyond -1 and 1."""
    gain = buyer_limit - seller_limit
    if price is None or gain <= 0:
        return {SELLER: 0.0, BUYER: 0.0}
    share = max(-1.0, min((price - seller_limit) / gain, 1.0))
    other = max(-1.0, min((buyer_limit - price) / gain, 1.0))
    return {SELLER: share, BUYER: other}
