"""Handlers of the base routes that are written as FastAPI routes: what they may ask for, and what they may return."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import orjson
import pytest
from fastapi import BackgroundTasks, Cookie, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from nemo_gym.base_resources_server import BaseSeedSessionRequest, BaseVerifyRequest, SimpleResourcesServer
from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel, read_model_call_records
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from nemo_gym.testing import client_for, example_row, says

ROW = example_row(response=says("Done."))
EVENTS: dict[str, list[str]] = {}


class Seed(BaseSeedSessionRequest):
    reply: str = ""


async def session_id(request: Request) -> AsyncIterator[str]:
    own = request.session[SESSION_ID_KEY]
    yield own
    EVENTS[own].append("closed")


def admitted(admit: str = "yes", content_type: Annotated[str, Header()] = "") -> str:
    if admit == "no":
        raise HTTPException(403, "not admitted")
    return content_type


class FastAPIStyle(SimpleResourcesServer):
    async def seed_session(
        self, body: Seed, tasks: BackgroundTasks, response: Response, own: str = Depends(session_id)
    ) -> Any:
        EVENTS[own] = ["seeded"]
        tasks.add_task(EVENTS[own].append, "task")
        response.set_cookie("flavour", "mint")
        if body.reply == "text":
            return PlainTextResponse("wait", status_code=202)
        if body.reply == "stream":
            return StreamingResponse(iter(["1,", "2"]), media_type="text/plain")
        return None

    async def verify(
        self,
        body: BaseVerifyRequest,
        request: Request,
        admit: Annotated[str, Depends(admitted)],
        count: int = Query(3),
        flavour: Annotated[str | None, Cookie()] = None,
    ) -> JSONResponse:
        found = {"admit": admit, "count": count, "flavour": flavour, "events": EVENTS[request.session[SESSION_ID_KEY]]}
        reply = JSONResponse({**body.model_dump(mode="json"), "reward": 1, **found})
        reply.set_cookie("seen", "1")
        return reply


class WithRoutes(FastAPIStyle):
    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/more")(self.seed_session)
        return app


@pytest.mark.parametrize("kind", [FastAPIStyle, WithRoutes])
async def test_fastapi_resolves_what_a_handler_of_a_base_route_asks_for(kind: type[SimpleResourcesServer]) -> None:
    async with client_for(kind) as client:
        assert (await client.post("/seed_session", json={})).status == 200
        reply = await client.post("/verify?count=4", json=ROW)
        expected = {"reward": 1, "admit": "application/json", "count": 4, "flavour": "mint"}
        assert {name: reply.json().get(name) for name in expected} == expected, reply.text
        assert sorted(reply.json()["events"]) == ["closed", "seeded", "task"]
        assert (await client.post("/verify?count=many", json=ROW)).status == 422
        refused = await client.post("/verify?admit=no", json=ROW)
        assert (refused.status, refused.json()) == (403, {"detail": "not admitted"})


@pytest.mark.parametrize(("asked", "status", "text"), [("text", 202, "wait"), ("stream", 200, "1,2")])
async def test_a_starlette_response_is_sent_as_it_is(asked: str, status: int, text: str) -> None:
    async with client_for(FastAPIStyle) as client:
        reply = await client.post("/seed_session", json={"reply": asked})
        assert (reply.status, reply.text) == (status, text)


class JsonModel(SimpleResponsesAPIModel):
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> JSONResponse:
        if body.input == "raise":
            raise HTTPException(429, "slow down", headers={"Retry-After": "7"})
        if body.input == "refuse":
            return JSONResponse({"error": {"message": "slow down"}}, 429, headers={"Retry-After": "7"})
        return JSONResponse(orjson.loads(encode(says("Hello."))))

    async def chat_completions(self) -> None:
        """Not asked."""


@pytest.mark.parametrize("captures", [False, True])
async def test_a_starlette_response_of_a_model_is_streamed_and_converted(captures: bool, tmp_path: Path) -> None:
    settings = {"observability_enabled": captures, "model_call_capture_dir": str(tmp_path)}
    async with client_for(JsonModel, server_client=ServerClient(global_config_dict=settings)) as client:
        events = await client.post("/ng-rollout/1-1/v1/responses", json={"input": "Hi.", "stream": True})
        assert "response.completed" in events.text
        asked = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
        message = await client.post("/ng-rollout/1-1/v1/messages", json=asked)
        assert message.json()["content"][0]["text"] == "Hello."
        for text in ("raise", "refuse"):
            refused = await client.post("/v1/responses", json={"input": text})
            assert (refused.status, refused.headers["retry-after"]) == (429, "7")
            assert refused.json()["error"]["type"] == "rate_limit_error"
    assert len(read_model_call_records(tmp_path, "1-1")) == 2 * captures
