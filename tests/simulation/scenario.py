"""One seed: the processes of a run, what is done to them, and the invariants.

A user runs the same command until everything is scored. Meanwhile processes are killed, frozen and started again,
the network and the disk fail. From `quiet_at` on nothing fails any more, so the next run must complete."""

import asyncio
import contextlib
import functools
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

import nemo_gym.rollouts.dispatch  # noqa: F401 - before a seed needs it
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.client.call_log import END_OF_ATTEMPT, parse_call
from nemo_gym.client.head import WorkerAddress
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.deadline import OUTCOME_GRACE_S
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import UNREACHABLE_CODE, GymError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.process_losses import LOST_CODES
from nemo_gym.rollouts.store import failures_path, journal_path
from nemo_gym.rollouts.types import Outcome
from nemo_gym.rollouts.worker import serve_rows
from nemo_gym.runtime.head_server import HeadServer
from nemo_gym.runtime.membership import Members, Membership, Registration
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.server.uvicorn_runner import serving
from nemo_gym.testing import ServerSpec, server_spec
from responses_api_agents.simple_agent.app import SimpleAgent
from responses_api_models.openai_model.app import SimpleModelServer
from tests.simulation.network import Listener, Transport
from tests.simulation.servers import (
    REQUEST_TIMEOUT_S,
    SEED,
    CopiedLedger,
    Endpoint,
    GroupLedger,
    Ledger,
    Place,
    ReplayedLedger,
    place_and_step,
    set_world,
    total,
)
from tests.simulation.world import Process, World

SECRET = "00" * 32
TOKEN = "a token of at least sixteen characters"
HOST = "127.0.0.1"
EXPLAINED_WITHIN_S = 400.0
"""How long after a fault a failure may still come from it: a request to a silent endpoint waits for its timeout."""
LOGGED_WITHIN_S = 8.0
"""How long a call may take from a worker to the journal."""
MIN_LOSSES = 6
"""A row loses three processes before it is alone, and three then, before it is given up for killing them."""
MAX_RUNS = 30
RUN_LIMIT_S = 40_000.0


@dataclass(frozen=True)
class Plan:
    """What is drawn from the seed first."""

    layout: str
    rows: int
    repeats: int
    parallel: int | None
    workers: int
    journal: bool
    group_output: bool
    is_grouped: bool
    faults: tuple[str, ...]
    fault_every_s: float
    endpoint_rate: float
    faulty_s: float
    think_s: tuple[float, float]
    loss_rate: float
    split_rate: float
    short_rate: float
    rollout_timeout_s: float
    max_attempts: int

    @classmethod
    def draw(cls, world: World, *, scale: int = 1, layout: str | None = None) -> "Plan":
        drawn = world.random
        chance = drawn.choice((*FAULTS, "workers"))
        layout = chance if layout is None else layout
        possible = [*FAULTS[layout]]
        chosen = drawn.sample(possible, drawn.randint(0, min(5, len(possible))))
        rows = drawn.choice((2, 4, 8, 20)) * scale
        think_s = drawn.choice(((0.05, 0.3), (0.5, 8.0), (1.0, 40.0)))
        return cls(
            layout=layout,
            rows=rows,
            repeats=drawn.choice((1, 1, 2, 3)),
            parallel=drawn.choice((None, 1, 4, 16)),
            workers=drawn.choice((1, 2, 3)),
            journal=drawn.random() < 0.6,
            group_output=drawn.random() < 0.25,
            is_grouped=drawn.random() < 0.15 and layout not in ("joined workers", "session"),
            faults=tuple(sorted(chosen)),
            fault_every_s=drawn.choice((2.0, 8.0, 30.0)),
            endpoint_rate=drawn.choice((0.0, 0.02, 0.2)),
            faulty_s=drawn.choice((20.0, 60.0, 300.0)),
            think_s=think_s,
            loss_rate=drawn.choice((0.0, 0.0, 0.02)),
            split_rate=drawn.choice((0.0, 0.1, 0.5)),
            short_rate=drawn.choice((0.0, 0.1)),
            rollout_timeout_s=drawn.choice((6 * think_s[1] + 60.0, 3600.0)),
            max_attempts=drawn.choice((1, 3, 3)),
        )


