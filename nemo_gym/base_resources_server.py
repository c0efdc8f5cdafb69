"""An environment: tools, per-rollout state, and a verifier."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import orjson
from pydantic import BaseModel, ConfigDict

from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.common.plugins import plugin
from nemo_gym.common.rewards import NUMBERS, check_finite_numbers, check_reward
from nemo_gym.config.keys import NEMO_GYM_MCP_METADATA_KEY as NEMO_GYM_MCP_METADATA_KEY
from nemo_gym.config.keys import ROW_FIELDS
from nemo_gym.config.types import BaseRunServerInstanceConfig
from nemo_gym.errors import GROUP_VERIFICATION, NOT_RESTORED, ConfigError, RolloutError
from nemo_gym.errors import ToolError as ToolError
from nemo_gym.llm_api.base import FailFastModel, JsonObject, TextOrList
from nemo_gym.llm_api.json_codec import constructed, encode, set_fields
from nemo_gym.llm_api.responses import (
    NeMoGymResponse,
    NeMoGymResponseContent,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymToolParam,
)
from nemo_gym.server.aggregate_metrics import AggregateMetrics as AggregateMetrics
from nemo_gym.server.aggregate_metrics import AggregateMetricsEndpoint, AggregateMetricsMixin
from nemo_gym.server.aggregate_metrics import AggregateMetricsRequest as AggregateMetricsRequest
from nemo_gym.server.base import BaseServer, SimpleServer
from nemo_gym.server.endpoint import ANY_TOOL
from nemo_gym.server.endpoint import Endpoint as Endpoint
from nemo_gym.server.seed import GivenHistory, Restore, SeedEndpoint, restore_mode
from nemo_gym.server.seed import SlowCheck as SlowCheck
from nemo_gym.server.session import SESSION_ID_KEY as SESSION_ID_KEY
from nemo_gym.server.session import SavedSession, Session
from nemo_gym.server.session import SessionState as SessionState
from nemo_gym.server.step_rewards import STEP_REWARDS, with_step_rewards
from nemo_gym.server.step_rewards import turns_of as turns_of
from nemo_gym.server.tools import POLICY, RESTORE_PATH, SESSION_COPY_PATH, any_tools_of, function_tool, tools_of
from nemo_gym.server.tools import Participant as Participant
from nemo_gym.server.tools import ToolName as ToolName
from nemo_gym.server.tools import any_tool as any_tool
from nemo_gym.server.tools import offered_tools as offered_tools
from nemo_gym.server.tools import tool as tool

if TYPE_CHECKING:
    from fastapi import Body as Body

__getattr__ = lazy_attributes(__name__)


class ReverifyMode(StrEnum):
    """Says if an environment can score a stored rollout by `verify` alone, without its session."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    """The configuration of an environment. Subclass it for fields of its own."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNKNOWN

    expose_tools_over_mcp: bool = False
    """Let the tools be called over the Model Context Protocol, at `/mcp`. `/seed_session` says how."""

    record_row_fields: bool = True
    """Put into the records of rollouts the fields of their row that the verifier does not return."""

    cut_off_reward: float | None = None
    """The reward of a policy whose last reply was cut off by a limit; other policies of the rollout keep theirs. By
    default the verifier's reward stands."""


class BaseResourcesServer(BaseServer):
    config: BaseResourcesServerConfig


class BaseRunRequest(FailFastModel):
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


class _ScoredRollout(BaseVerifyRequest):
    reward: float


class _ScoredWithFields(_ScoredRollout):
    model_config = ConfigDict(extra="allow")


class BaseVerifyResponse(_ScoredRollout):
    """A scored rollout. With `mask_sample` no trainer gets it; with a `failure_kind`, too, it has no result."""

    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None


class Score:
    """A reward, and further fields of the record. Return it from `verify`.

    `step_rewards` are rewards of the policy's turns: a list with one number for each, or a dict with those of output
    items by their index. `turns_of(body.response.output)` says which items a turn has."""

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
    """The next message to a policy."""

    content: TextOrList[NeMoGymResponseContent]
    role: Literal["user", "system", "developer"] = "user"
    to: str | None = None
    """Which policy acts next; needed only if there are several."""
    added_tools: list[NeMoGymToolParam] = []
    """Tools that the policy may call from now on, besides those that it has."""


class NextMessageReply(BaseModel):
    """The next message; none if the conversation is over."""

    message: NextMessage | None = None


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    """A scored rollout whose reward is made of several."""

    reward_components: dict[str, float]


class BaseSeedSessionRequest(FailFastModel):
    """A row, before the first step. Subclass it to declare the fields that setting up the state needs."""


class BaseSeedSessionResponse(BaseModel):
    """Nothing to say."""


MAX_SAVED_SESSIONS = 4096
"""How many copies of sessions an environment that restores by copy keeps, in each worker."""


class SessionCopyRequest(BaseModel):
    """Save the state of the session under a key, or load it from there."""

    save: str | None = None
    load: str | None = None


