"""How long the requests of each stage took in all: of servers in this process, or of those of the running `ng_run`."""

import re

from nemo_gym.client.head import base_url
from nemo_gym.client.server_client import ServerClient
from nemo_gym.runtime.run_metrics import metrics_page

_SAMPLE = re.compile(r'nemo_gym_stage_seconds_(sum|count)\{[^}]*\bstage="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)
_FIGURES = {"sum": "seconds", "count": "requests"}

StageTimes = dict[str, dict[str, float]]


async def stage_times(client: ServerClient) -> StageTimes:
    """The totals so far. Empty if the servers do not tell."""
    page, head = local_metrics(client), client.head_server_config
    if not client.local and head is not None:
        page = await metrics_page(client.http, base_url(head.host, head.port), token=client.token)
    found: StageTimes = {}
    for kind, stage, value in _SAMPLE.findall(page or ""):
        if stage != "agent":
            found.setdefault(stage, {"requests": 0, "seconds": 0.0})[_FIGURES[kind]] += float(value)
    return found


def local_metrics(client: ServerClient) -> str | None:
    """The text of `/metrics` of the servers in this process, if there are any."""
    pages = (getattr(server, "pages", {}).get("/metrics") for server in client.local.values())
    return next((page().decode() for page in pages if page), None)


def times_since(before: StageTimes, now: StageTimes) -> StageTimes:
    """What was added since `before`, without stages that no request reached."""
    found: StageTimes = {}
    for stage, total in now.items():
        first = before.get(stage, {"requests": 0, "seconds": 0.0})
        requests, seconds = total["requests"] - first["requests"], total["seconds"] - first["seconds"]
        if requests > 0:
            found[stage] = {"requests": int(requests), "seconds": round(seconds, 6)}
    return found
