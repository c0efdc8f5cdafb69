"""An environment: tools, per-rollout state, and a verifier."""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import orjson
from pydantic import BaseModel, ConfigDict

from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.common.plugins import plugin
from nemo_gym.common.words import shorten
from nemo_gym.config.keys import NEMO_GYM_MCP_METADATA_KEY as NEMO_GYM_MCP_METADATA_KEY
from nemo_gym.config.keys import ROW_FIELDS
from nemo_gym.config.types import BaseRunServerInstanceConfig
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.errors import ToolError as ToolError
from nemo_gym.llm_api.base import JsonObject, TextOrList
from nemo_gym.llm_api.json_codec import encode, set_fields
from nemo_gym.llm_api.responses import (
    NeMoGymResponse,
    NeMoGymResponseContent,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server.aggregate_metrics import AggregateMetrics as AggregateMetrics
from nemo_gym.server.aggregate_metrics import AggregateMetricsEndpoint, AggregateMetricsMixin
from nemo_gym.server.aggregate_metrics import AggregateMetricsRequest as AggregateMetricsRequest
from nemo_gym.server.base import BaseServer, SimpleServer
from nemo_gym.server.endpoint import ANY_TOOL
from nemo_gym.server.endpoint import Endpoint as Endpoint
from nemo_gym.server.seed import GivenHistory, SeedEndpoint
from nemo_gym.server.seed import SlowCheck as SlowCheck
from nemo_gym.server.session import SESSION_ID_KEY as SESSION_ID_KEY
from nemo_gym.server.session import SessionState as SessionState
from nemo_gym.server.tools import POLICY, any_tools_of, function_tool, tools_of
from nemo_gym.server.tools import Participant as Participant
from nemo_gym.server.tools import ToolName as ToolName
from nemo_gym.server.tools import any_tool as any_tool
from nemo_gym.server.tools import offered_tools as offered_tools
from nemo_gym.server.tools import tool as tool

if TYPE_CHECKING:
    from fastapi import Body as Body

__getattr__ = lazy_attributes(__name__)


class ReverifyMode(StrEnum):
    """Whether an environment can score a stored rollout by `verify` alone, without its session."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    """The configuration of an environment. Subclass it for fields of its own."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNKNOWN

    expose_tools_over_mcp: bool = False
    """Whether the tools can be called over the Model Context Protocol, at `/mcp`. `/seed_session` says how."""

    record_row_fields: bool = True
    """Whether the records of rollouts carry the fields of their row that the verifier does not return."""

    cut_off_reward: float | None = None
    """The reward of a policy whose last reply was cut off by a limit; other policies of the rollout keep theirs. By
    default the verifier's reward stands."""


class BaseResourcesServer(BaseServer):
    config: BaseResourcesServerConfig


class BaseRunRequest(BaseModel):
    """A row."""

    model_config = ConfigDict(defer_build=True)

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Build the classes of environments at once, so that a wrong field is an error when the server starts. Ours
        are built when they are used: building all would take long, and most processes use one or two."""
        super().__pydantic_init_subclass__(**options)
        if not cls.__module__.startswith("nemo_gym."):
            cls.model_rebuild(raise_errors=False)


class BaseVerifyRequest(BaseRunRequest):
    """A row, and what the model made of it. Subclass it to declare the fields of the row that verifying needs."""

    response: NeMoGymResponse


class BaseVerifyResponse(BaseVerifyRequest):
    """A scored rollout."""

    reward: float


class Score:
    """A reward, and further fields of the record. Return it from `verify`."""

    __slots__ = ("fields", "reward")

    def __init__(self, reward: float, /, **fields: Any) -> None:
        self.reward, self.fields = reward, fields


class BaseNextMessageRequest(BaseVerifyRequest):
    """A row, and what a policy has done since its last message: `response.output` holds the items of this turn only.
    Subclass it to declare the fields of the row that you need."""

    turn: int = 0
    """How many turns have been played. At 0 nobody has acted yet, and the environment opens the conversation."""
    participant: str = POLICY
    """Whose turn it was."""


class NextMessage(BaseModel):
    """What a policy hears next."""

    content: TextOrList[NeMoGymResponseContent]
    role: Literal["user", "system", "developer"] = "user"
    to: str | None = None
    """Which policy acts next; needed only if there are several."""


class NextMessageReply(BaseModel):
    """The next message; none if the conversation is over."""

    message: NextMessage | None = None


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    """A scored rollout whose reward is made of several."""

    reward_components: dict[str, float]


class BaseSeedSessionRequest(BaseModel):
    """A row, before the first step. Subclass it to declare the fields that setting up the state needs."""


class BaseSeedSessionResponse(BaseModel):
    """Nothing to say."""


class SimpleResourcesServer(BaseResourcesServer, AggregateMetricsMixin, SimpleServer):
    """Subclass, mark the methods a model may call with `@tool`, and write `verify`."""

    given_history: ClassVar[GivenHistory | None] = None
    """What the tool calls in a row's `input` mean to an environment with a `SessionState`. `replay`: they are made
    again before the first turn, and outputs that differ from the row's are no result. `ignore`: the state comes from
    the row, with its history. `refuse`: such a row has no result; that also holds if this is not set."""

    def endpoints(self) -> list[Endpoint]:
        own = type(self)
        if own.verify is SimpleResourcesServer.verify and own.setup_webserver is SimpleResourcesServer.setup_webserver:
            raise ConfigError(f"{own.__name__} has no `verify`, nor routes of its own that do without it.")
        endpoints = [
            SeedEndpoint(
                self,
                self.seed_session,
                finish=_seeded,
                is_default=own.seed_session is SimpleResourcesServer.seed_session,
            ),
            Endpoint("/verify", self.verify, cause="verifier", finish=self._finish_verify),
            Endpoint("/tool_schemas", self._list_tools, cause="environment"),
            *self._next_message_endpoints(),
            AggregateMetricsEndpoint("/aggregate_metrics", self.aggregate_metrics, cause="internal"),
            *self.tool_endpoints(),
            *(Endpoint(ANY_TOOL, method, cause="tool", finish=_tool_output) for method in any_tools_of(self)),
        ]
        return plugin("mcp_endpoints")(endpoints, self) if self.config.expose_tools_over_mcp else endpoints

    def answer_get(self, path: str) -> Any:
        if path == "/reverify_mode":
            return str(getattr(self.config, "REVERIFY_MODE", ReverifyMode.UNKNOWN))
        if path == "/aggregate_metrics":
            return {"has_own_metrics": self.has_own_metrics()}
        return super().answer_get(path)

    def mcp_tools(self, harvested: list[Any], catchall: Any) -> Sequence[Any] | None:
        """The tools to expose with `expose_tools_over_mcp`: by default all that have a typed route. None exposes
        nothing."""
        return harvested

    def mcp_allowed_tools_for_session(self, seed_body: Any) -> Sequence[str] | None:
        """The tools that a row may call over MCP, by name. None for those that it lists or, if it lists none, all."""
        return None

    def normalize_tool_name(self, name: str) -> str:
        """The name of a tool without the prefix that MCP clients put before the tools of this server."""
        return normalize_tool_name(name, self.config.name)

    def tool_endpoints(self) -> list[Endpoint]:
        """One endpoint for each `@tool`."""
        return [
            Endpoint(f"/{name}", method, cause="tool", finish=_tool_output, is_tool=True)
            for name, method in tools_of(self).items()
        ]

    @classmethod
    def tool_schemas(cls) -> list[dict[str, Any]]:
        """The tools as a row's `responses_create_params.tools` lists them. A row without `tools` gets these."""
        endpoints = (
            Endpoint(f"/{name}", method, cause="tool", is_tool=True) for name, method in tools_of(cls).items()
        )
        return [function_tool(endpoint.function, endpoint.arguments) for endpoint in endpoints]

    def _finish_verify(self, body: Any, result: Any) -> Any:
        if isinstance(result, ServerReply):  # the handler has returned a Starlette response
            if result.status >= 400:
                return result
            result = _decoded(result.content())
        answer, config = _verified(body, result), self.config
        if config.cut_off_reward is not None:
            answer = _with_cut_off_reward(answer, _response_in(body), config.cut_off_reward)
        return answer if config.record_row_fields else {**orjson.loads(encode(answer)), ROW_FIELDS: []}

    async def _list_tools(self) -> JsonObject:
        return {"tools": self.tool_schemas()}

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Raise ValueError with the reason if this row can never be scored right. Called after the fields of the row
        were found to fit the bodies of `seed_session` and `verify`."""

    @classmethod
    def slow_check(cls, row: JsonObject, settings: Mapping[str, Any]) -> SlowCheck | None:
        """Return a check of a row that is too slow for `check_row`, if it needs one.

        It runs in another process, once for equal arguments, before the first model call of a rollout and in
        `ng_prepare_data`. `settings` is what the configuration says about this server."""
        return None

    async def seed_session(self, *args: Any, **kwargs: Any) -> Any:
        """Set up the state of a rollout from its row. By default there is nothing to set up."""
        return BaseSeedSessionResponse()

    async def next_message(self, *args: Any, **kwargs: Any) -> Any:
        """Answer the model when it has said something: a text, a NextMessage, or None when the conversation is over.
        `multi_turn_agent` calls it after every turn. An environment that does not override it has no such endpoint."""

    def _next_message_endpoints(self) -> list[Endpoint]:
        if type(self).next_message is SimpleResourcesServer.next_message:
            return []
        return [Endpoint("/next_message", self.next_message, cause="environment", finish=_answered)]

    async def verify(self, *args: Any, **kwargs: Any) -> Any:
        """Score a rollout. Return a float, or a `Score` to add fields to the record."""
        raise NotImplementedError

    @classmethod
    def gold_response(cls, row: JsonObject) -> str | list[JsonObject] | None:
        """A right answer to a row, for `ng_check_verifier`: what to say, or the output items; None if that is to be
        guessed.

        A class method and no endpoint: nobody that can call this server may ask it for the answers.
        """
        return None


def normalize_tool_name(name: str, server_name: str | None = None) -> str:
    """`mcp__<server>__<tool>` as the tool alone; another server's prefix stays."""
    parts = name.split("__", 2)
    is_prefixed = len(parts) == 3 and parts[0] == "mcp" and server_name in (None, parts[1])
    return parts[2] if is_prefixed else name


def tool_schemas_of(kind: type[SimpleResourcesServer]) -> list[dict[str, Any]]:
    """The tools of an environment as its rows list them, without a server that runs."""
    return kind.tool_schemas()


def _seeded(_body: Any, result: Any) -> Any:
    return BaseSeedSessionResponse() if result is None else result


def _answered(_body: Any, result: Any) -> NextMessageReply:
    message = NextMessage(content=result) if isinstance(result, str) else result
    if message is not None and not isinstance(message, NextMessage):
        found = f"next_message returned {type(result).__name__}; expected a text, a NextMessage or None."
        raise RolloutError("environment", found, retryable=False)
    return NextMessageReply(message=message)


def _tool_output(_body: Any, result: Any) -> Any:
    """A string goes to the model as it is, anything else as JSON. What has no JSON form is the tool's failure."""
    if result is None or isinstance(result, ServerReply):
        return result
    return result.encode() if isinstance(result, str) else encode(result)


_NUMBERS = (int, float)
_ECHOED = frozenset(("responses_create_params", "response"))
"""What the caller sent."""
_PLAIN = frozenset((str, int, bool, type(None)))


def _decoded(reply: bytes) -> Any:
    try:
        return orjson.loads(reply)
    except ValueError:
        check_finite_numbers(reply)
        raise


def _verified(body: Any, result: Any) -> Any:
    answer, reward = result, result
    if isinstance(result, Score):
        _check_finite_fields(result.fields)
        check_reward(result.reward)
        return _scored(body, float(result.reward), result.fields)
    if isinstance(result, _NUMBERS):
        reward = float(result)
        answer = _scored(body, reward, {})
    else:
        reward = result.get("reward") if isinstance(result, dict) else getattr(result, "reward", None)
        if reward is None:
            raise RolloutError(
                "verifier", f"verify returned {result!r:.100}; expected a number, a Score, or an object with a reward."
            )
        _check_finite_fields(result)
    check_reward(reward)
    return answer


def _check_finite_fields(result: Any) -> None:
    """Raise RolloutError for a number that JSON cannot hold: it would be written as null."""
    for name, value in (result if isinstance(result, dict) else _all_fields(result)).items():
        if name not in _ECHOED and type(value) not in _PLAIN and name != "reward" and not _is_finite(value):
            message = f"verify returned {name}={value!r:.100}, which has a number that is not finite."
            raise RolloutError("verifier", f"{message} Expected finite numbers.")


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict | BaseModel):
        value = (value if isinstance(value, dict) else _all_fields(value)).values()
        return all(map(_is_finite, value))
    return not isinstance(value, list | tuple | set | frozenset) or all(map(_is_finite, value))


