"""The official `openai` and `anthropic` packages drive every model server: sync, async, whole and streamed."""

import asyncio
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import MessageParam, ToolParam
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import FunctionToolParam

from tests.model_servers import KINDS, model_server

REPLIES: list[dict[str, Any]] = [
    {"user": "Weather", "turn": 0, "think": "hm", "say": "I look.", "call": [
        {"name": "look", "arguments": {"at": "Oslo"}},
        {"name": "look", "arguments": {"at": "Rome"}},
    ]},
    {"tool_output": "cold", "say": "It is cold."},
    {"user": "Long", "say": "And so", "incomplete": "max_output_tokens"},
    {"say": "Hello."},
]  # fmt: skip
TOOL: FunctionToolParam = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
MESSAGES_TOOL: ToolParam = {"name": "look", "input_schema": {"type": "object"}}
THOUGHTS_IN_TAGS = "vllm_model"


def async_openai(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


def async_anthropic(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=url, api_key="any", max_retries=0)


def without_ids(value: Any) -> Any:
    """Two answers differ in ids and times alone."""
    if isinstance(value, dict):
        return {
            key: without_ids(item)
            for key, item in value.items()
            if key not in ("id", "call_id", "created", "created_at", "signature")
        }
    return [without_ids(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", KINDS)
async def test_responses(kind: str) -> None:
    async with model_server(kind, REPLIES) as server, async_openai(server.url) as client:
        whole = await client.responses.create(model="m", input="Weather?", tools=[TOOL])
        assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
        assert whole.output_text == "I look."
        assert whole.usage is not None
        events = await client.responses.create(model="m", input="Weather?", tools=[TOOL], stream=True)
        kinds = [event.type async for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        assert kinds.count("response.output_item.done") == 4
        async with client.responses.stream(model="m", input="Weather?", tools=[TOOL]) as stream:
            text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
            streamed = await stream.get_final_response()
        assert text == "I look."
        assert without_ids(streamed.to_dict()) | {"output": None} == without_ids(whole.to_dict()) | {"output": None}
        assert [without_ids(item.to_dict(exclude_none=True)) for item in streamed.output] == [
            without_ids(item.to_dict(exclude_none=True)) for item in whole.output
        ]
        results: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "cold"}
            for item in whole.output
            if item.type == "function_call"
        ]
        said: Any = [item.to_dict() for item in whole.output]
        asked: Any = [{"role": "user", "content": "Weather?"}, *said, *results]
        assert (await client.responses.create(model="m", input=asked, tools=[TOOL])).output_text == "It is cold."


@pytest.mark.parametrize("kind", KINDS)
async def test_chat_completions(kind: str) -> None:
    messages: Any = [{"role": "user", "content": "Weather?"}]
    async with model_server(kind, REPLIES) as server, async_openai(server.url) as client:
        whole = await client.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])
        message = whole.choices[0].message
        assert message.content == ("<think>hm</think>I look." if kind == THOUGHTS_IN_TAGS else "I look.")
        assert [call.function.arguments for call in message.tool_calls or ()] == ['{"at":"Oslo"}', '{"at":"Rome"}']  # type: ignore[union-attr]
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="m",
                messages=messages,
                tools=[CHAT_TOOL],
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == message.content
        assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]
        async with client.chat.completions.stream(model="m", messages=messages, tools=[CHAT_TOOL]) as stream:
            streamed = await stream.get_final_completion()
        assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
        assert streamed.choices[0].message.content == message.content
        calls = streamed.choices[0].message.tool_calls or []
        assert [call.function.arguments for call in calls] == ['{"at":"Oslo"}', '{"at":"Rome"}']


@pytest.mark.parametrize("kind", KINDS)
async def test_messages(kind: str) -> None:
    asked: MessageParam = {"role": "user", "content": "Weather?"}
    async with model_server(kind, REPLIES) as server, async_anthropic(server.url) as client:
        whole = await client.messages.create(model="m", max_tokens=99, messages=[asked], tools=[MESSAGES_TOOL])
        assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert whole.stop_reason == "tool_use"
        async with client.messages.stream(model="m", max_tokens=99, messages=[asked], tools=[MESSAGES_TOOL]) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            streamed = await stream.get_final_message()
        assert text == "I look."
        assert without_ids(streamed.to_dict(exclude_none=True)) == without_ids(whole.to_dict(exclude_none=True))
        uses = [block for block in whole.content if block.type == "tool_use"]
        assert [use.input for use in uses] == [{"at": "Oslo"}, {"at": "Rome"}]
        results: Any = [{"type": "tool_result", "tool_use_id": use.id, "content": "cold"} for use in uses]
        messages: Any = [asked, {"role": "assistant", "content": whole.content}, {"role": "user", "content": results}]
        last = await client.messages.create(model="m", max_tokens=99, messages=messages, tools=[MESSAGES_TOOL])
        assert (last.content[0].type, last.stop_reason) == ("text", "end_turn")
        assert last.usage.output_tokens == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_the_clients_without_async(kind: str) -> None:
    def talk(url: str) -> None:
        with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            assert client.responses.create(model="m", input="Hi.").output_text == "Hello."
            with client.responses.stream(model="m", input="Hi.") as stream:
                assert stream.get_final_response().output_text == "Hello."
            chunks = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi."}], stream=True
            )
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello."
        asked: MessageParam = {"role": "user", "content": "Hi."}
        with (
            Anthropic(base_url=url, api_key="any", max_retries=0) as other,
            other.messages.stream(model="m", max_tokens=9, messages=[asked]) as words,
        ):
            assert words.get_final_text() == "Hello."

    async with model_server(kind, REPLIES) as server:
        await asyncio.to_thread(talk, server.url)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_cut_off_says_so_in_every_dialect(kind: str) -> None:
    messages: Any = [{"role": "user", "content": "Long!"}]
    async with (
        model_server(kind, REPLIES) as server,
        async_openai(server.url) as client,
        async_anthropic(server.url) as other,
    ):
        events = await client.responses.create(model="m", input="Long!", stream=True)
        last = [event async for event in events][-1]
        assert last.type == "response.incomplete"
        assert last.response.incomplete_details is not None
        assert last.response.incomplete_details.reason == "max_output_tokens"
        assert (await client.chat.completions.create(model="m", messages=messages)).choices[
            0
        ].finish_reason == "length"
        assert (await other.messages.create(model="m", max_tokens=9, messages=messages)).stop_reason == "max_tokens"
