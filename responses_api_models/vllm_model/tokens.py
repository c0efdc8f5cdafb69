"""The exact tokens of a generation, out of a vLLM completion. They are taken out, so that nothing is sent twice."""

from collections.abc import Mapping
from typing import Any

import orjson

from nemo_gym import JsonObject, NeMoGymAsyncOpenAI
from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.base import POLICY_VERSION_FIELD
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.tokens import TokenTraceError, call_tokens

ASK_FOR_TOKENS = {"logprobs": True, "return_tokens_as_token_ids": True, "return_token_ids": True}
"""The second names tokens by number in the log-probs; the third, which older versions do not know, gives them apart,
those of the prompt included."""

_MARK = "token_id:"


def take_prompt_ids(completion: JsonObject) -> list[int] | None:
    """The prompt as the endpoint saw it, if it tells."""
    found = [completion.pop("prompt_token_ids", None)]
    found += [choice.pop("prompt_token_ids", None) for choice in completion.get("choices") or ()]
    return next((ids for ids in found if ids), None)


def put_tokens(
    completion: JsonObject, prompt_ids: list[int], *, url: str, before: Mapping[str, Any] | None = None
) -> None:
    """Give the message of every choice its tokens, and the version of the weights if the endpoint names it. Those that
    the message `before` has already are shared with it."""
    version = _policy_version(completion)
    for choice in completion.get("choices") or ():
        entries: list[Any] = (choice.pop("logprobs", None) or {}).get("content") or []
        ids = choice.pop("token_ids", None) or [_number(entry, url) for entry in entries]
        if len(ids) != len(entries):
            text = f"{len(ids)} token ids, but {len(entries)} log-probs for them"
            raise UpstreamError(url, 200, text, cause="model")
        try:
            tokens = call_tokens(prompt_ids, ids, [entry["logprob"] for entry in entries], before=before)
        except TokenTraceError as error:
            raise UpstreamError(url, 200, str(error), cause="model") from error
        named = {} if version is None else {POLICY_VERSION_FIELD: version}
        choice["message"] = (choice.get("message") or {}) | tokens | named


def _policy_version(completion: JsonObject) -> int | str | None:
    """`policy_version` of the completion, or SGLang's `weight_version`, which is in `metadata` or in `sglext`."""
    version = completion.pop(POLICY_VERSION_FIELD, None)
    for extension in (completion.get("metadata"), completion.get("sglext")):
        if version is None and isinstance(extension, dict):
            version = extension.get("weight_version")
    return version if isinstance(version, int | str) else None


async def tokens_of_text(client: NeMoGymAsyncOpenAI, wanted: JsonObject) -> list[int] | None:
    """The prompt from llama.cpp, whose /tokenize knows texts only. What it makes of messages is a text of its own."""
    text = orjson.loads(await client.fetch("POST", client.root_url("/apply-template"), encode(wanted)))["prompt"]
    answer = await client.create_tokenize(content=text, add_special=True, parse_special=True)
    tokens: list[int] | None = answer.get("tokens")
    return tokens


def _number(entry: JsonObject, url: str) -> int:
    token, number = entry["token"], entry.get("id")  # the latter is llama.cpp's
    if isinstance(number, int):
        return number
    if not token.startswith(_MARK):
        text = (
            f"no token ids, but the token {token!r}; expected 'token_ids' or tokens like '{_MARK}42'. Training needs "
            "an endpoint that knows return_token_ids or return_tokens_as_token_ids, such as vLLM"
        )
        raise UpstreamError(url, 200, text, cause="model")
    return int(token.removeprefix(_MARK))
