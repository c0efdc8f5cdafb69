"""The model of an evaluation: a name, an address, a script or a function becomes the server `policy_model`."""

import hashlib
import inspect
import json
import os
import threading
import traceback
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import orjson
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.common.event_loop import run_in_thread
from nemo_gym.common.exceptions import exception_repr
from nemo_gym.common.paths import find, nearest
from nemo_gym.config.command_line import shown_option
from nemo_gym.config.keys import (
    POLICY_API_KEY_KEY_NAME,
    POLICY_BASE_URL_KEY_NAME,
    POLICY_MODEL_NAME_KEY_NAME,
    ServerType,
    map_leaves,
)
from nemo_gym.config.loading import POLICY_MODEL, escaped
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.evaluation.catalog import Entry, config_of, entries
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.builders import message, response_of
from nemo_gym.llm_api.chat import NeMoGymChatCompletion, NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.responses import FrozenRequest, NeMoGymResponse
from nemo_gym.llm_api.responses_chat import chat_params, normalize_completion, response_from_completion

RESPONSES_MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
CHAT_MODEL = "responses_api_models/vllm_model/configs/vllm_model.yaml"
OPENAI_URL, ANTHROPIC_URL = "https://api.openai.com/v1", "https://api.anthropic.com"
NO_KEY = "EMPTY"
"""The key for an endpoint of your own that asks for none."""
LIST_TIMEOUT_S = 30.0
POLICY = POLICY_MODEL.name

_PARSING = threading.Lock()
"""CPython 3.11 cannot parse a source in two threads at once: it raises SystemError."""

ModelFunction = Callable[..., Any]


@dataclass(frozen=True)
class Scripted:
    """A model that follows a script: texts, and replies with conditions as in the README of `scripted_model`. Those
    without conditions answer the turns of each conversation in order; the last is repeated."""

    replies: Sequence[str | Mapping[str, Any]] | str | Path
    """The replies, or a JSONL file of them."""

    def settings(self) -> JsonObject:
        """The settings of its server."""
        if isinstance(self.replies, str | Path):
            return {"script_fpath": str(self.replies)}
        replies = [{"say": each} if isinstance(each, str) else dict(each) for each in self.replies]
        return {"replies": map_leaves(escaped, replies)}


@dataclass(frozen=True)
class Setup:
    """A part of a configuration: files, keys, and classes that are in no folder."""

    config_paths: list[str] = field(default_factory=list)
    settings: JsonObject = field(default_factory=dict)
    classes: dict[str, type[Any]] = field(default_factory=dict)
    """Models by the name of their server."""
    code: dict[str, str] = field(default_factory=dict)
    """Hashes of these classes and of functions."""


def server_block(name: str, server_type: ServerType, implementation: str, **settings: Any) -> JsonObject:
    """The configuration of one server."""
    return {name: {server_type: {implementation: {"entrypoint": "app.py", **settings}}}}


def live_server(name: str, server_type: ServerType, kind: type[Any], **settings: Any) -> Setup:
    """A server from a class, without a folder."""
    return Setup(
        settings=server_block(name, server_type, kind.__name__, **settings),
        classes={name: kind},
        code={f"the class {kind.__name__}": hash_code(kind)},
    )


def hash_code(thing: Any) -> str:
    """A hash of a class or function, from its source if that is known."""
    with _PARSING:
        text = "\n".join(_source(each) for each in (_own_bases(thing) if isinstance(thing, type) else [thing]))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _own_bases(kind: type[Any]) -> list[type[Any]]:
    libraries = ("nemo_gym", "pydantic", "abc", "builtins", "typing")
    return [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in libraries]


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        if isinstance(thing, type):  # of a notebook, where only functions have a source
            return "\n".join(_source(each) for each in vars(thing).values() if inspect.isfunction(each))
        code = getattr(thing, "__code__", None)
        return type(thing).__qualname__ if code is None else f"{code.co_code.hex()} {code.co_names}"


# What a model may be


def model_setup(model: Any, given: Mapping[str, Any]) -> Setup:
    """The server of a model: see `evaluate`. `given` are the keys of env.yaml and the command line."""
    name = POLICY_MODEL.name
    if isinstance(model, Scripted):
        block = server_block(name, "responses_api_models", "scripted_model", **model.settings())
        return Setup(settings=block)
    if isinstance(model, type) and issubclass(model, SimpleResponsesAPIModel):
        return live_server(name, "responses_api_models", model)
    if callable(model) and not isinstance(model, type):
        return _function_setup(model)
    if model is not None and not isinstance(model, str):
        raise ConfigError(
            f"The model is {model!r:.100}; expected a name, a URL, 'local', gym.Scripted([...]), a subclass of "
            "gym.Model, or a function: async def my_model(messages) -> str"
        )
    return _named_setup(model, given)