FAULTS = {
    "one process": (
        *("kill collector", "kill collector in a write", "power failure", "freeze collector", "stop collector"),
        *("kill endpoint", "freeze endpoint", "reset", "half-open", "partition endpoint", "slow network"),
        *("disk full", "slow disk", "truncate output", "clock jump"),
    ),
    "workers": (
        *("kill collector", "kill collector in a write", "power failure", "freeze collector", "stop collector"),
        *("kill endpoint", "freeze endpoint", "reset", "half-open", "partition endpoint", "slow network"),
        *("disk full", "slow disk", "truncate output", "clock jump"),
        *("kill worker", "freeze worker", "partition worker", "stop worker", "kill head", "freeze head"),
    ),
    "joined workers": (
        *("kill collector", "freeze collector", "stop collector", "power failure"),
        *("kill endpoint", "reset", "half-open", "slow network", "clock jump"),
        *("kill worker", "freeze worker", "partition worker", "stop worker"),
        *("kill head", "freeze head", "partition head"),
    ),
    "session": (
        *("kill collector", "kill session", "kill session in a write", "freeze collector", "freeze session"),
        *("kill endpoint", "freeze endpoint", "reset", "half-open", "partition endpoint", "slow network"),
        *("disk full", "clock jump"),
    ),
    "isolated environment": (
        *("kill collector", "kill collector in a write", "freeze collector", "stop collector"),
        *("kill endpoint", "freeze endpoint", "reset", "half-open", "slow network", "disk full"),
        *("kill environment", "freeze environment", "partition environment"),
    ),
}

LEDGERS: dict[str, type[Ledger]] = defaultdict(
    lambda: Ledger, {"session": CopiedLedger, "joined workers": ReplayedLedger}
)
EXPLAINED_BY = {
    "model": ("endpoint", "connection", "collector", "worker", "network"),
    "environment": ("worker", "environment", "connection", "network", "collector", "head"),
    "tool": ("environment", "connection", "network", "collector"),
    "verifier": ("environment", "connection", "network", "collector"),
    "internal": (),
    "timeout": ("endpoint", "connection", "network", "collector", "worker", "environment", "time"),
    "judge": (),
    "input": (),
}
"""What may be the cause of a failure, by the cause it names."""


