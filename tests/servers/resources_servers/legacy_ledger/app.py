"""An environment the way they were first written: FastAPI routes, `request.session`, a dict of one's own for state."""

import time
from typing import Any, Dict

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class LedgerConfig(BaseResourcesServerConfig):
    currency: str = "EUR"


class LedgerSeedRequest(BaseSeedSessionRequest):
    opening_balance: int


class BookRequest(BaseModel):
    amount: int


class BookResponse(BaseModel):
    balance: int
    currency: str


class LedgerVerifyRequest(BaseVerifyRequest):
    expected_balance: int


class LedgerVerifyResponse(BaseVerifyResponse):
    balance: int


class LedgerResourcesServer(SimpleResourcesServer):
    config: LedgerConfig
    session_id_to_balance: Dict[str, int] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/book")(self.book)
        app.post("/explode")(self.explode)
        app.post("/refuse")(self.refuse)
        app.post("/audit")(self.audit)
        return app

    async def seed_session(self, request: Request, body: LedgerSeedRequest) -> BaseSeedSessionResponse:
        session_id = request.session[SESSION_ID_KEY]
        self.session_id_to_balance.setdefault(session_id, body.opening_balance)
        return BaseSeedSessionResponse()

    async def book(self, request: Request, body: BookRequest) -> BookResponse:
        session_id = request.session[SESSION_ID_KEY]
        self.session_id_to_balance[session_id] = self.session_id_to_balance.get(session_id, 0) + body.amount
        return BookResponse(balance=self.session_id_to_balance[session_id], currency=self.config.currency)

    async def explode(self, body: Dict[str, Any]) -> None:
        raise ValueError("tool failed")

    async def refuse(self) -> None:
        raise HTTPException(status_code=400, detail="Not today.")

    async def audit(self, body: BookRequest) -> None:
        time.sleep(body.amount)  # noqa: ASYNC251 - holds up everybody else, as such environments may

    async def verify(self, request: Request, body: LedgerVerifyRequest) -> LedgerVerifyResponse:
        balance = self.session_id_to_balance.get(request.session[SESSION_ID_KEY], 0)
        reward = 1.0 if balance == body.expected_balance else 0.0
        return LedgerVerifyResponse(**body.model_dump(), reward=reward, balance=balance)


if __name__ == "__main__":
    LedgerResourcesServer.run_webserver()
