"""A trainer that has rollouts made in a session: `RolloutSession` in one process, its server in another one.

The trainer aborts rollouts and goes on from what was played, pauses, and names new policy versions. Both processes are
killed; a trainer that begins again submits all rows again, and the journal has what was played."""

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

import orjson

from nemo_gym.errors import GymError, RolloutError
from nemo_gym.rollouts.store import journal_path
from nemo_gym.training.session import ENDED, RolloutHandle, RolloutSession
from nemo_gym.training.session_process import ABORTED, SessionServer, open_runner
from tests.simulation.network import PairedSocket, Transport
from tests.simulation.scenario import Scenario
from tests.simulation.servers import SEED, Place
from tests.simulation.world import Process

POLL_S = 0.2


class TrainerScenario(Scenario):
    """A trainer in the place of the command."""

    def play(self) -> None:
        self.world.make_program = self._start_session
        self.results: dict[Place, float] = {}
        super().play()

    def _start_session(self, transport: Transport, order: bytes) -> Process:
        """The process of the session."""
        process = self.current["session"] = Process(self.world, "session")
        self.world.say("starts", "session")
        self.inject("session")

        def on_death() -> None:
            self.inject("session")
            transport.die(is_reset=False)

        process.on_death.append(on_death)
        process.start(self._serve_session(process, transport, orjson.loads(order)))
        return process

    async def _serve_session(self, process: Process, transport: Transport, order: dict[str, Any]) -> None:
        try:
            await asyncio.sleep(self.world.random.uniform(0.2, 2.0))  # imports
            async with self._stack("ledger", "policy", "agent") as stack, open_runner(stack.client, order) as runner:
                socket: PairedSocket = transport.get_extra_info("socket")
                await SessionServer(runner).serve(socket)  # type: ignore[arg-type]
        except GymError as error:
            self.world.say(f"ends with {error}")
        self.world.at(self.world.now, process.end)

    def _run_command(self) -> None:
        """The trainer begins, or begins again."""
        self.runs += 1
        if self.runs == 10 and not self.is_quiet:
            self._become_quiet()
        elif self.runs > 30:
            self.world.violated(f"not complete after {self.runs} trainers")
        self.world.disk.refused.clear()
        process = self.current["collector"] = Process(self.world, "collector")
        self.world.say(f"starts, trainer {self.runs}", "collector")
        self.inject("collector")

        def on_death() -> None:
            self.inject("collector")
            if not self.is_done:
                self.world.after(self.world.random.uniform(0.5, 5.0), self._run_command)

        process.on_death.append(on_death)
        process.start(self._train(process))

    async def _train(self, process: Process) -> None:
        plan, world = self.plan, self.world
        session = RolloutSession(
            {},
            max_attempts=plan.max_attempts,
            rollout_timeout_s=plan.rollout_timeout_s,
            journal=journal_path(self.output) if plan.journal else None,
        )
        session._loop, session._thread = process.loop, threading.current_thread()
        serving = asyncio.create_task(session._serve())
        while not session._first_ready.done():  # noqa: ASYNC110 - it belongs to threads
            await asyncio.sleep(POLL_S)
        error = session._first_ready.exception()
        if error is None:
            await self._train_with(session)
        else:
            world.say(f"the session did not start: {error}")
        session._close()
        await serving
        self.is_done = len(self.results) == plan.rows * plan.repeats
        world.at(world.now, process.end)

    async def _train_with(self, session: RolloutSession) -> None:
        """Submit all rows, and again those that fail, until all are scored or the session has ended."""
        plan, drawn = self.plan, self.world.random
        places = [(number, repeat) for number in range(plan.rows) for repeat in range(plan.repeats)]
        handles = {place: self._submit(session, place) for place in places}
        tries: Counter[Place] = Counter()
        version = 0
        self._forks: list[tuple[Place, RolloutHandle]] = []
        while handles or any(not handle.done() for _, handle in self._forks):
            await asyncio.sleep(POLL_S)
            if session._has_ended:
                break
            if handles and not self.is_quiet and drawn.random() < 0.02:
                place, handle = drawn.choice([*handles.items()])
                if not handle.done():
                    self.world.say(f"aborts row {place[0]} repeat {place[1]}")
                    handle.abort(keep_partial=True)
            if not self.is_quiet and drawn.random() < 0.01:
                await self._pause(session)
                if not plan.journal:  # under another version, nothing that was played counts
                    session.set_version(version := version + 1)
            for place, handle in [*handles.items()]:
                if not handle.done():
                    continue
                del handles[place]
                if self._take(place, handle):
                    if handle.played is not None and drawn.random() < 0.3:
                        self._fork(session, place, handle)
                else:
                    tries[place] += 1
                    if tries[place] > 40:
                        self.world.violated(f"row {place} has no result after {tries[place]} submissions")
                    handles[place] = self._submit(session, place, after=handle)
            self._forks = [pair for pair in self._forks if not (pair[1].done() and self._take(*pair))]

    def _fork(self, session: RolloutSession, place: Place, handle: RolloutHandle) -> None:
        """Play a rollout again from one of its steps: it must end with the same score."""
        played = handle.played
        if played is not None:
            step = self.world.random.randrange(played.steps + 1)
            self.world.say(f"forks row {place[0]} repeat {place[1]} at step {step}")
            self.forked.add(place)
            self._forks += [(place, each) for each in session.fork(handle, step=step, n=2)]

    async def _pause(self, session: RolloutSession) -> None:
        """As `pause` and `resume`, which wait in another thread than this one."""
        for is_paused in (True, False):
            done: Future[None] = Future()

            def change(is_paused: bool = is_paused, done: "Future[None]" = done) -> None:
                session._is_paused = is_paused
                session._pauses.append(done)
                if session._has_ended:
                    session._end_pauses()
                session._send([7, is_paused])

            session._in_thread(change)
            while not done.done():  # noqa: ASYNC110 - it belongs to threads
                await asyncio.sleep(POLL_S)
            self.world.say("pauses" if is_paused else "goes on")
            await asyncio.sleep(self.world.random.uniform(0.1, 5.0))

    def _submit(self, session: RolloutSession, place: Place, after: RolloutHandle | None = None) -> RolloutHandle:
        params = {"input": [{"role": "user", "content": f"Row {place[0]} please"}]}
        row = {
            "agent_ref": {"name": "agent"},
            "number": place[0],
            "responses_create_params": {**params, "metadata": {"seed": str(SEED + place[1])}},
        }
        error = after._future.exception() if after is not None else None
        is_aborted = isinstance(error, RolloutError) and error.code == ABORTED
        if after is not None and not is_aborted:
            self.forked.add(place)  # it begins again
        partial = error.partial if is_aborted else None  # type: ignore[union-attr]
        return session.submit(row, resume=partial, keep_calls=place[0] % 2 == 0)

    def _take(self, place: Place, handle: RolloutHandle) -> bool:
        """Check the end of a rollout. True if it is scored."""
        error = handle._future.exception()
        if error is None:
            reward = handle.result()["reward"]
            self.world.say(f"row {place[0]} repeat {place[1]} has {reward}")
            if abs(reward - self._expected_reward(*place)) > 1e-9:
                self.world.violated(f"row {place} has {reward}, expected {self._expected_reward(*place)}")
            self.results[place] = reward
            return True
        if not isinstance(error, RolloutError):
            self.world.violated(f"row {place} ends with {error!r}")
            return False
        self.world.say(f"row {place[0]} repeat {place[1]} failed: {error.cause} {error.code}: {str(error)[:200]}")
        found = {where for at, where in self.injected if at >= self.world.now - 4000.0}
        if error.code not in (ABORTED, ENDED) and not found & {"endpoint", "connection", "network", "session", "time"}:
            self.world.violated(f"a failure by {error.cause} that nothing explains: {error}")
        return False

    def _check_end(self) -> None:
        pass
