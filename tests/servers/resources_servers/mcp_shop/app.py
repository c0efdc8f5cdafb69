"""Routes in setup_webserver, exposed over MCP."""

from fastapi import FastAPI, Request
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class AddRequest(BaseModel):
    fruit: str


class ShopVerifyResponse(BaseVerifyResponse):
    called: list[str]
    cart: list[str]


class SeedRequest(BaseSeedSessionRequest):
    only: list[str] | None = None


class Shop(SimpleResourcesServer):
    carts: dict = {}

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        app.post("/clear")(self.clear)
        app.post("/{tool_name}")(self.other)
        return app

    async def seed_session(self, request: Request, body: SeedRequest) -> dict:
        undeclared = (await request.json()).get("note")
        return {"note": undeclared, "size": len(await request.body())}

    async def add(self, request: Request, body: AddRequest) -> list[str]:
        """Put a fruit into the cart."""
        cart = self.carts.setdefault(request.session[SESSION_ID_KEY], [])
        cart.append(body.fruit)
        return cart

    async def clear(self, request: Request) -> str:
        self.carts.clear()

    async def other(self, tool_name: str, request: Request) -> str:
        return f"{tool_name} {await request.json()}"

    def mcp_tools(self, harvested, catchall):
        return [*harvested, catchall.tool("weigh", {"type": "object"}, "Weigh the cart.")]

    def mcp_allowed_tools_for_session(self, seed_body):
        return seed_body.only

    async def verify(self, request: Request, body: BaseVerifyRequest) -> ShopVerifyResponse:
        called = [item.name for item in body.response.output if item.type == "function_call"]
        cart = self.carts.get(request.session[SESSION_ID_KEY], [])
        return ShopVerifyResponse(**body.model_dump(), reward=1.0, called=called, cart=cart)


if __name__ == "__main__":
    Shop.run_webserver()
