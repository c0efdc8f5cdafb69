"""A request that reaches the wrong worker is answered by the right one."""

import secrets
from contextlib import AsyncExitStack

import pytest

from nemo_gym.base_resources_server import BaseVerifyRequest, SessionState, SimpleResourcesServer, tool
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient, base_url
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.server.forwarding import OtherWorkers, by_server_header
from nemo_gym.server.uvicorn_runner import bind, serving
from nemo_gym.testing import TRANSPORTS, Transport


class Count(SessionState):
    calls: int = 0


class Counting(SimpleResourcesServer):
    @tool
    async def count(self, session: Count) -> list[str | int | None]:
        session.calls += 1
        return [current_rollout_id(), session.calls]

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_session_elsewhere_is_used_and_ended_and_the_rollout_is_still_known(transport: Transport) -> None:
    config = Counting.config_class().model_validate({"name": "counting", "host": "h", "port": 0, "entrypoint": "a.py"})
    async with AsyncExitStack() as opened:
        http, secret = await opened.enter_async_context(HttpClient()), secrets.token_bytes(32)
        apps, urls = [], []
        for worker in range(2):
            server = Counting(config=config, server_client=ServerClient(http=http))
            server.core(secret=secret, worker=worker)
            apps.append(server.asgi_app())
            listening = opened.enter_context(bind("127.0.0.1", 0))
            urls.append(base_url(*listening.getsockname()))
            served = {listening.getsockname()[1]: by_server_header({"counting": apps[-1]})}
            await opened.enter_async_context(serving(served, [listening]))
        apps[0].others = OtherWorkers({1: urls[1]}, http, token=None)
        first = await apps[1].direct("POST", "/count", {}, {})
        path, cookies = "/ng-rollout/3-1/count", dict(first.cookies)
        if transport == "direct":
            content = (await apps[0].direct("POST", path, {}, cookies)).content()
        else:
            headers = {"nemo-gym-server": "counting"}
            url = urls[0] + path
            content = (
                await http.fetch("POST", url, body=b"{}", headers=headers, cookies=cookies, timeout_s=30)
            ).content()
        assert content == b'["3-1",2]'
        (token,) = cookies.values()
        ending = apps[0].release(token)
        assert ending is not None
        await ending
        assert len(apps[1].core.sessions) == 0
