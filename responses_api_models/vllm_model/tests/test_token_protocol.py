"""Token in, token out: on an engine that tokenizes text again, every conversation is one segment of exactly the tokens
that the engine read and sampled. Its tokenizer is a real one, trained here."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from nemo_gym.testing import BrowserLikeClient
from nemo_gym.training import TokenTrace, trace_of
from responses_api_models.vllm_model.app import VLLMModelConfig
from responses_api_models.vllm_model.token_protocol import read_text
from tests.model_servers import in_front_of
from tests.stub_endpoint import Request, stub_endpoint

END, OPEN, PAD = "<|im_end|>", "<|im_start|>", "<|image_pad|>"
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
APIS = ("completions", "generate", "sglang")


def trained_tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    corpus = ['{"name": "get_weather", "arguments": {"city": "Oslo"}}', "It is cold in Oslo, so take a coat."] * 20
    made.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(each, special=True) for each in (OPEN, END, "<|endoftext|>", PAD)])
    made.add_tokens(
        [
            AddedToken(each)
            for each in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
        ]
    )
    return made


@dataclass
class Sampled:
    """What the engine samples in one request."""

    text: str
    end: str | None = END
    finish_reason: str = "stop"
    version: int | None = None
    letters: bool = False
    """Sample every letter as a token of its own: nothing that tokenizes the text would."""


@dataclass
class TokenizingEngine:
    """An engine with vLLM's and SGLang's endpoints. Its chat template drops the thoughts of earlier turns."""

    script: list[Sampled]
    tokenizer: Tokenizer = field(default_factory=trained_tokenizer)
    prompts: list[list[int]] = field(default_factory=list)
    sampled: list[list[int]] = field(default_factory=list)
    images: list[list[str]] = field(default_factory=list)
    """Those of each request."""

    def __call__(self, request: Request) -> Any:
        if request.path == "/tokenize":
            return {"tokens": self.ids(self.rendered(request.body)), "max_model_len": 4096}
        if request.path == "/detokenize":
            return {"prompt": self.tokenizer.decode(request.body["tokens"])}
        if request.path == "/v1/models":
            return {"data": [{"id": "m", "max_model_len": 4096}]}
        answer: Callable[[dict[str, Any]], Any] = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.completions,
            "/inference/v1/generate": self.generate,
            "/generate": self.sglang,
        }[request.path]
        return answer(request.body)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def rendered(self, body: dict[str, Any]) -> str:
        text = f"{OPEN}system\nTools: {len(body['tools'])}{END}\n" if body.get("tools") else ""
        for message in body["messages"]:
            content = message.get("content") or ""
            if isinstance(content, list):
                content = "".join(part.get("text", PAD) for part in content)
            if message["role"] == "assistant":
                content = content.rpartition("</think>")[2]
                for call in message.get("tool_calls") or ():
                    content += f"\n{call_text(call['function']['arguments'])}"
            elif message["role"] == "tool":
                content = f"<tool_response>\n{content}\n</tool_response>"
            text += f"{OPEN}{'user' if message['role'] == 'tool' else message['role']}\n{content}{END}\n"
        return text + f"{OPEN}assistant\n"

    def sample(self, prompt: list[int], most: int) -> tuple[Sampled, list[int], list[float]]:
        step = self.script[len(self.sampled)]
        ids = [token for letter in step.text for token in self.ids(letter)] if step.letters else self.ids(step.text)
        ids = [*ids, *(self.ids(step.end) if step.end else ())][:most]
        self.prompts.append(prompt)
        self.sampled.append(ids)
        return step, ids, [-0.25 * (token % 7) for token in ids]

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def chat(self, body: dict[str, Any]) -> Any:
        prompt = self.ids(self.rendered(body))
        step, ids, values = self.sample(prompt, body.get("max_completion_tokens") or 4096)
        entries = [{"token": f"token_id:{token}", "logprob": value} for token, value in zip(ids, values, strict=True)]
        message = read_text(self._text(ids), with_tools=True)
        choice = {"index": 0, "finish_reason": step.finish_reason, "message": message, "token_ids": ids}
        fields = {"id": "c", "created": 0, "model": "m", "object": "chat.completion"}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        return {
            **fields,
            "choices": [{**choice, "logprobs": {"content": entries}}],
            "prompt_token_ids": prompt,
            "usage": usage,
        }

    def completions(self, body: dict[str, Any]) -> Any:
        step, ids, values = self.sample(body["prompt"], body["max_tokens"])
        logprobs = {"token_logprobs": values, "tokens": [f"token_id:{token}" for token in ids]}
        choice = {"text": self._text(ids), "token_ids": ids, "logprobs": logprobs, "finish_reason": step.finish_reason}
        return {"choices": [choice], "policy_version": step.version}

    def generate(self, body: dict[str, Any]) -> Any:
        self.images.append([part["url"] for part in body.get("content_parts", ())])
        step, ids, values = self.sample(body["token_ids"], body["sampling_params"]["max_tokens"])
        entries = [{"logprob": value} for value in values]
        choice = {"token_ids": ids, "logprobs": {"content": entries}, "finish_reason": step.finish_reason}
        return {"choices": [choice], "policy_version": step.version}

    def sglang(self, body: dict[str, Any]) -> Any:
        self.images.append(body.get("image_data", []))
        step, ids, values = self.sample(body["input_ids"], body["sampling_params"]["max_new_tokens"])
        pairs = [[value, token, None] for value, token in zip(values, ids, strict=True)]
        meta = {
            "output_token_logprobs": pairs,
            "finish_reason": {"type": step.finish_reason},
            "weight_version": step.version,
        }
        return {"text": self._text(ids), "output_ids": ids, "meta_info": meta}


def call_text(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


def heard(item: dict[str, Any]) -> list[dict[str, Any]]:
    return (
        [{"type": "function_call_output", "call_id": item["call_id"], "output": "It is cold."}]
        if item["type"] == "function_call"
        else []
    )


async def converse(
    model: BrowserLikeClient, turns: int, *, users: bool = False, **fields: Any
) -> list[dict[str, Any]]:
    """The output of a conversation in which tools reply, and with `users` a user speaks after other turns."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    output: list[dict[str, Any]] = []
    for _ in range(turns):
        reply = await model.post("/v1/responses", json={"input": items, "tools": [WEATHER], **fields})
        assert reply.status == 200, reply.text
        said = reply.json()["output"]
        replies = [each for item in said for each in heard(item)]
        if users and not replies:
            replies = [{"role": "user", "content": "And tomorrow?"}]
        items += [*said, *replies]
        output += [*said, *replies]
    return output


