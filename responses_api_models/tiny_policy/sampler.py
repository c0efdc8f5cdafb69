"""Samples tokens for many requests at once: every step is one pass of the network over all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from responses_api_models.tiny_policy.network import Array, Network, Shape, initial_weights
from responses_api_models.tiny_policy.vocabulary import END, ID_OF, WORDS

VERSION_KEY = "policy_version"
SHAPE = Shape(vocabulary=len(WORDS), layers=1)


@dataclass(slots=True, eq=False)
class Generation:
    """A reply while it is sampled."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    chance: np.random.Generator
    done: "asyncio.Future[None]"
    version: int = 0
    """Version of the weights that sampled it, at its first token."""
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return len(self.ids) >= self.max_tokens or self.ids[-1:] == [ID_OF[END]]


def save_weights(path: Path, network: Network, version: int) -> None:
    """Replace the file in one step, so that a server never reads half of it."""
    scratch = path.with_name(f"{path.name}.new")
    stored: dict[str, Any] = {**network.weights, VERSION_KEY: np.array(version)}
    with scratch.open("wb") as file:
        np.savez(file, **stored)
    scratch.replace(path)


def load_weights(path: Path) -> tuple[Network, int]:
    with np.load(path) as stored:
        weights = {name: stored[name] for name in stored.files}
    return Network(SHAPE, weights), int(weights.pop(VERSION_KEY))


class Sampler:
    """Serves the weights of a file, the newest at the start of every reply; without a file, random weights."""

    def __init__(self, path: Path | None, *, seed: int) -> None:
        self._path, self._loaded = path, (0, 0)
        self._network, self._version = Network(SHAPE, initial_weights(SHAPE, seed)), 0
        self._running: list[Generation] = []
        self._has_work = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sampling goes on inside."""
        stepping = asyncio.create_task(self._step_on())
        try:
            yield
        finally:
            stepping.cancel()
            with suppress(asyncio.CancelledError):
                await stepping

    async def sample(self, prompt: list[int], *, max_tokens: int, temperature: float, seed: int | None) -> Generation:
        """A whole reply. The same seed, prompt and weights give the same reply, up to rounding."""
        self._load_newest()
        chance = np.random.default_rng(None if seed is None else [abs(seed), len(prompt)])
        loop = asyncio.get_running_loop()
        wanted = Generation(prompt, max_tokens, temperature, chance, loop.create_future(), self._version)
        if not wanted.has_ended:
            self._running.append(wanted)
            self._has_work.set()
            await wanted.done
        return wanted

    def _load_newest(self) -> None:
        if self._path is None:
            return
        found = self._path.stat()
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._loaded:
            (self._network, self._version), self._loaded = load_weights(self._path), stamp

    async def _step_on(self) -> None:
        while True:
            await self._has_work.wait()
            self._running = [each for each in self._running if not each.done.done()]
            if not self._running:
                self._has_work.clear()
                continue
            try:
                self._step()
            except Exception as error:
                for each in self._running:
                    if not each.done.done():
                        each.done.set_exception(error)
            await asyncio.sleep(0)

    def _step(self) -> None:
        """One more token for every reply."""
        texts = [each.prompt + each.ids for each in self._running]
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
        last = [len(text) - 1 for text in texts]
        for each, log_probs in zip(self._running, self._network.log_probs(ids)[range(len(texts)), last], strict=True):
            _add_token(each, log_probs)
            if each.has_ended:
                each.done.set_result(None)


def _add_token(generation: Generation, log_probs: Array) -> None:
    if generation.temperature == 0:
        token = int(np.argmax(log_probs))
    else:
        tempered = log_probs / generation.temperature
        log_probs = tempered - np.log(np.exp(tempered).sum())
        token = int(generation.chance.choice(len(log_probs), p=np.exp(log_probs) / np.exp(log_probs).sum()))
    generation.ids.append(token)
    generation.log_probs.append(float(log_probs[token]))