def _named_setup(name: str | None, given: Mapping[str, Any]) -> Setup:
    if name is None:
        return _default_setup(given)
    if name.endswith((".yaml", ".yml")):
        return Setup([name])
    entry = _model_entry(name)
    if entry is not None:
        entry.check_extra()
        return Setup([str(config_of(entry))])
    if name.startswith(("http://", "https://")):
        key = given.get(POLICY_API_KEY_KEY_NAME) or os.environ.get("OPENAI_API_KEY") or NO_KEY
        return _endpoint(name, str(key), served_model(name, str(key)))
    if name.startswith("claude") and not given.get(POLICY_BASE_URL_KEY_NAME):
        return _endpoint(_anthropic_url(), _key(name, "ANTHROPIC_API_KEY", given), name)
    url = given.get(POLICY_BASE_URL_KEY_NAME) or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
    is_configured = bool(given.get(POLICY_BASE_URL_KEY_NAME))
    key = _key(name, "OPENAI_API_KEY", given, is_needed=url == OPENAI_URL)
    return _endpoint(url, key, name, config=RESPONSES_MODEL if is_configured else None)


def _anthropic_url() -> str:
    url = os.environ.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL
    return f"{url.rstrip('/').removesuffix('/v1')}/v1"


def names_in_messages(config: Mapping[str, Any], model: Any) -> dict[str, str]:
    """What the user has set in place of keys of the policy's endpoint: an environment variable, or `model`."""
    url, key = config.get(POLICY_BASE_URL_KEY_NAME), config.get(POLICY_API_KEY_KEY_NAME)
    urls = {os.environ.get("OPENAI_BASE_URL") or OPENAI_URL: "OPENAI", _anthropic_url(): "ANTHROPIC"}
    names = {}
    if (provider := urls.get(url or "")) is not None:
        names[POLICY_BASE_URL_KEY_NAME] = f"{provider}_BASE_URL"
    if url is not None and key in (NO_KEY, *(os.environ.get(f"{each}_API_KEY") for each in urls.values())):
        names[POLICY_API_KEY_KEY_NAME] = f"{provider or 'OPENAI'}_API_KEY"
    if isinstance(model, str) and url is not None:
        name = POLICY_BASE_URL_KEY_NAME if model == url else POLICY_MODEL_NAME_KEY_NAME
        names[name] = shown_option("model", model)
    return names


def _default_setup(given: Mapping[str, Any]) -> Setup:
    """The endpoint of env.yaml or of OPENAI_BASE_URL or, without one, the model on this machine's CPU."""
    if given.get(POLICY_BASE_URL_KEY_NAME):
        return Setup([RESPONSES_MODEL])
    own_url = os.environ.get("OPENAI_BASE_URL")
    return _named_setup(own_url, given) if own_url and own_url != OPENAI_URL else Setup()


def _endpoint(url: str, key: str, model: str, *, config: str | None = None) -> Setup:
    """A model at an endpoint: OpenAI's speaks Responses, any other at least Chat Completions."""
    settings = {POLICY_BASE_URL_KEY_NAME: url, POLICY_API_KEY_KEY_NAME: key, POLICY_MODEL_NAME_KEY_NAME: model}
    return Setup([config or (RESPONSES_MODEL if url == OPENAI_URL else CHAT_MODEL)], settings)


def _key(name: str, variable: str, given: Mapping[str, Any], *, is_needed: bool = True) -> str:
    key = given.get(POLICY_API_KEY_KEY_NAME) or os.environ.get(variable) or ("" if is_needed else NO_KEY)
    if key:
        return str(key)
    models = [each.name for each in entries("responses_api_models")]
    raise ConfigError(
        f"'{name}' is a model at an endpoint, which needs a key: set {variable}, or policy_api_key and "
        f"policy_base_url in env.yaml. The model 'local' needs none.{nearest(name, ['local', *models])}"
    )


def _model_entry(name: str) -> Entry | None:
    folder = name.rstrip("/").removeprefix("responses_api_models/")
    return next((each for each in entries("responses_api_models") if each.name in (folder, f"{folder}_model")), None)