async def trace_with(
    script: list[Sampled], *, users: bool = False, config: dict[str, Any] | None = None, **fields: Any
) -> tuple[TokenTrace, TokenizingEngine, list[dict[str, Any]]]:
    engine = TokenizingEngine(script)
    settings: dict[str, Any] = {"protocol": "tokens", "return_token_id_information": True, **(config or {})}
    aborted = sum(step.finish_reason == "abort" for step in script)
    async with stub_endpoint(engine) as stub, in_front_of("vllm_model", "", base_url=stub.url, **settings) as model:
        output = await converse(model, len(script) - aborted, users=users, **fields)
    return trace_of({"response": {"output": output}}), engine, output


ODD = call_text('{ "city" :"Oslo" , "days":[1,2 ] }')
TRAPS: dict[str, list[Sampled]] = {
    "drift": [
        Sampled(call_text('{"city": "Oslo"}'), letters=True),
        Sampled("It is cold in Oslo.", letters=True),
        Sampled("Bye."),
    ],
    "odd spacing": [Sampled(ODD), Sampled(ODD), Sampled("It is cold.")],
    "reasoning": [
        Sampled("<think>\nhm\n</think>\n\n" + call_text("{}")),
        Sampled("<think>so</think>It is cold."),
        Sampled("Yes."),
    ],
    "parallel calls": [Sampled(f"{call_text('{}')}\n{ODD}"), Sampled("Both are cold."), Sampled("Yes.")],
    "truncation": [
        Sampled("It is cold in", end=None, finish_reason="length"),
        Sampled("<think>I was cut", end=None, finish_reason="length"),
        Sampled("Yes."),
    ],
    "stop string": [Sampled("It is cold.\n\nSTOP", end=None), Sampled("Yes.")],
    "empty": [Sampled("", end=None), Sampled("Yes."), Sampled("Yes.")],
    "end token only": [Sampled(""), Sampled("Yes."), Sampled("")],
    "other end token": [Sampled("Yes.", end="<|endoftext|>"), Sampled("Yes.")],
    "broken call": [Sampled("<tool_call>\n{nonsense\n</tool_call>"), Sampled("Yes.")],
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("trap", TRAPS)
async def test_a_conversation_is_one_segment_of_what_was_sampled(trap: str, api: str) -> None:
    trace, engine, _ = await trace_with(TRAPS[trap], users=True, config={"engine_api": api})
    (segment,) = trace.segments
    assert [[*call.sampled_ids] for call in segment.calls] == engine.sampled
    assert [[*call.prompt_ids] for call in segment.calls] == engine.prompts
    assert [[*call.log_probs] for call in segment.calls] == [[-0.25 * (t % 7) for t in ids] for ids in engine.sampled]


@pytest.mark.parametrize("trap", ["drift", "odd spacing", "reasoning"])
async def test_in_chat_mode_the_same_conversation_breaks(trap: str) -> None:
    trace, _, _ = await trace_with(
        TRAPS[trap], users=True, config={"protocol": "chat", "uses_reasoning_parser": False}
    )
    assert len(trace.segments) > 1


async def test_what_is_read_between_turns_is_what_the_template_writes() -> None:
    trace, engine, _ = await trace_with(
        [Sampled(call_text("{}")), Sampled("It is cold."), Sampled("Yes.")], users=True
    )
    text = engine.tokenizer.decode([*engine.prompts[-1]], skip_special_tokens=False)
    assert text == (
        f"{OPEN}system\nTools: 1{END}\n{OPEN}user\nHow is the weather in Oslo?{END}\n"
        f"{OPEN}assistant\n{call_text('{}')}{END}\n"
        f"{OPEN}user\n<tool_response>\nIt is cold.\n</tool_response>{END}\n{OPEN}assistant\nIt is cold.{END}\n"
        f"{OPEN}user\nAnd tomorrow?{END}\n{OPEN}assistant\n"
    )
    assert len(trace.segments) == 1


async def test_a_turn_that_was_cut_off_is_closed_in_the_next_prompt() -> None:
    _, engine, _ = await trace_with(TRAPS["stop string"], users=True)
    text = engine.tokenizer.decode([*engine.prompts[-1]], skip_special_tokens=False)
    assert f"STOP{END}\n{OPEN}user\n" in text


async def test_ids_are_read_as_reasoning_text_and_calls() -> None:
    script = [Sampled("<think>hm</think>I look.\n" + ODD + "\n" + call_text("{}")), Sampled("a</think>It is cold.")]
    _, _, output = await trace_with(script)
    assert [item["type"] for item in output] == [
        *("reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "reasoning", "message"),
    ]
    assert output[0]["summary"][0]["text"] == "hm"
    assert output[1]["content"][0]["text"].strip() == "I look."
    assert output[2]["arguments"] == '{"city": "Oslo", "days": [1, 2]}'
    assert output[6]["summary"][0]["text"] == "a"


@pytest.mark.parametrize("api", APIS)
async def test_an_aborted_generation_goes_on_from_its_ids(api: str) -> None:
    script = [
        *(
            Sampled("It is", end=None, finish_reason="abort", version=3),
            Sampled("", end=None, finish_reason="abort", version=3),
        ),
        *(Sampled(" cold", end=None, finish_reason="abort", version=4), Sampled(" in Oslo.", version=5)),
        Sampled("Yes.", version=5),
    ]
    trace, engine, output = await trace_with(script, users=True, config={"engine_api": api})
    first, second = trace.segments[0].calls
    assert [*first.sampled_ids] == [token for ids in engine.sampled[:4] for token in ids]
    assert engine.prompts[1] == [*engine.prompts[0], *engine.sampled[0]]
    assert engine.prompts[3] == [*first.prompt_ids, *(token for ids in engine.sampled[:3] for token in ids)]
    sizes = [len(ids) for ids in engine.sampled]
    assert [tuple(run) for run in first.version_runs] == [(3, sizes[0]), (4, sizes[2]), (5, sizes[3])]
    assert (first.policy_version, second.policy_version) == (5, 5)
    assert output[0]["content"][0]["text"] == "It is cold in Oslo."
    flat = trace.segments[0].flatten()
    assert sum(span.end - span.start for span in flat.version_spans) == sum(flat.loss_mask)


async def test_in_chat_mode_an_aborted_call_is_made_again() -> None:
    script = [Sampled("It is", end=None, finish_reason="abort", version=3), Sampled("It is cold.", version=4)]
    trace, engine, output = await trace_with(script, config={"protocol": "chat"})
    assert [*trace.calls[0].sampled_ids] == engine.sampled[1]
    assert output[0]["content"][0]["text"] == "It is cold."


async def test_an_abort_at_the_token_limit_ends_the_generation() -> None:
    script = [Sampled("It is cold", end=None, finish_reason="abort"), Sampled("Yes.")]
    engine = TokenizingEngine(script)
    limit = len(engine.ids("It is cold"))
    settings: dict[str, Any] = {"protocol": "tokens", "return_token_id_information": True}
    async with stub_endpoint(engine) as stub, in_front_of("vllm_model", "", base_url=stub.url, **settings) as model:
        reply = await model.post("/v1/responses", json={"input": "Hi.", "max_output_tokens": limit})
    assert reply.json()["status"] == "incomplete"
    assert len(engine.sampled) == 1


async def test_a_history_that_an_agent_changed_starts_a_new_segment() -> None:
    engine = TokenizingEngine([Sampled("It is cold."), Sampled("Yes."), Sampled("No.")])
    settings: dict[str, Any] = {"protocol": "tokens", "return_token_id_information": True}
    async with stub_endpoint(engine) as stub, in_front_of("vllm_model", "", base_url=stub.url, **settings) as model:
        asked = [{"role": "user", "content": "One?"}]
        first = (await model.post("/v1/responses", json={"input": asked})).json()["output"]
        asked += [*first, {"role": "user", "content": "Two?"}]
        second = (await model.post("/v1/responses", json={"input": asked})).json()["output"]
        compacted = [{"role": "user", "content": "Summary: cold."}, *second, {"role": "user", "content": "Three?"}]
        third = (await model.post("/v1/responses", json={"input": compacted})).json()["output"]
    trace = trace_of({"response": {"output": [*first, *second, *third]}})
    assert [len(segment.calls) for segment in trace.segments] == [2, 1]
    text = engine.tokenizer.decode(engine.prompts[-1], skip_special_tokens=False)
    assert "Summary: cold." in text
    assert "One?" not in text


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}


@pytest.mark.parametrize("api", ["generate", "sglang"])
async def test_a_conversation_with_images_is_one_segment(api: str) -> None:
    """A token stands for each image. All images go with every request, in their order."""
    engine = TokenizingEngine([Sampled(call_text("{}"), letters=True), Sampled(ODD), Sampled("Two cats.")])
    settings: dict[str, Any] = {"protocol": "tokens", "return_token_id_information": True, "engine_api": api}
    (settings["image_token_id"],) = engine.ids(PAD)
    other = {**PICTURE, "image_url": "data:image/png;base64,BBBB"}
    items: list[dict[str, Any]] = [{"role": "user", "content": [PICTURE, {"type": "input_text", "text": "What?"}]}]
    output: list[dict[str, Any]] = []
    async with stub_endpoint(engine) as stub, in_front_of("vllm_model", "", base_url=stub.url, **settings) as model:
        for turn in range(3):
            reply = await model.post("/v1/responses", json={"input": [*items, *output], "tools": [WEATHER]})
            assert reply.status == 200, reply.text
            said = reply.json()["output"]
            shown = [other] if turn == 0 else [{"type": "input_text", "text": "Nothing."}]
            output += said
            output += [
                {"type": "function_call_output", "call_id": item["call_id"], "output": shown}
                for item in said
                if item["type"] == "function_call"
            ]
    trace = trace_of({"responses_create_params": {"input": items}, "response": {"output": output}})
    (segment,) = trace.segments
    assert [[*call.sampled_ids] for call in segment.calls] == engine.sampled
    assert [[*call.prompt_ids] for call in segment.calls] == engine.prompts
    urls = [each["image_url"] for each in (PICTURE, other)]
    assert engine.images == [urls[:1], urls, urls]
    flat = segment.flatten()
    assert [flat.ids[start:end] for start, end, _ in flat.images] == [[settings["image_token_id"]]] * 2
    assert [place for *_, place in flat.images] == [
        *("responses_create_params.input.0.content.0", "response.output.1.output.0")
    ]


@pytest.mark.parametrize("config", [{"engine_api": "completions"}, {"engine_api": "sglang", "renderer": "qwen3"}])
async def test_an_image_that_the_engine_cannot_take_is_refused_with_the_remedy(
    config: dict[str, Any], qwen_folder: Path
) -> None:
    image = {"role": "user", "content": [PICTURE]}
    config |= {"tokenizer": str(qwen_folder)} if "renderer" in config else {}
    settings: dict[str, Any] = {"protocol": "tokens", "return_token_id_information": True, **config}
    async with (
        stub_endpoint(TokenizingEngine([])) as stub,
        in_front_of("vllm_model", "", base_url=stub.url, **settings) as model,
    ):
        reply = await model.post("/v1/responses", json={"input": [image]})
    assert reply.status >= 400
    assert "Use protocol: chat" in reply.text


async def test_a_weight_update_in_the_middle_of_a_thousand_generations_leaves_a_version_on_every_token() -> None:
    chance = random.Random(0)
    script: list[Sampled] = []
    for _ in range(1000):
        script += [Sampled("It is", end=None, finish_reason="abort", version=1)] if chance.random() < 0.5 else []
        script.append(Sampled(" cold.", version=2))
    engine = TokenizingEngine(script)
    settings: dict[str, Any] = {"protocol": "tokens", "return_token_id_information": True}
    async with stub_endpoint(engine) as stub, in_front_of("vllm_model", "", base_url=stub.url, **settings) as model:
        for _ in range(1000):
            output = (await model.post("/v1/responses", json={"input": "Hi."})).json()["output"]
            flat = trace_of({"response": {"output": output}}).segments[0].flatten()
            sampled = [at for at, is_sampled in enumerate(flat.loss_mask) if is_sampled]
            assert [at for span in flat.version_spans for at in range(span.start, span.end)] == sampled
    assert len(engine.sampled) == len(script)


@pytest.fixture
def qwen_folder(tmp_path: Path) -> Path:
    trained_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("trap", [trap for trap in TRAPS if trap not in ("broken call", "other end token")])
async def test_with_the_renderers_package_it_is_one_segment_too(trap: str, qwen_folder: Path) -> None:
    pytest.importorskip("renderers")
    config = {"renderer": "qwen3", "tokenizer": str(qwen_folder)}
    trace, engine, _ = await trace_with(TRAPS[trap], users=True, config=config)
    (segment,) = trace.segments
    assert [[*call.sampled_ids] for call in segment.calls] == engine.sampled


async def test_token_mode_without_tokens_is_an_error_of_the_configuration() -> None:
    fields: dict[str, Any] = {
        "name": "m",
        "host": "",
        "port": 0,
        "entrypoint": "",
        "base_url": "",
        "api_key": "",
        "model": "",
    }
    with pytest.raises(ValueError, match="needs return_token_id_information"):
        VLLMModelConfig(**fields, return_token_id_information=False, uses_reasoning_parser=False, protocol="tokens")
