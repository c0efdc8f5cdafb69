"""For tests of environments, agents and models: real servers on free ports, rows and replies in few words."""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from nemo_gym.client.head import CALLER_HEADER as CALLER_HEADER
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.reply import ServerReply as ServerReply
from nemo_gym.client.server_client import ServerClient, base_url
from nemo_gym.common.atomic_files import read_jsonl
from nemo_gym.common.paths import find
from nemo_gym.compute.pool import Compute
from nemo_gym.config.loading import ServerType, load_config, server_instances
from nemo_gym.llm_api.builders import calls as calls
from nemo_gym.llm_api.builders import example_row as example_row
from nemo_gym.llm_api.builders import message as message
from nemo_gym.llm_api.builders import response_of as response_of
from nemo_gym.llm_api.builders import says as says
from nemo_gym.llm_api.builders import tool_output as tool_output
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.runtime.stack import ServerSpec as ServerSpec
from nemo_gym.runtime.stack import Stack as Stack
from nemo_gym.runtime.stack import StackSpec as StackSpec
from nemo_gym.server.base import SimpleServer
from nemo_gym.server.uvicorn_runner import bind as bind
from nemo_gym.server.uvicorn_runner import serving

REQUEST_TIMEOUT_S = 60.0
LOOPBACK = "127.0.0.1"

Transport = Literal["direct", "http"]
TRANSPORTS: tuple[Transport, ...] = ("direct", "http")
"""The ways in which servers call each other. Callers cannot tell them apart, so a test can run over both."""


@dataclass(slots=True)
class BrowserLikeClient:
    """Calls one server over HTTP, as a server of the same run does. It keeps cookies, so one client is one session."""

    server: SimpleServer
    """The live object that answers."""
    url: str
    http: HttpClient
    cookies: dict[str, str] = field(default_factory=dict)

    async def post(self, path: str, *, json: Any = None, content: bytes | None = None) -> ServerReply:
        body = content if json is None else encode(json)
        return await self.request("POST", path, body)

    async def get(self, path: str) -> ServerReply:
        return await self.request("GET", path)

    async def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ServerReply:
        given = {CALLER_HEADER: self.server.server_client.caller_key, **(headers or {})}
        answer = await self.http.fetch(
            method, self.url + path, body=body, headers=given, cookies=self.cookies, timeout_s=REQUEST_TIMEOUT_S
        )
        self.cookies.update(answer.cookies)
        return answer

    def another(self) -> "BrowserLikeClient":
        """A client of the same server with cookies of its own."""
        return BrowserLikeClient(self.server, self.url, self.http)


@asynccontextmanager
async def client_for(
    server_class: type[SimpleServer], *, server_client: ServerClient | None = None, **config: Any
) -> AsyncIterator[BrowserLikeClient]:
    """Serve one server on a free port of this machine and give a client for it."""
    settings = {"name": "test", "host": LOOPBACK, "port": 0, "entrypoint": "app.py", **config}
    with bind(LOOPBACK, 0) as listening:
        port = listening.getsockname()[1]
        async with HttpClient() as http, Compute() as compute:
            server = server_class(
                config=server_class.config_class().model_validate(settings),
                server_client=server_client or ServerClient(http=http, caller_key=secrets.token_hex()),
            )
            server.core(compute=compute)
            app = server.asgi_app()
            async with app.lifespan(), serving({port: app}, [listening]):
                yield BrowserLikeClient(server, base_url(LOOPBACK, port), http)


def server_spec(
    name: str, server_type: ServerType, implementation: str, *, folder: str | Path | None = None, **config: Any
) -> ServerSpec:
    """One server for `running_servers`, by default from the folder that a config would mean."""
    settings = {"host": LOOPBACK, "port": 0, "entrypoint": "app.py", **config}
    return ServerSpec(
        name=name,
        server_type=server_type,
        implementation=implementation,
        entrypoint=settings["entrypoint"],
        folder=Path(folder or find(f"{server_type}/{implementation}", what="server folder")),
        config=settings,
    )


def servers_of(*config_paths: str, **settings: Any) -> list[ServerSpec]:
    """The servers of config files for `running_servers`. `settings` win over the files; no `env.yaml` is read."""
    config = load_config(initial={"config_paths": list(config_paths), **settings}, use_dotenv=False, fill_ports=False)
    return [replace(server, port=None) for server in server_instances(config)]


@asynccontextmanager
async def running_servers(
    servers: Sequence[ServerSpec], *, transport: Transport = "direct"
) -> AsyncIterator[ServerClient]:
    """Hold servers and give a client that can call all of them.

    Over `http` each of them is in a stack of its own, on a free port, so no two can call each other directly.
    """
    if transport == "direct":
        async with Stack(StackSpec(list(servers))) as stack:
            yield stack.client
        return
    async with AsyncExitStack() as opened:
        sockets = {server.name: opened.enter_context(bind(LOOPBACK, 0)) for server in servers}
        ports = {name: listening.getsockname()[1] for name, listening in sockets.items()}
        addresses = {name: base_url(LOOPBACK, port) for name, port in ports.items()}
        apps = {}
        for server in servers:
            stack = await opened.enter_async_context(Stack(StackSpec([server], addresses=addresses)))
            apps[ports[server.name]] = stack.apps[server.name]
        await opened.enter_async_context(serving(apps, list(sockets.values())))
        http = await opened.enter_async_context(HttpClient())
        yield ServerClient(addresses=addresses, http=http)


def rows_of(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return read_jsonl(find(path))
