"""The policy versions that a trainer's session names are on every token of an endpoint that names none."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.training import ModelCall, RolloutSession, trace_of
from tests.stub_endpoint import Request, stub_endpoint
from tests.training.test_session import config_at, row_of

ROLLOUTS, TURNS = 40, 3
OLD, NEW = 100, 200


def trained_model(url: str) -> dict[str, Any]:
    block = {"entrypoint": "app.py", "base_url": url, "api_key": "key", "model": "m", "uses_reasoning_parser": False}
    block |= {"return_token_id_information": True, "protocol": "tokens"}
    return {"responses_api_models": {"vllm_model": block}}


class UpdatedEngine:
    """Samples tokens that show the weights. Every second generation is aborted by their update."""

    def __init__(self) -> None:
        self.weights, self.made = OLD, 0
        self.update_comes, self.is_updated = asyncio.Event(), asyncio.Event()
        self.is_updating = False
        self.asked = 0

    async def is_idle(self) -> None:
        """Return when no request has come for a while: those that were sent before a pause have ended."""
        asked = -1
        while asked != self.asked:
            asked = self.asked
            await asyncio.sleep(0.3)

    async def __call__(self, request: Request) -> Any:
        self.asked += 1
        if request.path == "/tokenize":
            said = [each["content"] or "" for each in request.body["messages"] if each["role"] == "assistant"]
            return {"tokens": [*([len(said[-1])] if said else []), 7, 8]}
        if request.path == "/v1/models":
            return {"data": [{"id": "m", "max_model_len": 4096}]}
        assert not self.is_updating, "a request while weights change"
        self.made += 1
        if self.made == ROLLOUTS * TURNS // 2:
            self.update_comes.set()
        if self.update_comes.is_set() and not self.is_updated.is_set() and self.made % 2:
            return self._reply("abort")
        if self.update_comes.is_set() and not self.is_updated.is_set():
            await asyncio.sleep(0.05)  # one in flight that ends before the weights change
        return self._reply("stop")

    def _reply(self, reason: str) -> Any:
        ids = [self.weights] * 3
        call = '<tool_call>{"name": "increment_counter", "arguments": {"count": 1}}</tool_call>'
        text = "" if reason == "abort" else call if self.made % TURNS else "Done."
        logprobs = {"token_logprobs": [-1.0] * 3}
        return {"choices": [{"text": text, "token_ids": ids, "logprobs": logprobs, "finish_reason": reason}]}


def versions_of(call: ModelCall) -> list[Any]:
    runs = call.version_runs or [(call.policy_version, len(call.sampled_ids))]
    return [version for version, count in runs for _ in range(count)]


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_every_token_has_the_version_that_the_trainer_named(tmp_path: Path, num_workers: int) -> None:
    engine = UpdatedEngine()
    async with stub_endpoint(engine) as stub:
        config = {**config_at(stub.url, tmp_path, policy_model=trained_model(stub.url)), "num_workers": num_workers}
        async with RolloutSession(config, version=OLD) as session:
            handles = [session.submit(row_of(number, expected=0)) for number in range(ROLLOUTS)]
            await asyncio.wait_for(engine.update_comes.wait(), 60)
            await asyncio.to_thread(session.pause)
            await engine.is_idle()
            engine.is_updating = True
            await asyncio.sleep(0.1)
            engine.weights, engine.is_updating = NEW, False
            engine.is_updated.set()
            await asyncio.to_thread(session.resume, version=NEW)
            records = await asyncio.gather(*handles)
    calls = [call for record in records for call in trace_of(record).calls]
    assert all(versions_of(call) == [*call.sampled_ids] for call in calls)
    sampled = [{*call.sampled_ids} for call in calls]
    assert {OLD} in sampled
    assert {NEW} in sampled
    assert {OLD, NEW} in sampled
