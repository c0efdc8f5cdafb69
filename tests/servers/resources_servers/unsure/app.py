"""Cannot make up its mind: `verify` fails in the way that the row asks for."""

import asyncio
import math
from typing import Any

from starlette.responses import Response

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class UnsureVerifyRequest(BaseVerifyRequest):
    way: str


class UnsureResourcesServer(SimpleResourcesServer):
    async def verify(self, body: UnsureVerifyRequest) -> Any:
        match body.way:
            case "no number":
                return math.nan
            case "no reward":
                return {"note": "undecided"}
            case "a response with NaN":
                return Response('{"reward": NaN}', media_type="application/json")
            case "a list":
                return [1.0]
            case "never":
                await asyncio.Event().wait()
        raise RuntimeError("no idea")


if __name__ == "__main__":
    UnsureResourcesServer.run_webserver()
