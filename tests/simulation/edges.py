"""Put the virtual clock, disk, network and randomness in the place of those of Python.

This module is imported before anything of `nemo_gym`, in a process of its own, so that names which modules bind when
they are imported (`from time import monotonic`) are the virtual ones, too. Nothing of `nemo_gym` is replaced."""

import logging
import os
import random
import select
import socket
import subprocess
import threading
import time
import uuid
from typing import Any

from tests.simulation.disk import Disk
from tests.simulation.network import Network, Poller
from tests.simulation.world import EPOCH_S, START_S, TimelineHandler, World

_world: World | None = None
real_cpu = time.process_time


def _monotonic() -> float:
    return START_S if _world is None else _world.now


def _wall() -> float:
    running = None if _world is None else _world.running
    return EPOCH_S + _monotonic() + (0.0 if running is None else running.wall_offset_s)


def _urandom(size: int) -> bytes:
    return random.Random(0).randbytes(size) if _world is None else _world.random.randbytes(size)


def install() -> None:
    """Replace the edges. What needs a world before there is one gets the real thing, or time zero."""
    time.monotonic = time.perf_counter = _monotonic
    time.monotonic_ns = time.perf_counter_ns = lambda: int(_monotonic() * 1e9)
    time.time = _wall
    time.time_ns = lambda: int(_wall() * 1e9)
    time.sleep = _no_sleep  # type: ignore[assignment]
    random._urandom = _urandom  # type: ignore[attr-defined]
    uuid.os = type("os", (), {"urandom": staticmethod(_urandom)})  # type: ignore[attr-defined]
    select.poll = Poller  # type: ignore[assignment, misc]


def enter(world: World, root: str) -> None:
    """From now on there is this world, and its threads never run by themselves."""
    global _world  # noqa: PLW0603 - the clock of a process is global
    _world = world
    world.disk, world.network = Disk(world, root), Network(world)
    Poller.network = world.network
    for name in ("open", "close", "pwrite", "fsync", "ftruncate", "fstat"):
        setattr(os, name, getattr(world.disk, f"os_{name}"))
    threading.Thread.start = threading.Thread.join = _nothing  # type: ignore[method-assign]
    os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = root
    os.getpid = _pid
    socket.socketpair = world.network.socketpair  # type: ignore[assignment]
    subprocess.Popen = world.start_program  # type: ignore[assignment, misc]
    random.seed(world.seed)
    logging.getLogger().handlers[:] = [TimelineHandler(world)]
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _pid() -> int:
    running = None if _world is None else _world.running
    return 1 if running is None else running.pid


def _no_sleep(seconds: float) -> None:
    raise AssertionError(f"time.sleep({seconds}) would block the event loop")


def _nothing(*_args: Any, **_options: Any) -> None:
    """In the place of `Thread.start`: the watchdog of a loop has nothing to watch here."""
