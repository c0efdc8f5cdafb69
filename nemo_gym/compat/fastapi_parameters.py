"""Handlers that ask for `Depends`, `Header`, `Query`, `Cookie` or `BackgroundTasks`: FastAPI itself resolves these,
around the call of the handler."""

import inspect
from collections.abc import Callable
from typing import Any, get_args

from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.event_loop import run_in_thread
from nemo_gym.server.asgi import call_asgi

_MARKERS = frozenset(("Depends", "Security", "Header", "Query", "Cookie", "Path"))
_PROVIDED_TYPES = frozenset(("BackgroundTasks", "HTTPConnection", "SecurityScopes"))
_CALL = "nemo_gym.server.fastapi_parameters"


def resolves(parameter: inspect.Parameter) -> bool:
    """True if FastAPI provides the value of this parameter. It is not imported to find out."""
    kind, markers = parameter.annotation, (parameter.default, *get_args(parameter.annotation)[1:])
    if any(type(one).__module__ == "fastapi.params" and type(one).__name__ in _MARKERS for one in markers):
        return True
    is_class = isinstance(kind, type) and kind.__module__.partition(".")[0] in ("fastapi", "starlette")
    return is_class and kind.__name__ in _PROVIDED_TYPES


def with_fastapi_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, without the parameters that FastAPI provides: they are resolved for each call. A handler that has
    none is returned as it is."""
    signature = inspect.signature(function, eval_str=True)
    theirs = [parameter for parameter in signature.parameters.values() if resolves(parameter)]
    if not theirs:
        return function
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

    async def call_handler(http_request: Request, **resolved: Any) -> None:
        await http_request.scope[_CALL](resolved)

    by_keyword = inspect.Parameter.KEYWORD_ONLY
    asked = inspect.Parameter("http_request", by_keyword, annotation=Request)
    resolved_names = [each.replace(kind=by_keyword) for each in theirs]
    call_handler.__signature__ = inspect.Signature([asked, *resolved_names])  # type: ignore[attr-defined]
    app = FastAPI(openapi_url=None)
    app.add_api_route("/{path:path}", call_handler, methods=["POST"], response_model=None)

    async def handler(http_request: Request, http_response: Response, **given: Any) -> Any:
        result: Any = None
        is_called = False

        async def call(resolved: dict[str, Any]) -> None:
            nonlocal result, is_called
            is_called, values = True, {**given, **resolved}
            is_async = inspect.iscoroutinefunction(function)
            result = await (function(**values) if is_async else run_in_thread(function, **values))

        reply = await call_asgi(app, {**http_request.scope, _CALL: call}, await http_request.body())
        http_response.raw_headers.extend(item for item in reply.headers if item[0] == b"set-cookie")
        refused = ServerReply("", reply.status, reply.body)  # by a dependency, or for a header that is not valid
        return result if is_called and reply.status < 400 else refused

    ours = [each.replace(kind=by_keyword) for each in signature.parameters.values() if each not in theirs]
    added = {"http_request": Request, "http_response": Response}
    ours += [inspect.Parameter(name, by_keyword, annotation=kind) for name, kind in added.items()]
    handler.__signature__ = signature.replace(parameters=ours)  # type: ignore[attr-defined]
    handler.__name__, handler.__qualname__ = function.__name__, function.__qualname__
    return handler
