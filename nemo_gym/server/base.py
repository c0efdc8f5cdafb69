"""The base of every server: a pydantic model with a config and a client, whose handlers become endpoints."""

import asyncio
import os
import secrets
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, PrivateAttr

from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.common.plugins import plugin
from nemo_gym.compute.pool import Compute
from nemo_gym.config.types import BaseRunServerInstanceConfig
from nemo_gym.config.validation import STRICT, drop_unknown_keys
from nemo_gym.errors import ConfigError
from nemo_gym.server.app import ServerApp
from nemo_gym.server.core import ServerCore
from nemo_gym.server.endpoint import Endpoint
from nemo_gym.server.metrics import WorkerMetrics
from nemo_gym.server.request_checks import ServerLimits
from nemo_gym.server.session import TIME_TO_LIVE_S, SessionStore

if TYPE_CHECKING:
    from fastapi import FastAPI


PUBLIC_HOOKS = ("_seed_agent_session_state", "close_resources_session")
"""Methods of classes written for the public NeMo Gym whose endpoints `nemo_gym.compat` adds."""


class BaseServer(BaseModel):
    """A server's configuration, and how a process finds it."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    config: BaseRunServerInstanceConfig

    @classmethod
    def load_config_from_global_config(cls) -> BaseRunServerInstanceConfig:
        """The block of the instance that the environment variable NEMO_GYM_CONFIG_PATH names, checked."""
        from omegaconf import OmegaConf

        from nemo_gym.config.loading import NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME, get_first_server_config_dict

        name = os.environ.get(NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME)
        if not name:
            raise ConfigError(
                f"{NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME} is not set: a server that you start yourself needs the name of "
                "its instance in the configuration. Usually `ng_run` starts servers."
            )
        config = plugin("global_config").get_global_config_dict()
        block: Any = OmegaConf.to_container(get_first_server_config_dict(config, name), resolve=True)
        strict = config.get(STRICT)
        values = drop_unknown_keys(cls.config_class(), {**block, "name": name}, path=(name,), strict=strict)
        return cls.config_class().model_validate(values)

    @classmethod
    def config_class(cls) -> type[BaseRunServerInstanceConfig]:
        """The class that the field `config` is annotated with."""
        annotation = cls.model_fields["config"].annotation
        return annotation if isinstance(annotation, type) else BaseRunServerInstanceConfig


class SimpleServer(BaseServer):
    """A server made of handlers. Subclasses list their endpoints."""

    SESSION_TIME_TO_LIVE_S: ClassVar[float] = TIME_TO_LIVE_S
    EXTRA: ClassVar[str | None] = None
    """The optional part of NeMo Gym that the server needs, such as `gymnasium`. It does not start without."""
    has_own_app: ClassVar[bool] = False
    """True for a base class of `nemo_gym` that overrides `setup_webserver`."""
    ray_enabled: ClassVar[bool | None] = None
    """An attribute of classes written for the public NeMo Gym. It has no effect: Ray starts when it is used."""

    server_client: ServerClient

    _core: ServerCore | None = PrivateAttr(default=None)

    def endpoints(self) -> list[Endpoint]:
        """The handlers of this kind of server."""
        return []

    def answer_get(self, path: str) -> Any:
        """The reply to a GET request, or None if there is nothing at that path."""
        return {"status": "ok"} if path == "/" else None

    def shape_refusal(self, path: str, reply: ServerReply) -> ServerReply:
        """The reply to a request for a path that the server does not have."""
        return reply

    def concurrency(self) -> int | None:
        """Maximum number of requests that the server works on at once; more would wait in its queue. None: no limit.
        A collector in the same process keeps as many rollouts in flight."""
        return None

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        """Override to keep something open while the server answers, such as a process or a pool. It is entered before
        the first request."""
        return nullcontext()

    def core(
        self,
        *,
        secret: bytes | None = None,
        worker: int = 0,
        compute: Compute | None = None,
        limits: ServerLimits | None = None,
    ) -> ServerCore:
        """The core that handlers run in, created by the first call. A worker makes that call, with the run's secret
        and a pool that it closes itself. A pool created here starts no process before it is used."""
        if self._core is None:
            self._core = ServerCore(
                name=self.config.name,
                session_cookie=self.get_session_middleware_key(),
                sessions=SessionStore(
                    self.config.name,
                    secret=secret or secrets.token_bytes(32),
                    worker=worker,
                    time_to_live_s=self.SESSION_TIME_TO_LIVE_S,
                    max_sessions=(limits or ServerLimits()).max_sessions,
                ),
                client=self.server_client,
                compute=compute or Compute(),
            )
        return self._core

    def asgi_app(self, *, token: str | None = None, limits: ServerLimits | None = None) -> ServerApp:
        """This server as an app, which wraps its own FastAPI app if the class overrides `setup_webserver`."""
        adds_routes = self.has_own_app or self.overrides("setup_webserver", *PUBLIC_HOOKS)
        core = self.core(limits=limits)
        core.own_app = plugin("fastapi").FastApiApp(self.setup_webserver()) if adds_routes else None
        return ServerApp(
            core,
            self.endpoints(),
            own_app=core.own_app,
            answer_get=self.answer_get,
            shape_refusal=self.shape_refusal,
            lifespan=self.lifespan,
            token=token,
            limits=limits or ServerLimits(),
            concurrency=self.concurrency(),
        )

    def overrides(self, *names: str) -> bool:
        """True if a class that is not of this package defines one of these methods."""
        own = [each for each in type(self).__mro__ if not each.__module__.startswith("nemo_gym.")]
        return any(name in vars(each) for each in own for name in names)

    def get_session_middleware_key(self) -> str:
        """The name of the session cookie."""
        return f"{type(self).__name__}___{self.config.name}"

    # Classes written for the public NeMo Gym override or call the methods below.

    def setup_webserver(self) -> "FastAPI":
        """A FastAPI app with this server's endpoints."""
        app: FastAPI = plugin("fastapi").make_app(self)
        return app

    def setup_session_middleware(self, app: "FastAPI") -> None:
        """Give `request.session` to a FastAPI app. Its errors become JSON here, too."""
        plugin("fastapi").add_session_middleware(app, self.core())

    def setup_exception_middleware(self, app: "FastAPI") -> None:
        """Turn errors of a FastAPI app that is served without us into JSON."""
        plugin("fastapi").add_exception_middleware(app, self.core())

    def setup_cancellation_middleware(self, app: "FastAPI") -> None:
        """Do nothing: a client that hangs up cancels its request."""

    def setup_telemetry(self) -> None:
        """Do nothing: the worker traces all its servers."""

    def instrument_app_for_telemetry(self, app: "FastAPI") -> None:
        """Do nothing: the worker traces all its servers."""

    def setup_liveness(self, app: "FastAPI") -> None:
        """Do nothing: every server answers `GET /`."""

    def setup_profiling(self, app: "FastAPI", profiling_config: object) -> None:
        """Do nothing: the worker profiles all its servers."""

    @classmethod
    def run_webserver(cls) -> None:
        """Serve this one server, in a process of its own, until it is interrupted."""
        from nemo_gym.server.uvicorn_runner import bind, serve_until_interrupted  # slow to import, and only used here

        config = cls.load_config_from_global_config()
        settings = plugin("global_config").get_global_config_dict()
        limits = ServerLimits.of(settings)
        app = cls(config=config, server_client=ServerClient(global_config_dict=settings)).asgi_app(limits=limits)

        async def serve() -> None:
            with bind(config.host, config.port) as listening:
                core = app.core
                async with app.lifespan():
                    with WorkerMetrics({app.name: app}, core.client.http, core.compute):
                        await serve_until_interrupted({listening.getsockname()[1]: app}, [listening], limits)

        asyncio.run(serve())