class Scenario:
    """One seed."""

    def __init__(self, world: World, plan: Plan, folder: Path) -> None:
        self.world, self.plan, self.folder = world, plan, folder
        self.output = folder / "out.jsonl"
        self.injected: list[tuple[float, str]] = []
        """When something that may explain failures began or ended, and where."""
        self.unwell: list[tuple[float, str]] = []
        """The same, with the whole names of processes."""
        self.is_quiet = False
        self.reported: set[Place] = set()
        """Rollouts that were reported as written."""
        self.logged: dict[Place, set[int]] = {}
        """The steps of unfinished attempts whose model calls are in the journal."""
        self.forked: set[Place] = set()
        """Rollouts that begin at an earlier step on purpose."""
        self._attempts: dict[str, Place] = {}
        """The places of attempts in the journal, by their ids."""
        self.ever_logged: set[tuple[Place, int]] = set()
        self.charged: Counter[Place] = Counter()
        self.lost: Counter[Place] = Counter()
        """Attempts of the running command that count, and those that lost their process."""
        self.runs = 0
        self.is_done = False
        self._partial = 0
        """Rollouts of the running command that cannot be scored, since the others of their group were."""
        self.failures: Counter[str] = Counter()
        self._log_read = 0
        self.machines: dict[str, Callable[[], Process]] = {}
        self.current: dict[str, Process] = {}
        self.listeners: dict[str, Listener] = {}
        self.stops: dict[str, asyncio.Event] = {}
        self.token = TOKEN if plan.layout == "joined workers" else None
        self.indices: dict[int, str] = {}
        """The names of workers that have joined, by their index."""
        self._resource = GroupLedger if plan.is_grouped else LEDGERS[plan.layout]
        self.settings: dict[str, Any] = {}

    # Set-up

    def play(self) -> None:
        """Play the seed to its end, and check what is left."""
        world, plan = self.world, self.plan
        set_world(world)
        world.on_log = self.check_log
        world.say(repr(plan), "plan")
        self.endpoint = Endpoint(world, think_s=plan.think_s)
        self.endpoint.rate = plan.endpoint_rate
        self.endpoint.on_fault = lambda _kind: self.inject("endpoint")
        network, disk = world.network, world.disk
        network.loss_rate, network.split_rate, disk.short_rate = plan.loss_rate, plan.split_rate, plan.short_rate
        self._write_dataset()
        self._define("endpoint", lambda process: self.endpoint.serve(process, self.listeners["endpoint"]))
        self.listeners["endpoint"].on_sent = self._on_request
        self.settings = self._settings()
        if plan.layout == "workers":
            self._define("head", self._head)
            self.listeners["ledger"] = network.held_listener()
            for number in range(plan.workers):
                self._define(f"worker {number}", functools.partial(self._worker, number))
        if plan.layout == "joined workers":
            self._define("head", self._head)
            for number in range(plan.workers):
                self._define(f"worker {number}", self._joined_worker)
        if plan.layout == "isolated environment":
            self._define("environment", self._environment)
        for name in self.machines:
            self._start(name)
        world.after(0.1, self._run_command)
        for _ in plan.faults:
            world.after(world.random.expovariate(1 / plan.fault_every_s), self._commit_fault)
        world.at(world.now + plan.faulty_s, self._become_quiet)
        world.run(lambda: self.is_done, within_s=RUN_LIMIT_S)
        self._check_end()

    def _define(self, name: str, main: Callable[[Process], Coroutine[Any, Any, Any]]) -> None:
        """A machine whose process is started again whenever it dies. Its supervisor holds its listening socket."""
        self.listeners[name] = self.world.network.held_listener()

        def make() -> Process:
            process = Process(self.world, name)
            process.on_death.append(functools.partial(self._restart_later, name))
            process.start(main(process))
            return process

        self.machines[name] = make

    def _start(self, name: str) -> None:
        self.current[name] = process = self.machines[name]()
        self.world.say("starts", name)
        process.on_death.append(lambda: self.inject(name))

    def _restart_later(self, name: str) -> None:
        def restart() -> None:
            self.inject(name)
            self._start(name)

        self.world.after(self.world.random.uniform(0.3, 5.0), restart)

    def _write_dataset(self) -> None:
        lines = []
        for number in range(self.plan.rows):
            params = {"input": [{"role": "user", "content": f"Row {number} please"}]}
            lines.append(orjson.dumps({"number": number, "responses_create_params": params}) + b"\n")
        (self.folder / "rows.jsonl").write_bytes(b"".join(lines))

    def _specs(self) -> list[ServerSpec]:
        return server_specs(self.folder, self._resource, port=self.listeners["endpoint"].port)

    def _settings(self) -> dict[str, Any]:
        return {each.name: {each.server_type: {each.implementation: each.config}} for each in self._specs()}

    def _stack(self, *names: str, worker: int = 0, addresses: dict[str, str] | None = None) -> Stack:
        servers = [each for each in self._specs() if each.name in names]
        return Stack(
            StackSpec(
                servers,
                config=self.settings,
                addresses=addresses or {},
                secret=SECRET,
                worker=worker,
                token=self.token,
            )
        )

    # The processes

    async def _head(self, _process: Process) -> None:
        listener = self.listeners["head"]
        members = Members()
        head = HeadServer(
            config_yaml=lambda: "{}",
            instances=list,
            health=dict,
            metrics=_no_metrics,
            workers=self._addresses
            if self.token is None
            else lambda: [each.to_json() for each in members.addresses()],
            register=members.register,
            token=self.token,
        )
        async with serving({listener.port: head}, [listener]):  # type: ignore[list-item]
            await asyncio.Event().wait()

    def _addresses(self) -> list[dict[str, Any]]:
        found = []
        for number in range(self.plan.workers):
            name = f"worker {number}"
            rows = f"{HOST}:{self.listeners[name].port}"
            address = WorkerAddress(
                number, f"http://{rows}", rows, ("agent", "ledger", "policy"), self.current[name].pid
            )
            found.append(address.to_json())
        return found

    async def _worker(self, number: int, process: Process) -> None:
        stop = self.stops[process.name] = asyncio.Event()
        await asyncio.sleep(self.world.random.uniform(0.2, 3.0))  # imports
        async with self._stack("ledger", "policy", "agent", worker=number) as stack:
            http = [self.listeners["ledger"]] if number == 0 else []
            apps = {each.port: stack.apps["ledger"] for each in http}
            async with serving(apps, http), serve_rows(stack, self.listeners[process.name]):  # type: ignore[arg-type]
                await stop.wait()
        self._check_returned(process)
        self.world.at(self.world.now, process.end)

    async def _joined_worker(self, process: Process) -> None:
        await asyncio.sleep(self.world.random.uniform(0.2, 3.0))
        stop = self.stops[process.name] = asyncio.Event()
        listener = self.world.network.free_listener()
        rows = f"{HOST}:{listener.port}"
        about = Registration(url=f"http://{rows}", rows=rows, servers=("agent", "ledger", "policy"), pid=process.pid)
        head_url = f"http://{HOST}:{self.listeners['head'].port}"
        async with HttpClient() as http:
            membership = Membership(http, head_url, self.token, about)
            index = await membership.join()
            self.indices[index] = process.name
            leased = asyncio.create_task(membership.keep(stop))
            stack = self._stack("ledger", "policy", "agent", worker=index)
            async with stack, serve_rows(stack, listener):  # type: ignore[arg-type]
                await stop.wait()
            await leased
        self.world.at(self.world.now, process.end)

    async def _environment(self, process: Process) -> None:
        listener = self.listeners["environment"]
        await asyncio.sleep(self.world.random.uniform(0.2, 3.0))
        stack = self._stack("ledger")
        async with stack, serving({listener.port: stack.apps["ledger"]}, [listener]):  # type: ignore[list-item]
            await asyncio.Event().wait()

    def _run_command(self) -> None:
        """The user runs the command, again if it was run before."""
        self.runs += 1
        if self.runs == MAX_RUNS and not self.is_quiet:
            self._become_quiet()
        elif self.runs > 2 * MAX_RUNS:
            self.world.violated(f"not complete after {self.runs} runs")
        process = Process(self.world, "collector")
        self.current["collector"] = process
        self.world.say(f"starts, run {self.runs}", "collector")
        began_quiet = self.is_quiet
        self.world.disk.refused.clear()
        self.charged.clear()
        self.lost.clear()
        self.inject("collector")

        def on_death() -> None:
            self.inject("collector")
            if not self.is_done:
                self.world.after(self.world.random.uniform(0.5, 5.0), self._run_command)

        process.on_death.append(on_death)
        process.start(self._collect(process, began_quiet))

    async def _collect(self, process: Process, began_quiet: bool) -> None:
        plan, world = self.plan, self.world
        config = RolloutCollectionConfig(
            agent_name="agent",
            input_jsonl_fpath=str(self.folder / "rows.jsonl"),
            output_jsonl_fpath=str(self.output),
            num_repeats=plan.repeats,
            num_samples_in_parallel=plan.parallel,
            seed_per_repeat=SEED,
            journal=plan.journal,
            group_output=plan.group_output,
            rollout_timeout_s=plan.rollout_timeout_s,
            max_attempts=plan.max_attempts,
            disable_aggregation=plan.layout != "one process",
        )
        metrics, error, self._partial = None, None, 0
        try:
            async with self._client() as client:
                metrics = await RolloutCollectionHelper().run_from_config(
                    config, client=client, settings=self.settings, report=self._on_report
                )
        except asyncio.CancelledError:
            world.say("was stopped")
        except (GymError, OSError) as raised:
            error = raised
            world.say(f"ends with {type(raised).__name__}: {str(raised)[:300]}")
            self._check_error(raised)
        for _ in range(5):
            await asyncio.sleep(0)
        self._check_returned(process)
        is_complete = metrics is not None and metrics.failed.total() == self._partial
        if metrics is not None:
            world.say(f"ends: {metrics.scored} scored, {dict(metrics.failed)} failed")
            if metrics.scored + metrics.failed.total() != plan.rows * plan.repeats:
                world.violated(
                    f"{metrics.scored} scored and {metrics.failed.total()} failed of {plan.rows * plan.repeats}"
                )
        if began_quiet and not is_complete:
            world.violated(f"nothing failed during the run, and it ended with {error or (metrics and metrics.failed)}")
        self.is_done = is_complete
        world.at(world.now, process.end)

    @contextlib.asynccontextmanager
    async def _client(self) -> Any:
        layout = self.plan.layout
        if layout in ("workers", "joined workers"):
            head = BaseServerConfig(host=HOST, port=self.listeners["head"].port)
            async with HttpClient() as http:
                yield ServerClient(
                    head_server_config=head,
                    global_config_dict=self.settings,
                    addresses={"agent": "http://nowhere", "ledger": self._ledger_url()},
                    http=http,
                    token=self.token,
                )
            return
        names, addresses = ["policy", "agent"], {}
        if layout == "one process":
            names.append("ledger")
        else:
            addresses["ledger"] = f"http://{HOST}:{self.listeners['environment'].port}"
        async with self._stack(*names, addresses=addresses) as stack:
            yield stack.client

    def _ledger_url(self) -> str:
        listener = self.listeners.get("ledger")
        return "http://nowhere" if listener is None else f"http://{HOST}:{listener.port}"

    # Faults

    def inject(self, where: str) -> None:
        self.unwell.append((self.world.now, where))
        self.injected.append((self.world.now, where.partition(" ")[0]))

    def _become_quiet(self) -> None:
        self.world.say("nothing fails from now on")
        self.is_quiet, self.endpoint.rate = True, 0.0
        network, disk = self.world.network, self.world.disk
        network.loss_rate, disk.kill_next = 0.0, None
        network.blocked.clear()
        network.slow_until = disk.slow_until = disk.full_until = 0.0
        for process in self.world.processes:
            process.frozen_until = self.world.now
        collector = self.current.get("collector")
        if self.world.seed % 2 and collector is not None and collector.is_alive:
            collector.kill("is killed, to begin without faults")  # else what hangs would hang for ever

    def _commit_fault(self) -> None:
        if self.is_quiet or self.is_done:
            return
        world, plan, drawn = self.world, self.plan, self.world.random
        kind = drawn.choice(plan.faults)
        world.after(drawn.expovariate(1 / plan.fault_every_s), self._commit_fault)
        action, _, target = kind.partition(" ")
        if action in ("kill", "freeze", "stop", "partition"):
            target = target.removesuffix(" in a write")
            if target == "worker":
                target = f"worker {drawn.randrange(plan.workers)}"
            self._hurt(kind, action, target)
        else:
            world.say(kind)
            _OTHER_FAULTS[kind](self)

    def _hurt(self, kind: str, action: str, name: str) -> None:
        world, drawn = self.world, self.world.random
        process = self.current.get(name)
        if process is None or not process.is_alive:
            return
        self.inject(name)
        if kind.endswith("in a write"):
            world.disk.kill_next = name
        elif action == "kill":
            process.kill()
        elif action == "freeze":
            seconds = drawn.choice((1.0, 10.0, 50.0, 100.0, 300.0))
            process.freeze(seconds)
            world.after(seconds, self.inject, name)
            self.inject("time")
        elif action == "partition":
            seconds = drawn.choice((2.0, 30.0, 80.0, 200.0))
            world.say(f"is cut off for {seconds:g} s", name)
            world.network.blocked[name] = world.now + seconds
            world.after(seconds, self.inject, name)
            self.inject("network")
        elif name == "collector" and process.main is not None and not process.main.cancelling():
            world.say("is interrupted", name)
            process.loop.call_soon(process.main.cancel)
        elif name in self.stops:
            world.say("is asked to stop", name)
            process.loop.call_soon(self.stops[name].set)

    def reset_connection(self) -> None:
        self._with_connection(lambda transport: transport.reset())

    def cut_connection(self) -> None:
        self._with_connection(lambda transport: transport.cut())

    def _with_connection(self, act: Callable[[Any], None]) -> None:
        connections = self.world.network.open_connections()
        if connections:
            chosen = self.world.random.choice(connections)
            self.world.say(f"it is one from {chosen.owner} to {chosen.peer.owner}", "network")
            self.inject("connection")
            act(chosen)

    def fail_power(self) -> None:
        """Of the machine of the collector."""
        collector = self.current.get("collector")
        if collector is not None and collector.is_alive:
            collector.kill("loses power")
            self.world.disk.fail_power()
            self._reread_log()

    def slow_network(self) -> None:
        network = self.world.network
        network.slow_until, network.slowness = self.world.now + 60.0, self.world.random.choice((10.0, 500.0))
        self.inject("network")
        self.world.after(60.0, self.inject, "network")

    def fill_disk(self) -> None:
        self.world.disk.full_until = self.world.now + self.world.random.choice((0.5, 5.0))

    def slow_disk(self) -> None:
        disk = self.world.disk
        disk.slow_until, disk.slowness = self.world.now + 30.0, self.world.random.choice((20.0, 2000.0))

    def truncate_output(self) -> None:
        """Another program cuts the output, or what it has is lost."""
        try:
            size = self.output.stat().st_size
        except OSError:
            return
        kept = self.world.random.randrange(size + 1)
        with self.output.open("r+b") as file:
            file.truncate(kept)
        self.world.disk.synced[str(self.output)] = kept
        self.world.say(f"another program cut the output from {size} to {kept} bytes", "disk")
        self.reported &= self._places_on_disk()

    def jump_clock(self) -> None:
        for process in self.world.processes:
            process.wall_offset_s += self.world.random.choice((-7200.0, -5.0, 5.0, 7200.0))

    # Invariants

    def _on_report(self, outcome: Outcome) -> None:
        """An outcome is said to be written: it must be on disk, down to the platter, with the right score."""
        row, world = outcome.row, self.world
        place = row.task_index, row.repeat_index
        if outcome.error is not None:
            self._check_failure(outcome)
            return
        if place in self.reported:
            world.violated(f"row {place} is written twice")
        self.reported.add(place)
        world.say(f"row {place[0]} repeat {place[1]} is written with {outcome.values.get('reward')}")
        data = self.output.read_bytes()[: world.disk.synced[str(self.output)]]
        if place not in _places(data[-200_000:]):
            world.violated(f"row {place} was reported, and is not synced")

    def _check_failure(self, outcome: Outcome) -> None:
        """A failure must name a cause that something explains."""
        error, world = outcome.error, self.world
        if error is None:
            return
        self.failures[error.cause] += 1
        row = outcome.row
        about = f"row {row.task_index} repeat {row.repeat_index}, attempt {row.attempt}"
        world.say(f"{about}, failed: {error.cause} {error.code}: {str(error)[:300]}")
        since = world.now - outcome.seconds - EXPLAINED_WITHIN_S
        found = {where for at, where in self.injected if at >= since}
        self._check_attempts(outcome, (row.task_index, row.repeat_index))
        if self.plan.is_grouped and error.code == "partial_group":
            self._partial += 1
            return
        if found.isdisjoint(EXPLAINED_BY[error.cause]):
            world.violated(f"a failure by {error.cause} that nothing explains: {error}")
        if (
            outcome.seconds > row.timeout_s + OUTCOME_GRACE_S + 30.0
            and "time" not in found
            and "collector" not in found
        ):
            world.violated(f"an attempt took {outcome.seconds:.1f} s, with a limit of {row.timeout_s:g} s")

    def _check_attempts(self, outcome: Outcome, place: Place) -> None:
        """A row gets the attempts that it was promised, and is charged for no process that died under it."""
        error, world = outcome.error, self.world
        is_lost = error is not None and error.code in LOST_CODES
        self.lost[place] += is_lost
        self.charged[place] += error is not None and not is_lost and error.code != UNREACHABLE_CODE
        if self.charged[place] > self.plan.max_attempts:
            world.violated(f"{place} had {self.charged[place]} attempts, of at most {self.plan.max_attempts}")
        if outcome.is_final and is_lost and self.lost[place] < MIN_LOSSES:
            world.violated(f"{place} is given up after {self.lost[place]} lost processes")

    def check_log(self, text: str, who: str) -> None:
        """A worker must not be taken for dead while it is well."""
        words = text.split()
        if "has not answered for" in text or "has not renewed its lease" in text:
            name = self.indices.get(int(words[1]), f"worker {words[1]}")
            since = self.world.now - 130.0
            if not any(at >= since and where in (name, "network", "connection") for at, where in self.unwell):
                self.world.violated(f"{who} gives up {name}, which is well: {text}")

    def _check_error(self, error: Exception) -> None:
        text = str(error)
        if "damaged" in text or "does not say which row" in text:
            self.world.violated(f"the output cannot be read again: {text}")

    def _on_request(self, transport: Transport, request: bytes) -> None:
        """The endpoint is asked: not for what the journal has. A worker may work for a collector that is gone."""
        path = str(journal_path(self.output))
        known = transport.process.transports if transport.process is not None else ()
        is_orphan = any(each.is_orphaned for each in known if not each.is_client)
        if self.plan.journal and path not in self.world.disk.refused and not is_orphan:
            place, step = place_and_step(orjson.loads(request.partition(b"\r\n\r\n")[2]))
            self._read_log()
            if place not in self.forked and step in self.logged.get(place, ()):
                self.world.violated(f"step {step} of {place} is asked for again, though the journal has it")
            if step:
                self.world.after(LOGGED_WITHIN_S, self._check_logged, place, step - 1, self.world.now)

    def _check_logged(self, place: Place, step: int, asked_at: float) -> None:
        """A rollout went on from a call: the journal must have it, unless something may have kept it from there."""
        self._read_log()
        recent = any(at >= asked_at - LOGGED_WITHIN_S for at, _ in self.injected[-1:])
        is_undisturbed = not recent and all(each.frozen_until < asked_at for each in self.world.processes)
        if is_undisturbed and (place, step) not in self.ever_logged and not self.is_done:
            self.world.violated(f"{place} goes on from step {step}, which is not in the journal")

    def _read_log(self) -> None:
        path = journal_path(self.output)
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._log_read)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._log_read += end
        for line in data[:end].splitlines(keepends=True):
            call = parse_call(line)
            if call is None:
                continue
            if call.name == END_OF_ATTEMPT:
                ended = self._attempts.pop(call.attempt_id, None)
                if ended is not None and call.status >= 400:
                    self.logged.pop(ended, None)
            elif call.kind == "model" and call.status == 200:
                place, step = _place_and_step_of(call.reply)
                self._attempts[call.attempt_id] = place
                self.logged.setdefault(place, set()).add(step)
                self.ever_logged.add((place, step))

    def _reread_log(self) -> None:
        self.logged, self._log_read, self._attempts = {}, 0, {}
        self._read_log()

    def _places_on_disk(self) -> set[Place]:
        return set(_places(self.output.read_bytes())) if self.output.exists() else set()

    def _check_returned(self, process: Process) -> None:
        """What a process opened is closed when it ends."""
        if process.descriptors:
            left = [self.world.disk.open[number].path for number in process.descriptors]
            self.world.violated(f"{process.name} leaves files open: {left}")
        if process.transports and process.name == "collector":
            left = [f"to {each.peer.owner}" for each in process.transports]
            self.world.violated(f"{process.name} leaves {len(left)} connections open: {left[:5]}")
        tasks = [task for task in asyncio.all_tasks(process.loop) if task is not process.main]
        if tasks:
            self.world.violated(f"{process.name} leaves tasks: {[repr(task.get_coro()) for task in tasks[:5]]}")

    def _check_end(self) -> None:
        """Exactly one outcome for each row, and each as if nothing had happened."""
        plan, world = self.plan, self.world
        records = [orjson.loads(line) for line in self.output.read_bytes().splitlines()]
        places = Counter((each["_task_index"], each["_repeat_index"]) for each in records)
        wanted = {(row, repeat) for row in range(plan.rows) for repeat in range(plan.repeats)}
        if (set(places) != wanted and not plan.is_grouped) or max(places.values()) > 1:
            twice = [place for place, count in places.items() if count > 1]
            world.violated(f"missing: {sorted(wanted - set(places))}, twice: {twice}")
        for record in records:
            place = record["_task_index"], record["_repeat_index"]
            expected = self._expected_reward(*place)
            if abs(record["reward"] - expected) > 1e-9 and not (
                plan.is_grouped and self._is_partial(place[0], places)
            ):
                world.violated(f"row {place} has {record['reward']}, expected {expected}")
            said = record["response"]["output"][-1]["content"][0]["text"]
            if said != f"The total is {total(*place)}":
                world.violated(f"row {place} says {said!r}")
        if failures_path(self.output).exists():
            for line in failures_path(self.output).read_bytes().splitlines():
                with contextlib.suppress(ValueError):  # a kill may have cut the last line
                    if orjson.loads(line)["cause"] not in EXPLAINED_BY:
                        world.violated(f"an unknown cause: {line[:200]!r}")

    def _is_partial(self, number: int, places: Counter[Place]) -> bool:
        """True if a group was scored without one of its rollouts, whose failure says so."""
        return sum(place[0] == number for place in places) < self.plan.repeats

    def _expected_reward(self, number: int, repeat: int) -> float:
        if not self.plan.is_grouped:
            return total(number, repeat) / 1000
        totals = [total(number, each) + 1 for each in range(self.plan.repeats)]
        return totals[repeat] / sum(totals)


