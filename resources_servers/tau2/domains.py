"""The domains by name: what a rollout acts on, and the tools of both sides."""

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym import JsonObject
from resources_servers.tau2.airline import Airline
from resources_servers.tau2.database import ServiceDesk
from resources_servers.tau2.goal import Domain, FunctionCall
from resources_servers.tau2.retail import Retail
from resources_servers.tau2.telecom import AGENT_TOOLS, USER_TOOLS, Telecom
from resources_servers.tau2.toolset import schemas_of

World = Telecom | ServiceDesk
DESKS: dict[Domain, type[ServiceDesk]] = {"airline": Airline, "retail": Retail}


def world_of(
    domain: Domain, tables: Mapping[str, Any], beginning: Sequence[FunctionCall] = (), *, is_solo: bool = True
) -> World:
    """The state of a rollout as it begins."""
    if domain == "telecom":
        return Telecom(tables, beginning, is_solo=is_solo)
    return DESKS[domain](tables)


def agent_tools(domain: Domain) -> list[JsonObject]:
    """The tools of an agent who talks to a user."""
    return AGENT_TOOLS if domain == "telecom" else schemas_of(DESKS[domain], DESKS[domain].TOOLS)


def user_tools(domain: Domain) -> list[JsonObject]:
    return USER_TOOLS if domain == "telecom" else []