def served_model(url: str, key: str) -> str:
    """The one model that an endpoint serves."""
    request = urllib.request.Request(f"{url.rstrip('/')}/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=LIST_TIMEOUT_S) as reply:
            names = [str(each["id"]) for each in json.load(reply)["data"]]
    except urllib.error.HTTPError as error:
        raise _no_model(url, str(error)) from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(f"{url} did not answer: {reason}. Is the endpoint running?") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _no_model(url, str(error)) from error
    if len(names) == 1:
        return names[0]
    listed = ", ".join(names[:20]) or "none"
    raise ConfigError(f"{url} serves several models: {listed}. Set OPENAI_BASE_URL to it and give the name of one.")


def _no_model(url: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{url} does not say which model it serves (GET {url.rstrip('/')}/models): {reason}. Set OPENAI_BASE_URL to "
        "it and give the name of the model."
    )


# Judges and simulated users


def role_setup(models: Any, role: str, given: Mapping[str, Any]) -> tuple[Setup, list[str]]:
    """The servers of a model or of several in another role than the policy's, and their names: each may be whatever
    `model` may be."""
    several = models if isinstance(models, list | tuple) else [models]
    names = [f"{role}_{number}" for number in range(1, len(several) + 1)]
    parts = [_renamed(model_setup(each, given), name, given) for each, name in zip(several, names, strict=True)]
    return merged(*parts), names


def merged(*parts: Setup) -> Setup:
    """All parts as one."""
    whole = Setup()
    for part in parts:
        whole = Setup(
            [*whole.config_paths, *part.config_paths],
            {**whole.settings, **part.settings},
            {**whole.classes, **part.classes},
            {**whole.code, **part.code},
        )
    return whole


def _renamed(setup: Setup, name: str, given: Mapping[str, Any]) -> Setup:
    """The server `policy_model` of a setup under another name, with what its config file interpolates."""
    files = [OmegaConf.load(find(path)) for path in setup.config_paths]
    own = {key: value for key, value in setup.settings.items() if key.startswith("policy_") and key != POLICY}
    block = {POLICY: setup.settings[POLICY]} if POLICY in setup.settings else {}
    whole = OmegaConf.merge(OmegaConf.create(dict(given)), *files, map_leaves(escaped, own), block)
    try:
        settings: Any = OmegaConf.to_container(whole, resolve=True)
        found = {name: settings[POLICY]}
    except (OmegaConfBaseException, KeyError) as error:
        raise ConfigError(
            f"{', '.join(setup.config_paths)} cannot be {name}, as {POLICY} is not there: {error}"
        ) from error
    classes = dict.fromkeys([name], next(iter(setup.classes.values()))) if setup.classes else {}
    code = {f"{each} ({name})": digest for each, digest in setup.code.items()}
    return Setup([], map_leaves(escaped, found), classes, code)


# A function as a model


class FunctionModel(SimpleResponsesAPIModel):
    """Asks a function, which gets the conversation as chat messages and, if it takes them, the tools."""

    config: BaseResponsesAPIModelConfig
    function: ClassVar[ModelFunction]
    takes_tools: ClassVar[bool] = False

    def served_model(self) -> str:
        return type(self).function.__name__

    async def responses(self, body: FrozenRequest) -> NeMoGymResponse:
        name = self.served_model()
        reply = _plain(await self._ask(chat_params(body)), name)
        if "choices" in reply:
            completion = normalize_completion(reply, url=name)
            return response_from_completion(body, completion, model=name)
        return NeMoGymResponse.model_validate({**response_of(), "model": name, **reply})

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> NeMoGymChatCompletion:
        reply = _plain(await self._ask(body), self.served_model())
        if "choices" not in reply:
            raise RolloutError("model", f"{self.served_model()} gave a Response; a chat completion was asked for.")
        return normalize_completion(reply, url=self.served_model())

    async def _ask(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> Any:
        function, asked = type(self).function, orjson.loads(encode(body, exclude_unset=True))
        arguments = [asked["messages"], *([asked.get("tools") or []] if self.takes_tools else [])]
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*arguments)
            answer = await run_in_thread(function, *arguments)
            return await answer if isinstance(answer, Awaitable) else answer
        except Exception as error:
            frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
            place = f"{frame.f_code.co_filename}:{line}"
            raise RolloutError(
                "model", f"{self.served_model()}() raised {exception_repr(error)} at {place}"
            ) from error


def _function_setup(function: ModelFunction) -> Setup:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    required = [each for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(required) > 2 or not parameters:
        raise ConfigError(
            f"The model {name}{inspect.signature(function) if parameters else '()'} cannot be called: expected "
            "async def my_model(messages), or my_model(messages, tools)."
        )

    async def ask(*arguments: Any) -> Any:
        return await function(*arguments)

    is_plain = inspect.isfunction(function) or inspect.ismethod(function)
    callee = function if is_plain else ask
    fields = {"function": staticmethod(callee), "takes_tools": len(required) == 2, "__module__": __name__}
    kind = type(name, (FunctionModel,), {**fields, "__annotations__": {}})
    setup = live_server(POLICY_MODEL.name, "responses_api_models", kind)
    return Setup(settings=setup.settings, classes=setup.classes, code={f"the function {name}": hash_code(function)})


def _plain(reply: Any, name: str) -> JsonObject:
    """Return the result of a function as the JSON of a response or of a chat completion."""
    if isinstance(reply, str):
        return response_of(message(reply))
    if isinstance(reply, BaseModel):
        reply = reply.model_dump(mode="json")
    if isinstance(reply, dict) and ("choices" in reply or "output" in reply):
        return reply
    if isinstance(reply, dict) and reply.get("role") == "assistant":
        return {"choices": [{"index": 0, "finish_reason": "stop", "message": reply}]}
    raise RolloutError(
        "model",
        f"{name}() returned {reply!r:.100}; expected a text, a chat message, a chat completion or a Response.",
        retryable=False,
    )