def server_specs(folder: Path, resource: type[SimpleResourcesServer], *, port: int) -> list[ServerSpec]:
    """The environment, the model and the agent. The endpoint of the model is at that port."""
    references: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "ledger"},
        "model_server": {"type": "responses_api_models", "name": "policy"},
    }
    model: dict[str, Any] = {
        "openai_base_url": f"http://{HOST}:{port}/v1",
        "openai_api_key": "key",
        "openai_model": "m",
        "request_timeout_s": REQUEST_TIMEOUT_S,
    }
    environment = server_spec("ledger", "resources_servers", "ledger", folder=folder, domain="other")
    policy = server_spec("policy", "responses_api_models", "openai_model", **model)
    agent = server_spec("agent", "responses_api_agents", "simple_agent", **references)
    return [
        replace(environment, served_class=resource),
        replace(policy, served_class=SimpleModelServer),
        replace(agent, served_class=SimpleAgent),
    ]


async def warm_up(folder: Path) -> None:
    """Load what every seed needs, in the process that is forked for each."""
    for resource in (Ledger, CopiedLedger, ReplayedLedger, GroupLedger):
        async with Stack(StackSpec(server_specs(folder, resource, port=1))) as stack:
            row = {"number": 1, "responses_create_params": {"input": [{"role": "user", "content": "Row 1"}]}}
            await stack.client.send("ledger", "/seed_session", row)
    async with serving({}, []):
        pass


async def _no_metrics() -> list[Any]:
    return []


def _places(data: bytes) -> Iterator[Place]:
    for line in data.splitlines():
        with contextlib.suppress(ValueError, KeyError):
            record = orjson.loads(line)
            yield record["_task_index"], record["_repeat_index"]


def _place_and_step_of(reply: str) -> tuple[Place, int]:
    _, number, repeat, step = orjson.loads(reply)["id"].split("-")
    return (int(number), int(repeat)), int(step)


_OTHER_FAULTS: dict[str, Callable[[Scenario], None]] = {
    "reset": Scenario.reset_connection,
    "half-open": Scenario.cut_connection,
    "power failure": Scenario.fail_power,
    "slow network": Scenario.slow_network,
    "disk full": Scenario.fill_disk,
    "slow disk": Scenario.slow_disk,
    "truncate output": Scenario.truncate_output,
    "clock jump": Scenario.jump_clock,
}
logging.raiseExceptions = False
