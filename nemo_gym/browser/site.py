"""What the browser of one rollout can reach: an ASGI app for each host name, and nothing else.

The browser's proxy is a port that belongs to the rollout. Every request that its pages make, redirects and popups
included, arrives there and is answered in this process, by the app of its host."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nemo_gym.common.exceptions import exception_repr

if TYPE_CHECKING:
    from playwright.async_api import Page

logger = logging.getLogger(__name__)

FAVICON = "/favicon.ico"
"""Chromium asks for it by itself."""
Message = MutableMapping[str, Any]
App = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Any]


class Site:
    """The web site of one rollout, with the state that `verify` looks at. Subclass it to keep that state."""

    def __init__(self, url: str, app: App, /, **others: App) -> None:
        """`url` is the first page, at a host name of your choice, such as `http://shop.test/`; `app` is any ASGI app,
        such as one of Starlette or FastAPI. `others` are the apps of other hosts by their names."""
        self.url = url
        self.apps = {urlsplit(url).netloc: app, **others}
        self.failure: str | None = None
        """The exception that an app raised: a defect of the environment, so the rollout has no result."""

    async def opened(self, page: "Page") -> None:
        """Called once, when the first page is loaded."""

    async def ended(self, page: "Page") -> str | None:
        """Called after each action. Return why the episode is over, if it is: the page then takes no more actions."""
        return None

    async def goal(self, page: "Page") -> str | None:
        """What the model is asked to do, if only the page knows. It comes before the first observation."""
        return None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request of the browser."""
        host = next((value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"), "")
        app = self.apps.get(host)
        if app is None or scope["path"] == FAVICON:
            await refuse(scope, receive, send)
            return
        try:
            await app(scope, receive, send)
        except Exception as error:  # reported by the next action
            self.failure = f"{exception_repr(error)} at {scope['path']}"
            logger.warning("The site of %s raised %s", host, self.failure)


async def refuse(_scope: Any, _receive: Any, send: Any) -> None:
    """Say that there is nothing at this host."""
    body = b"There is no network: this host is not part of the site."
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