def _all_fields(result: Any) -> dict[str, Any]:
    extra = result.__pydantic_extra__ if isinstance(result, BaseModel) else None
    own: dict[str, Any] = getattr(result, "__dict__", {})
    return {**own, **extra} if extra else own


def _scored(body: Any, reward: float, fields: JsonObject) -> Any:
    """Return the record of a rollout. A body that does not declare a response, or is a dict, has it as JSON."""
    if isinstance(body, dict):
        params, response = body["responses_create_params"], body["response"]
    else:
        params, response = body.responses_create_params, body.response
    if isinstance(response, NeMoGymResponse) and not fields:
        return BaseVerifyResponse.model_construct(responses_create_params=params, response=response, reward=reward)
    return {"responses_create_params": params, "response": response, "reward": reward, **fields}


def _response_in(body: Any) -> JsonObject:
    """The fields of the response in a body that may or may not declare it."""
    response = body.get("response") if isinstance(body, dict) else getattr(body, "response", None)
    return set_fields(response) if isinstance(response, BaseModel | dict) else {}


def _with_cut_off_reward(answer: Any, response: JsonObject, reward: float) -> Any:
    """The answer of `verify`, with this reward for every policy whose last reply was cut off. `reward` is that of the
    main policy, `rewards` has those of all if there are several."""
    main, others = response.get("participant") or POLICY, response.get("participants") or {}
    policies = {name: side["response"] for name, side in others.items() if side["is_trainable"]}
    cut_off = {name for name, one in policies.items() if one.get("incomplete_details")}
    cut_off |= {main} if response.get("incomplete_details") else set()
    if not cut_off:
        return answer
    fields: JsonObject = orjson.loads(encode(answer))
    if main in cut_off:
        fields["reward"] = reward
    if isinstance(rewards := fields.get("rewards"), dict):
        fields["rewards"] = {name: reward if name in cut_off else own for name, own in rewards.items()}
    return fields


def check_reward(reward: Any, *, server: str | None = None) -> None:
    """Raise RolloutError unless the reward is a finite number."""
    if not isinstance(reward, _NUMBERS) or not math.isfinite(reward):
        raise RolloutError("verifier", f"The reward is {reward!r}; expected a finite number.", server=server)


def check_finite_numbers(reply: bytes, *, server: str | None = None) -> None:
    """Raise RolloutError if a reply that JSON readers refuse has a number that is not finite: `NaN`, `1e999`. For any
    other fault nothing is raised."""
    found: list[str] = []

    def read(number: str) -> float:
        if not math.isfinite(float(number)):
            found.append(number)
        return float(number)

    with contextlib.suppress(ValueError, RecursionError):
        result = json.loads(reply, parse_constant=read, parse_float=read, parse_int=read)
        if found and isinstance(result, dict) and "reward" in result:
            check_reward(result["reward"], server=server)
    if found:
        message = f"The reply is not JSON that every reader understands: it has the number {shorten(found[0], 40)}."
        raise RolloutError("verifier", f"{message} Expected finite numbers.", server=server)
