"""An example of a taskset of verifiers, with a harness that runs in this process: count a letter, guess until it is
right."""

import random
from collections.abc import Iterator
from typing import Any

import httpx
import verifiers.v1 as vf

__all__ = ["ChatHarness", "LettersTaskset"]

WORDS = ("strawberry", "mississippi", "banana", "bookkeeper", "assessment", "parallel", "committee", "engineer")


class LettersData(vf.TaskData):
    answer: int


class LettersTask(vf.Task[LettersData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def is_right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == str(self.data.answer))

    @vf.reward(weight=0.1)
    async def is_short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) <= 2)


class LettersConfig(vf.TasksetConfig):
    seed: int = 0
    num_tasks: int = 100


class LettersTaskset(vf.Taskset[LettersTask, LettersConfig]):
    def load(self) -> Iterator[LettersTask]:
        chance = random.Random(self.config.seed)
        for _ in range(self.config.num_tasks):
            word = chance.choice(WORDS)
            letter = chance.choice(word)
            prompt = f"How often is the letter {letter} in the word {word}? Reply with a number."
            yield LettersTask(LettersData(prompt=prompt, answer=word.count(letter)), self.config.task)


class ChatHarnessConfig(vf.HarnessConfig):
    rounds: int = 2
    """Maximum number of answers. After each except the last the model is asked to check its answer."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """A conversation without tools. It needs no program of its own, so that a rollout starts no process."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        messages: list[dict[str, Any]] = [{"role": "user", "content": data.prompt_text}]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=1800) as client:
            for turn in range(self.config.rounds):
                body = {"model": ctx.model, "messages": messages}
                reply = await client.post(f"{endpoint}/chat/completions", json=body)
                reply.raise_for_status()
                messages.append(reply.json()["choices"][0]["message"])
                if turn < self.config.rounds - 1:
                    messages.append({"role": "user", "content": "Check it, and reply with the number again."})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
