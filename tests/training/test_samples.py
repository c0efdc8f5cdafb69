"""A multi-turn rollout with tools, from an endpoint that remembers what it sampled to what each trainer gets."""

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.analysis.export import ExportConfig, export_rollouts
from nemo_gym.cli.analyze import check_tokens as check_tokens_command
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.testing import rows_of, running_servers, servers_of
from nemo_gym.training import VIEWS, FlatTokens, samples_of
from nemo_gym.training.token_check import check_tokens
from tests.stub_endpoint import Request, completion, stub_endpoint

COUNTER = "resources_servers/example_stateful_counter"
AGENT = {"type": "responses_api_agents", "name": "stateful_counter_simple_agent"}
TURNS = 4


@dataclass
class TokenEndpoint:
    """Answers with tool calls and then a message. A prompt is spliced from the ids that came back with it."""

    compact_at: int | None = None
    """The turn at which the context is made shorter."""
    chance: random.Random = field(default_factory=lambda: random.Random(3))
    prompts: list[list[int]] = field(default_factory=list)
    sampled: list[list[int]] = field(default_factory=list)
    log_probs: list[list[float]] = field(default_factory=list)

    def __call__(self, request: Request) -> Any:
        turn = sum(message["role"] == "assistant" for message in request.body["messages"])
        self.prompts.append(self._prompt(turn, request.body["messages"]))
        self.sampled.append(self._ids())
        self.log_probs.append([-self.chance.random() for _ in self.sampled[-1]])
        function = {"name": "increment_counter", "arguments": '{"count": 1}'}
        calls = [{"id": f"c{turn}", "type": "function", "function": function}] if turn < TURNS - 1 else []
        answer = completion({"role": "assistant", "content": "Done." if not calls else None, "tool_calls": calls})
        entries = [{"token": "x", "logprob": value, "top_logprobs": []} for value in self.log_probs[-1]]
        answer["choices"][0] |= {"logprobs": {"content": entries}, "token_ids": self.sampled[-1]}
        read, wrote = len(self.prompts[-1]), len(self.sampled[-1])
        answer["usage"] = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        return {**answer, "prompt_token_ids": self.prompts[-1], "metadata": {"weight_version": f"v{turn // 2}"}}

    def _prompt(self, turn: int, messages: list[dict[str, Any]]) -> list[int]:
        if turn == 0 or turn == self.compact_at:
            return [1, *self._ids()]
        last = next(message for message in reversed(messages) if message["role"] == "assistant")
        return [*last["prompt_token_ids"], *last["generation_token_ids"], *self._ids()]

    def _ids(self) -> list[int]:
        return [self.chance.randrange(2, 50_000) for _ in range(self.chance.randint(1, 9))]

    def flat(self, first: int, last: int) -> FlatTokens:
        """What a trainer must get for turns `first` to `last - 1`, worked out on its own."""
        ids: list[int] = []
        mask: list[int] = []
        log_probs: list[float] = []
        for turn in range(first, last):
            read = self.prompts[turn][len(ids) :]
            ids += read + self.sampled[turn]
            mask += [0] * len(read) + [1] * len(self.sampled[turn])
            log_probs += [0.0] * len(read) + self.log_probs[turn]
        return FlatTokens(ids, mask, log_probs, len(self.prompts[first]))


@asynccontextmanager
async def rollout(endpoint: TokenEndpoint) -> AsyncIterator[dict[str, Any]]:
    """The result that a trainer gets for one row."""
    config = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
    async with stub_endpoint(endpoint) as stub:
        settings = {"policy_base_url": stub.url, "policy_api_key": "none", "policy_model_name": "m"}
        servers = servers_of(f"{COUNTER}/configs/stateful_counter.yaml", config, **settings)
        async with running_servers(servers) as client:
            row = {**rows_of(f"{COUNTER}/data/example.jsonl")[0], "agent_ref": AGENT}
            (future,) = RolloutCollectionHelper().run_examples([row], client=client)
            _, result = await future
            yield result


@pytest.mark.parametrize("trainer", VIEWS)
async def test_ids_and_mask_are_what_the_endpoint_sampled(trainer: str) -> None:
    endpoint = TokenEndpoint()
    async with rollout(endpoint) as result:
        (sample,) = samples_of(result)
    assert len(endpoint.sampled) == TURNS
    view, expected = VIEWS[trainer], endpoint.flat(0, TURNS)
    written = orjson.loads(orjson.dumps(view.write(sample)))
    read = view.read(written)
    assert read.sampled_ids == [token for ids in endpoint.sampled for token in ids]
    assert (read.ids, read.loss_mask, read.log_probs) == (expected.ids, expected.loss_mask, expected.log_probs)
    assert read.prompt_length == len(endpoint.prompts[0])
    assert sample.tokens.policy_versions == ["v0", "v0", "v1", "v1"]
    if trainer in ("verl", "slime"):
        assert read.policy_versions == sample.tokens.policy_versions


async def test_a_compacted_context_gives_a_trainer_two_samples() -> None:
    endpoint = TokenEndpoint(compact_at=2)
    async with rollout(endpoint) as result:
        samples = samples_of(result)
    for sample, turns in zip(samples, ((0, 2), (2, 4)), strict=True):
        expected = endpoint.flat(*turns)
        assert (sample.tokens.ids, sample.tokens.loss_mask) == (expected.ids, expected.loss_mask)
    report = check_tokens([encode(result)])
    assert (report.segments, report.turns, report.faults) == (2, 4, [])
    assert report.breaks == [
        f"line 1, turn 3: token 1 of the prompt is {endpoint.prompts[2][1]}, "
        f"expected {endpoint.prompts[1][1]} as in turn 2"
    ]


@pytest.mark.parametrize("trainer", VIEWS)
async def test_exported_samples_pass_the_check(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with rollout(TokenEndpoint(compact_at=2)) as result:
        records = [{**result, "_task_index": 0, "_repeat_index": index, "reward": float(index)} for index in (0, 1)]
    rollouts, output = tmp_path / "rollouts.jsonl", tmp_path / "samples.jsonl"
    rollouts.write_bytes(b"".join(encode(each) + b"\n" for each in [*records, {"reward": None}]))
    config = {"rollouts_jsonl_fpath": str(rollouts), "output_jsonl_fpath": str(output), "format": trainer}
    report = export_rollouts(ExportConfig.model_validate(config))
    assert report.as_json() == {
        "rollouts_read": 3,
        "rollouts_used": 2,
        "examples": 4,
        "dropped": {"no scored rollout": 1},
    }
    lines = rows_of(output)
    assert [(line["_repeat_index"], line["segment"]) for line in lines] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [round(line["advantage"], 3) for line in lines] == [-0.707, -0.707, 0.707, 0.707]
    argv = ["ng_check_tokens", f"+rollouts_jsonl_fpath={output}", f"+format={trainer}"]
    monkeypatch.setattr(sys, "argv", argv)
    check_tokens_command()
    assert capsys.readouterr().out == "4 rollouts, 8 turns with tokens in 4 segments, 0 breaks, 0 faults\n"
    _spoil(lines[0]["sample"])
    assert len(check_tokens([orjson.dumps(lines[0])], trainer=trainer).faults) == 1


def _spoil(sample: dict[str, Any]) -> None:
    """Take one log-prob or one entry of the mask away."""
    log = sample.get("message_log")
    if log:
        log[1]["generation_logprobs"].pop()
    else:
        fields = sample.get("loss_fn_inputs", sample)
        names = ("response_mask", "loss_masks", "loss_mask", "env_mask", "completion_mask", "logprobs")
        next(fields[name] for name in names if name in fields).pop()
