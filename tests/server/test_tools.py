"""The schema that a model sees comes from the signature."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import Field
from pydantic.errors import PydanticSchemaGenerationError
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from nemo_gym.base_resources_server import (
    BaseVerifyRequest,
    SessionState,
    SimpleResourcesServer,
    ToolName,
    any_tool,
    tool,
)
from nemo_gym.client.server_client import ServerClient
from nemo_gym.errors import ConfigError
from nemo_gym.testing import client_for

if TYPE_CHECKING:
    from fastapi import FastAPI


class Notes(SessionState):
    lines: list[str] = []  # noqa: RUF012 - pydantic copies it


class Toolbox(SimpleResourcesServer):
    @tool
    async def note(
        self, text: Annotated[str, Field(description="What to remember.")], session: Notes, client: ServerClient
    ) -> list[str]:
        """Remember something."""
        session.lines.append(text)
        return session.lines

    @tool(name="pick-one", description="Choose.")
    async def pick(self, side: Literal["left", "right"], times: int = 1) -> str:
        return side * times

    async def helper(self) -> None:
        """Not a tool."""

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 0.0


def server(kind: type[SimpleResourcesServer] = Toolbox) -> SimpleResourcesServer:
    config: dict[str, Any] = {"name": "box", "host": "", "port": 0, "entrypoint": ""}
    return kind(config=kind.config_class().model_validate(config), server_client=ServerClient())


def test_the_schemas_hold_what_the_model_fills_in_and_nothing_else() -> None:
    assert server().tool_schemas() == [
        {
            "type": "function",
            "name": "note",
            "description": "Remember something.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "What to remember."}},
                "required": ["text"],
                "additionalProperties": False,
            },
            "strict": True,
        },
        {
            "type": "function",
            "name": "pick-one",
            "description": "Choose.",
            "parameters": {
                "type": "object",
                "properties": {
                    "side": {"type": "string", "enum": ["left", "right"]},
                    "times": {"type": "integer", "default": 1},
                },
                "required": ["side"],
                "additionalProperties": False,
            },
            "strict": False,
        },
    ]


async def test_tools_are_served_under_their_names_and_other_methods_are_not() -> None:
    async with client_for(Toolbox) as client:
        await client.post("/note", json={"text": "a"})
        assert (await client.post("/note", json={"text": "b"})).json() == ["a", "b"]
        answer = await client.post("/pick-one", json={"side": "left", "times": 2})
        assert (answer.text, answer.headers["Content-Type"]) == ("leftleft", "text/plain; charset=utf-8")
        assert (await client.post("/pick-one", json={"side": "up"})).status == 422
        assert (await client.post("/helper", json={})).status == 404
        assert (await client.post("/pick", json={"side": "left"})).status == 404


def test_a_handler_that_asks_for_something_unknown_is_refused_at_start() -> None:
    class Curious(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest, weather: int) -> float:
            return 0.0

    with pytest.raises(ConfigError, match=r"verify\(\) .*'weather: int'"):
        server(Curious).endpoints()


class Switchboard(Toolbox):
    @any_tool
    async def connect(self, called: ToolName, body: dict[str, Any], session: Notes) -> dict[str, Any]:
        session.lines.append(called)
        return {"called": called, "body": body, "so_far": session.lines}


class SwitchboardWithRoutes(Switchboard):
    def setup_webserver(self) -> "FastAPI":
        app = super().setup_webserver()
        app.router.routes.insert(0, Route("/own", lambda _request: PlainTextResponse("mine"), methods=["POST"]))
        return app


@pytest.mark.parametrize("kind", [Switchboard, SwitchboardWithRoutes])
async def test_any_tool_answers_what_has_no_endpoint_of_its_own(kind: type[SimpleResourcesServer]) -> None:
    assert [schema["name"] for schema in server(kind).tool_schemas()] == ["note", "pick-one"]
    async with client_for(kind) as environment:
        assert (await environment.post("/note", json={"text": "x"})).json() == ["x"]
        answer = await environment.post("/ring", json={"who": "you"})
        assert answer.json() == {"called": "ring", "body": {"who": "you"}, "so_far": ["x", "ring"]}
        assert (await environment.post("/ring", json=[])).status == 422
        assert (await environment.get("/ring")).status in (404, 405)
        own = await environment.post("/own", json={})
        assert (own.text == "mine") is (kind is SwitchboardWithRoutes)


async def test_without_any_tool_an_unknown_one_is_not_found() -> None:
    async with client_for(Toolbox) as environment:
        assert (await environment.post("/ring", json={})).status == 404


def test_a_field_that_cannot_be_read_is_an_error_where_the_class_is_written() -> None:
    with pytest.raises(PydanticSchemaGenerationError, match="ServerClient"):

        class _Request(BaseVerifyRequest):
            client: ServerClient
