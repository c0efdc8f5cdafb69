"""Games of ScienceWorld. The game runs in a Java virtual machine, which plays one task after the other."""

import os
import queue
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired
from threading import BoundedSemaphore, Lock
from typing import Any

from nemo_gym.episodes import EpisodeStep, import_extra
from nemo_gym.errors import RolloutError, StartupError

EXTRA = "scienceworld"
JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
WAIT_S = 600.0
CLOSE_TIMEOUT_S = 10.0
_environment = Lock()


def new_game(heap_mb: int, steps: int = 100) -> Any:
    """Start a virtual machine. It would take a quarter of the machine's memory if its heap were not limited."""
    package = import_extra("scienceworld", extra=EXTRA)
    if shutil.which("java") is None:
        raise StartupError("ScienceWorld needs Java 8 or newer, and there is no `java`. Install a JRE.")
    with _environment, _java_options(f"-Xmx{heap_mb}m -XX:+UseSerialGC"):
        return package.ScienceWorldEnv(envStepLimit=steps)


@contextmanager
def _java_options(options: str) -> Iterator[None]:
    """Options of virtual machines that are started meanwhile. The package takes none."""
    before = os.environ.get(JAVA_OPTIONS)
    os.environ[JAVA_OPTIONS] = f"{before or ''} {options}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ[JAVA_OPTIONS]
        else:
            os.environ[JAVA_OPTIONS] = before


class GamePool:
    """Virtual machines that are used again. At most `size` play at once; other rollouts wait."""

    def __init__(self, size: int, heap_mb: int) -> None:
        self._heap_mb, self._free = heap_mb, queue.SimpleQueue[Any]()
        self._places = BoundedSemaphore(size)

    def take(self) -> Any:
        if not self._places.acquire(timeout=WAIT_S):
            raise RolloutError("environment", f"No game was free within {WAIT_S:g} s. Raise max_games.")
        with suppress(queue.Empty):
            return self._free.get_nowait()
        try:
            return new_game(self._heap_mb)
        except BaseException:
            self._places.release()
            raise

    def give_back(self, game: Any) -> None:
        self._free.put(game)
        self._places.release()

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                end_game(self._free.get_nowait())


def end_game(game: Any) -> None:
    """End a virtual machine, and remove what the package leaves: pipes and a folder."""
    process = game._gateway.java_process
    game.close()
    game._obj_tree_tempdir.cleanup()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    with suppress(TimeoutExpired):
        process.wait(timeout=CLOSE_TIMEOUT_S)
        return
    process.kill()
    process.wait()


class ScienceWorldEpisode:
    """One task. Its reward is the change of the score, of which there are 100 points."""

    def __init__(self, pool: GamePool, task: str, variation: int, simplification: str, steps: int) -> None:
        self._pool, self._game = pool, pool.take()
        try:
            if task not in self._game.get_task_names():
                raise RolloutError("input", f"ScienceWorld has no task {task!r}.")
            if not 0 <= variation < self._game.get_max_variations(task):
                raise RolloutError("input", f"The task {task} has no variation {variation}.")
            self._game.envStepLimit = steps
            self._game.load(task, variation, simplification)
        except BaseException:
            self.close()
            raise

    def reset(self) -> str:
        observation, _ = self._game.reset()
        return f"{self._game.get_task_description()}\n\n{observation}"

    def step(self, action: str) -> EpisodeStep:
        observation, reward, is_over, _ = self._game.step(" ".join(action.split()))
        return EpisodeStep(str(observation), reward / 100, bool(is_over))

    def close(self) -> None:
        if self._game is not None:
            game, self._game = self._game, None
            self._pool.give_back(game)