class SimpleResourcesServer(BaseResourcesServer, AggregateMetricsMixin, SimpleServer):
    """Subclass, mark the methods a model may call with `@tool`, and write `verify`."""

    given_history: ClassVar[GivenHistory | None] = None
    """How tool calls in a row's `input` are treated by an environment with a `SessionState`. `replay`: they are made
    again before the first turn, and outputs that differ from the row's are no result. `ignore`: the state comes from
    the row, with its history. `refuse`: such a row has no result; that also holds if this is not set. With
    `refuse`, an environment with `next_message` takes no earlier replies of the model either."""

    restore: ClassVar[Restore | None] = None
    """How the environment comes back to an earlier step of a rollout, to continue a partial rollout or to fork one.
    `replay`: its tools are called again, and an output that differs is no result. `copy`: its `SessionState`, which
    must be all it has, was copied (`copy.deepcopy`) at that step; where the copy is gone, as `replay`. `none`: not at
    all, such as if tools have effects outside. If not set, `replay` for an environment without state or with
    `given_history = "replay"`."""

    BODIES: ClassVar[Mapping[str, type[BaseModel]]] = {
        "seed_session": BaseSeedSessionRequest,
        "verify": BaseVerifyRequest,
        "next_message": BaseNextMessageRequest,
    }
    """What a handler is called with if it names fields of its row and no body."""

    def endpoints(self) -> list[Endpoint]:
        own = type(self)
        base, scores_groups = SimpleResourcesServer, own.verify_group is not SimpleResourcesServer.verify_group
        if own.verify is base.verify and not scores_groups and own.setup_webserver is base.setup_webserver:
            raise ConfigError(
                f"{own.__name__} has no `verify`, nor routes of its own that do without it. Add a method that returns "
                "the reward: async def verify(self, response) -> float"
            )
        endpoints = [
            SeedEndpoint(self, self.seed_session, finish=_seeded, fields_of=self.BODIES["seed_session"]),
            Endpoint(
                "/verify",
                self.verify,
                cause="verifier",
                finish=self._finish_verify,
                fields_of=self.BODIES["verify"],
            ),
            *self._verify_group_endpoints(),
            *self._session_copy_endpoints(),
            Endpoint("/tool_schemas", self._list_tools, cause="environment"),
            *self._next_message_endpoints(),
            AggregateMetricsEndpoint("/aggregate_metrics", self.aggregate_metrics, cause="internal"),
            *self.tool_endpoints(),
            *(Endpoint(ANY_TOOL, method, cause="tool", finish=_tool_output) for method in any_tools_of(self)),
        ]
        return plugin("mcp_endpoints")(endpoints, self) if self.config.expose_tools_over_mcp else endpoints

    def answer_get(self, path: str) -> Any:
        if path == RESTORE_PATH:
            return restore_mode(type(self))
        if path == "/reverify_mode":
            return str(self._reverify_mode())
        if path == "/aggregate_metrics":
            return {"has_own_metrics": self.has_own_metrics()}
        return super().answer_get(path)

    def _reverify_mode(self) -> ReverifyMode:
        mode: ReverifyMode = getattr(self.config, "REVERIFY_MODE", ReverifyMode.UNKNOWN)
        return mode

    async def get_reverify_mode(self) -> ReverifyMode:
        """Return whether a stored rollout can be scored by `verify` alone."""
        return self._reverify_mode()

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
        tools = tools_of(self)
        for method in tools.values():
            _check_types(method)
        return [
            Endpoint(f"/{name}", method, cause="tool", finish=_tool_output, is_tool=True)
            for name, method in tools.items()
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

    async def close_resources_session(self, body: Any) -> Any:
        """Release a session that an environment server of the public NeMo Gym has seeded."""
        raise NotImplementedError(f"{type(self).__name__} releases no sessions")

    async def next_message(self, *args: Any, **kwargs: Any) -> Any:
        """Answer the model when it has said something: a text, a NextMessage, or None when the conversation is over.
        `multi_turn_agent` calls it after every turn. An environment that does not override it has no such endpoint."""

    def _next_message_endpoints(self) -> list[Endpoint]:
        if type(self).next_message is SimpleResourcesServer.next_message:
            return []
        fields_of = self.BODIES["next_message"]
        answer = Endpoint(
            "/next_message", self.next_message, cause="environment", finish=_answered, fields_of=fields_of
        )
        return [answer]

    async def verify(self, *args: Any, **kwargs: Any) -> Any:
        """Score a rollout. Return a float, or a `Score` to add fields to the record."""
        message = f"'{self.config.name}' scores all rollouts of a group together, so a rollout alone has no reward."
        raise RolloutError("verifier", message, code=GROUP_VERIFICATION, retryable=False)

    async def verify_group(self, bodies: list[Any]) -> Sequence[float | Score]:
        """Score all rollouts of one row together, in their order, such as by comparing them. Override it in place of
        `verify`. `bodies` are as for `verify`: annotate them as a list of your request class."""
        raise NotImplementedError

    def _session_copy_endpoints(self) -> list[Endpoint]:
        if restore_mode(type(self)) != "copy":
            return []
        saved: dict[str, SavedSession] = {}

        async def session_copy(body: SessionCopyRequest, session: Session) -> None:
            if body.save is not None:
                saved.pop(body.save, None)
                saved[body.save] = session.save()
                if len(saved) > MAX_SAVED_SESSIONS:
                    del saved[next(iter(saved))]
            elif body.load in saved:
                session.load(saved[body.load])
            else:
                raise RolloutError("environment", "The copy of the session is gone.", code=NOT_RESTORED, status=404)

        return [Endpoint(SESSION_COPY_PATH, session_copy, cause="environment")]

    def _verify_group_endpoints(self) -> list[Endpoint]:
        if type(self).verify_group is SimpleResourcesServer.verify_group:
            return []
        finish = self._finish_verify_group
        return [Endpoint("/verify_group", self.verify_group, cause="verifier", finish=finish, is_tool=True)]

    def _finish_verify_group(self, body: Any, result: Any) -> Any:
        bodies: list[Any] = body.bodies
        if not isinstance(result, Sequence) or len(result) != len(bodies):
            found = f"verify_group returned {result!r:.100}; expected a list of {len(bodies)} scores."
            raise RolloutError("verifier", found)
        return {"results": [self._group_score(*each) for each in zip(bodies, result, strict=True)]}

    def _group_score(self, body: Any, score: float | Score) -> JsonObject:
        fields = score.fields if isinstance(score, Score) else {}
        reward = score.reward if isinstance(score, Score) else score
        _check_finite_fields(fields)
        check_reward(reward)
        answer = {**with_step_rewards(fields, _response_in(body)), "reward": float(reward)}
        if self.config.cut_off_reward is None:
            return answer
        scored: JsonObject = _with_cut_off_reward(answer, _response_in(body), self.config.cut_off_reward)
        return scored

    @classmethod
    def gold_response(cls, row: JsonObject) -> str | list[JsonObject] | None:
        """A right answer to a row, for `ng trust`: what to say, or the output items; None if that is to be
        guessed.

        A class method and no endpoint: nobody that can call this server may ask it for the answers.
        """
        return None


Environment = SimpleResourcesServer
"""Its name in scripts and notebooks, as `nemo_gym.Environment`."""


def normalize_tool_name(name: str, server_name: str | None = None) -> str:
    """`mcp__<server>__<tool>` as the tool alone; another server's prefix stays."""
    parts = name.split("__", 2)
    is_prefixed = len(parts) == 3 and parts[0] == "mcp" and server_name in (None, parts[1])
    return parts[2] if is_prefixed else name


def tool_schemas_of(kind: type[SimpleResourcesServer]) -> list[dict[str, Any]]:
    """The tools of an environment as its rows list them, without a server that runs."""
    return kind.tool_schemas()


def _check_types(tool_method: Callable[..., Any]) -> None:
    """Raise ConfigError for an argument without a type: the model could not know what to pass."""
    parameters = inspect.signature(tool_method).parameters.values()
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    untyped = [each.name for each in named if each.annotation is each.empty and each.name != "body"]
    if untyped:
        raise ConfigError(
            f"The tool {tool_method.__qualname__}() has an argument without a type: {', '.join(untyped)}. The type is "
            f"part of the schema that the model sees: write `{untyped[0]}: str`, or whatever it is."
        )


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


_ECHOED = frozenset(("responses_create_params", "response"))
"""The body of the request."""
_PLAIN = frozenset((str, int, bool, type(None)))
_SCALARS = _PLAIN | {float}
"""Of fields that a record has as they are, so that it is not decoded again for its metrics."""


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
        fields = result.fields
        if STEP_REWARDS in fields:
            fields = with_step_rewards(fields, _response_in(body))
        return _scored(body, float(result.reward), fields)
    if isinstance(result, NUMBERS):
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
    scored = {"responses_create_params": params, "response": response, "reward": reward}
    is_live = isinstance(response, NeMoGymResponse) and scored.keys().isdisjoint(fields)
    if not is_live or not all(type(value) in _SCALARS for value in fields.values()):
        return scored | fields
    return constructed(_ScoredWithFields if fields else _ScoredRollout, scored, fields)


def _response_in(body: Any) -> JsonObject:
    """The fields of the response in a body that may or may not declare it."""
    response = body.get("response") if isinstance(body, dict) else getattr(body, "response", None)
    return set_fields(response) if isinstance(response, BaseModel | dict) else {}


def _with_cut_off_reward(answer: Any, response: JsonObject, reward: float) -> Any:
    """The answer of `verify`, with this reward for every policy whose last reply was cut off. `reward` is that of the
    main policy, `rewards` has those of all if there are several."""
    main, others = response.get("participant") or POLICY, response.get("participants") or {}
    policies = {name: other["response"] for name, other in others.items() if other["is_trainable"]}
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
