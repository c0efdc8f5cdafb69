"""Run an agent on every row of a dataset and store each outcome: rows stream in, records stream out."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.deadline import OUTCOME_GRACE_S, reporting_ignored_cancellations
from nemo_gym.common.descriptors import (
    DESCRIPTORS_PER_LOCAL_ROLLOUT,
    DESCRIPTORS_PER_REMOTE_ROLLOUT,
    limit_to_descriptors,
)
from nemo_gym.common.metrics import stage_loads
from nemo_gym.common.plugins import plugin
from nemo_gym.common.words import count_of
from nemo_gym.config.keys import ALIASES_KEY_NAME, ROLLOUT_ID_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.errors import AggregationError, ConfigError, RolloutError
from nemo_gym.rollouts.attempts import InFlight, MakeAttempt, Run, observed_attempt, retrying_run
from nemo_gym.rollouts.config import MAX_PARALLEL, MIN_PARALLEL, RolloutCollectionConfig
from nemo_gym.rollouts.dataset import (
    DatasetFingerprint,
    check_agent,
    check_overrides,
    check_rows_name_agents,
    dataset_path,
    fingerprint_dataset,
    read_rows,
    trainer_row,
    write_materialized_inputs,
)
from nemo_gym.rollouts.group_verification import GroupVerifier
from nemo_gym.rollouts.live import CANCELLED, LiveRollouts, published, server_metrics
from nemo_gym.rollouts.metrics import RunningMetrics, write_aggregate_metrics
from nemo_gym.rollouts.registry import registered
from nemo_gym.rollouts.resume import archive_output, load_completed
from nemo_gym.rollouts.store import (
    CompletedIndex,
    GroupedWriter,
    RolloutStore,
    WriteOutcome,
    check_paths,
    materialized_inputs_path,
    metrics_path,
)
from nemo_gym.rollouts.types import Outcome, Row

if TYPE_CHECKING:
    from nemo_gym.config.types import BaseServerConfig
    from nemo_gym.rollouts.call_log import CallLog
    from nemo_gym.rollouts.dispatch import WorkerPool

logger = logging.getLogger(__name__)

START = 64
"""A cautious first guess; it doubles with every round trip until the endpoint throttles."""
DECREASE = 0.7


class AimdWindow:
    """Additive increase, multiplicative decrease. Before the first throttled rollout the size doubles with every round
    trip; after it the size grows by one a round trip.

    Of the throttled rollouts that were started under one size, only the first shrinks the window."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.size = float(max(low, min(high, START)))
        self.generation = 0
        self._doubling = True

    def succeeded(self) -> None:
        self.size = min(self.high, self.size + (1.0 if self._doubling else 1.0 / self.size))

    def throttled(self, generation: int) -> None:
        """The endpoint throttled a rollout that was started in `generation`."""
        if generation < self.generation or self.low == self.high:
            return
        self.generation += 1
        self._doubling = False
        self.size = max(self.low, self.size * DECREASE)


class AdaptiveLimiter:
    """A semaphore whose size adapts."""

    def __init__(self, window: AimdWindow) -> None:
        self.window = window
        self.in_flight = 0
        self._is_full, self._has_room = False, asyncio.Event()

    async def enter(self) -> int:
        """Wait for a place. Returns the generation to pass to `leave`."""
        while self.in_flight >= int(self.window.size):
            self._is_full = True
            self._has_room.clear()
            await self._has_room.wait()
        self.in_flight += 1
        return self.window.generation

    def leave(self, generation: int, *, throttled: bool, scored: bool) -> None:
        """Give the place back and adapt the size. Failures do not widen the window."""
        self.in_flight -= 1
        if throttled:
            self.window.throttled(generation)
        elif scored:
            self.window.succeeded()
        if self._is_full and self.in_flight < int(self.window.size):
            self._is_full = False
            self._has_room.set()


END_GRACE_S = 10.0
"""Time limit for tasks to end when the block is interrupted."""


class RolloutTasks:
    """An async context manager that owns tasks, those of rollouts and others."""

    def __init__(self, *, end_grace_s: float = END_GRACE_S) -> None:
        self._end_grace_s = end_grace_s
        self._started: dict[asyncio.Task[None], InFlight | None] = {}
        self._error: BaseException | None = None
        self._has_ended = asyncio.Event()
        self._is_interrupting = self._is_leaving = False

    async def __aenter__(self) -> Self:
        parent = asyncio.current_task()
        if parent is None:
            raise AssertionError("tasks are started in a task")
        self._parent = parent
        return self

    def start(self, work: Coroutine[Any, Any, None], rollout: InFlight | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work) if rollout is None else rollout.start(work)
        self._started[task] = rollout
        task.add_done_callback(self._on_end)

    def abandon(self, task: "asyncio.Task[Any]") -> InFlight | None:
        """Stop waiting for a task. Returns its rollout; None if the task is no rollout that runs."""
        rollout = self._started.pop(task, None)
        asyncio.get_running_loop().call_soon(self._check_end)  # another task may be started in its place
        return rollout

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._is_leaving = True
        is_ours = self._is_interrupting and self._parent.uncancel() == 0 and kind is asyncio.CancelledError
        interruption = None if is_ours else error
        if interruption is None:
            try:
                self._check_end()
                await self._has_ended.wait()
            except asyncio.CancelledError as cancelled:
                interruption = cancelled
        if interruption is not None or self._error is not None:
            await self._cancel_all()
        if self._error is not None:
            raise self._error
        if interruption is not None:
            raise interruption

    async def _cancel_all(self) -> None:
        running = [*self._started]
        for task in running:
            task.cancel()
        if not running:
            return
        _, ignoring = await asyncio.wait(running, timeout=self._end_grace_s)
        for task in ignoring:
            logger.warning("not waiting for a rollout that ignores its cancellation, at %s", place_of(task))

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        self._started.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and self._error is None:
            self._error = error
            if not self._is_leaving and not self._parent.done():
                self._is_interrupting = True
                self._parent.cancel()
        self._check_end()

    def _check_end(self) -> None:
        if self._is_leaving and (not self._started or self._error is not None):
            self._has_ended.set()


def place_of(task: "asyncio.Task[Any]") -> str:
    """The innermost line that a task waits at, outside of asyncio."""
    running: Any = task.get_coro()
    place = "an unknown place"
    while (frame := getattr(running, "cr_frame", None)) is not None:
        if frame.f_globals.get("__package__") != "asyncio":
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
        running = running.cr_await
    return place


ECHOED = ("_rowidx", TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, ROLLOUT_ID_KEY_NAME)
"""Fields by which a trainer recognizes a row: a result has them even if its agent does not repeat them."""

BURST = 32
"""Number of rollouts that start in one turn of the event loop. Rollouts that do the same thing one after the other
take less time than if each did something else in between."""

DATASET_CHANGED = (
    "%s was changed while its rows were run, so these may not be the rows that it has now. Run the same command again "
    "with resume=continue to make what is missing."
)
NO_LOG = (
    "+record, +replay and +journal need servers that this command starts itself (give config_paths), or those of an "
    "`ng_run` with its head server: other servers do not say which calls belong to which rollout."
)
RESUME_HINT = "All rollouts reported so far are on disk; run the same command again to make the rest."

Report = Callable[[Outcome], None]


async def collect(
    rows: Iterable[Row | Outcome],
    run: Run,
    write: WriteOutcome,
    limiter: AdaptiveLimiter,
    *,
    in_flight: dict[int, InFlight] | None = None,
    grace_s: float = OUTCOME_GRACE_S,
) -> None:
    """Run every row, as many at once as the limiter allows, and write each outcome as it completes. A rollout whose
    code still runs `grace_s` after its timeout has failed. `in_flight` gets the rollouts while they run."""
    unfinished: list[Row] = []
    running, in_flight = RolloutTasks(), {} if in_flight is None else in_flight

    async def run_one(rollout: InFlight) -> None:
        throttled = scored = has_ended = False
        try:
            outcome = await _run_unless_cancelled(run, rollout)
            if rollout.is_abandoned:
                return
            has_ended = True
            throttled, scored = outcome.throttled > 0, outcome.error is None
            await write(outcome)  # while the disk is behind, no other rollout takes the place
        except asyncio.CancelledError:
            if not has_ended:
                unfinished.append(rollout.row)
            raise
        finally:
            in_flight.pop(rollout.number, None)
            if not rollout.is_abandoned:
                limiter.leave(rollout.generation, throttled=throttled, scored=scored)

    async def write_failure(failure: Outcome) -> None:
        await write(failure)

    def abandon(task: "asyncio.Task[Any]", message: str) -> None:
        rollout = running.abandon(task)
        if rollout is None:
            return
        rollout.is_abandoned = True
        in_flight.pop(rollout.number, None)
        limiter.leave(rollout.generation, throttled=False, scored=False)
        text = f"{message} Its code ignores that it is cancelled, at {place_of(task)}."
        error = RolloutError("timeout", text, retryable=False)
        running.start(write_failure(Outcome.failed(rollout.row, error, seconds=rollout.seconds)))

    with reporting_ignored_cancellations(abandon, after_s=grace_s):
        async with running:
            for number, row in enumerate(rows, 1):
                if isinstance(row, Outcome):
                    await write(row)
                    continue
                in_flight[number] = rollout = InFlight(number, row, await limiter.enter())
                running.start(run_one(rollout), rollout)
                if number % BURST == 0:
                    await asyncio.sleep(0)  # let them send their first requests before more start
    for row in unfinished:  # nobody cancels a rollout but the collection, and that goes on
        error = RolloutError("internal", "The rollout was cancelled, but not by this collection.")
        await write(Outcome.failed(row, error))


async def _run_unless_cancelled(run: Run, rollout: InFlight) -> Outcome:
    """The outcome of a rollout, also of one that the user cancels."""
    try:
        return await run(rollout.row)
    except asyncio.CancelledError:
        if not rollout.is_cancelled or rollout.task is None or rollout.task.uncancel() > 0:
            raise
        error = RolloutError("timeout", "Cancelled by the user.", code=CANCELLED, retryable=False)
        return Outcome.failed(rollout.row, error, seconds=rollout.seconds)


@contextlib.asynccontextmanager
async def _run_limit(seconds: float) -> AsyncIterator[None]:
    """Interrupt the job when its time is up. Not a deadline for rollouts: one that is interrupted has not failed."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise RolloutError("timeout", f"The run did not finish within {seconds:g} s. {RESUME_HINT}") from error


class RolloutCollectionHelper:
    """Rollouts for programs: a trainer passes rows and awaits scored records."""

    def __init__(self) -> None:
        self._limiter: AdaptiveLimiter | None = None
        self._live = LiveRollouts()
        self.metrics: RunningMetrics | None = None
        """The metrics of `run_from_config`, once all its rollouts are made."""
        self.aggregation_error: AggregationError | None = None
        """Why the metrics that environments compute themselves are missing."""
        self.running_metrics: RunningMetrics | None = None
        """Its metrics so far, including the records that a resumed run found."""
        self.total = self.found = 0
        """The number of rollouts that `run_from_config` is asked for, and of those that were in the output already."""

    @property
    def in_flight(self) -> int:
        """The number of rollouts that `run_from_config` has in flight."""
        return self._limiter.in_flight if self._limiter else 0

    async def run_from_config(
        self,
        config: RolloutCollectionConfig,
        *,
        client: ServerClient | None = None,
        settings: Mapping[str, Any] | None = None,
        code: Mapping[str, str] | None = None,
        report: Report | None = None,
    ) -> RunningMetrics:
        """Make all rollouts that `config` asks for and that are not in its output yet, and write their metrics.
        `settings` is the configuration of the servers, if known: the manifest keeps it without secrets, to notice a
        change; and `code`, hashes of classes and functions that are in no server's folder."""
        config = _checked(config, settings or {})
        dataset, output = dataset_path(config), Path(config.output_jsonl_fpath)
        log = _call_log(config, settings or {})
        if config.resume == "restart":
            archive_output(output)

        reports = [self._live.add_outcome] if report is None else [self._live.add_outcome, report]

        def on_written(outcome: Outcome) -> None:
            for add_outcome in reports:
                add_outcome(outcome)

        with contextlib.ExitStack() as opened:
            tokens = None
            if config.tokens_output is not None:
                tokens = plugin("token_writer")(Path(config.tokens_output), output)
                opened.callback(tokens.close)
            store = opened.enter_context(
                contextlib.closing(RolloutStore(output, on_written=on_written, tokens=tokens))
            )
            stamp = _stamp(dataset)
            fingerprint = fingerprint_dataset(dataset, with_index=not store.is_empty)
            self.total = _requested_rollouts(config, fingerprint, store)
            completed, metrics = load_completed(
                store, fingerprint, dataset_path=dataset, config=config, settings=settings or {}, code=code
            )
            self.running_metrics, self.found = metrics, completed.count
            reports.insert(0, metrics.add_outcome)
            if config.log_to is not None:
                tracker = plugin("rollout_tracker")(config.log_to, made=completed.count)
                opened.callback(tracker.close)
                reports.append(tracker.add_outcome)
            if config.materialize_inputs:
                write_materialized_inputs(config, completed, materialized_inputs_path(output))
            caller = client or self.setup_server_client()
            stages_before = stage_loads(await server_metrics(caller))
            status = partial(self._status, output, metrics)
            known = registered(output, metrics, total=self.total, tags=config.tags, token_prices=config.token_prices)
            with known, store.discarded_without_servers():
                async with published(self._live, status, caller):
                    with log.opened(completed.contains) if log else contextlib.nullcontext():
                        await self._make_missing(config, store, completed, fingerprint, caller, log)
        if _stamp(dataset) != stamp:
            logger.warning(DATASET_CHANGED, dataset)
        metrics.add_stages(stages_before, stage_loads(await server_metrics(caller)))
        await self._write_metrics(config, metrics, caller)
        if log is not None:
            log.raise_if_incomplete()
        return metrics

    async def _write_metrics(
        self, config: RolloutCollectionConfig, metrics: RunningMetrics, client: ServerClient
    ) -> None:
        output = Path(config.output_jsonl_fpath)
        for server in client.local.values():
            metrics.blocked |= server.blocked()
        self.metrics = metrics
        write_json(metrics_path(output), metrics.summary())
        if not config.disable_aggregation and metrics.scored:
            try:
                await write_aggregate_metrics(output, client, agent_name=config.agent_name)
            except AggregationError as error:  # the rollouts are on disk
                self.aggregation_error = error
                logger.warning("%s", error)

    async def _make_missing(
        self,
        config: RolloutCollectionConfig,
        store: RolloutStore,
        completed: CompletedIndex,
        dataset: DatasetFingerprint,
        client: ServerClient,
        log: "CallLog | None",
    ) -> None:
        if config.agent_name is not None and config.agent_name not in client.local:
            client.url_of(config.agent_name)  # raises if there is none: not an error of any row
        async with _run_limit(config.run_timeout_s), store.writing() as write, _workers_of(client) as workers:
            make_attempt: MakeAttempt = workers.attempt if workers else partial(observed_attempt, client)
            if log is not None:
                if workers is None and not client.local:
                    raise ConfigError(NO_LOG)
                make_attempt = log.logged(make_attempt)
            most = max(1, self.total - self.found)
            self._limiter = AdaptiveLimiter(_window(config, client, most, has_workers=workers is not None))
            self._live.ask_workers = None if workers is None else workers.stages
            run = retrying_run(make_attempt, write, max_attempts=config.max_attempts)
            rows = read_rows(config, completed, dataset)
            in_flight = self._live.in_flight
            repeats = range(config.max_repeats)

            def has_others(row: Row) -> bool:
                return any(completed.contains((row.task_index, index, row.row_hash)) for index in repeats)

            if not config.group_output:
                verifier = GroupVerifier(client, write, has_others)
                return await collect(verifier.count(rows), run, verifier.write, self._limiter, in_flight=in_flight)
            grouped = GroupedWriter(write)
            verifier = GroupVerifier(client, grouped.write, has_others)
            try:
                counted = verifier.count(grouped.count(rows))
                await collect(counted, run, verifier.write, self._limiter, in_flight=in_flight)
            finally:
                await grouped.close()

    def _status(self, output: Path, metrics: RunningMetrics) -> dict[str, Any]:
        """The progress of `run_from_config`."""
        return {
            "output": str(output.absolute()),
            "total": self.total,
            "scored": metrics.scored,
            "failed": dict(metrics.failed),
            "mean_reward": metrics.mean_reward(),
            "alarms": [alarm.says for alarm in metrics.signals.alarms()],
            "max_in_flight": int(self._limiter.window.size) if self._limiter else None,
        }

    def run_examples(
        self,
        examples: Iterable[dict[str, Any]],
        head_server_config: "BaseServerConfig | None" = None,
        semaphore: "asyncio.Semaphore | None" = None,
        route_failures_to_sidecar: bool = False,
        environment_server_name: str | None = None,
        *,
        client: ServerClient | None = None,
        num_samples_in_parallel: int = MAX_PARALLEL,
        rollout_timeout_s: float = 3600.0,
        max_resident_tasks: int | None = None,
        dispatch_budget_s: float | None = None,
        drain_margin_s: float | None = None,
        latency_tracker: Any = None,
    ) -> "Iterator[asyncio.Future[tuple[dict[str, Any], dict[str, Any]]]]":
        """Futures of (row, result), in the order in which the rollouts finish. A failed one raises RolloutError.

        In an event loop, await the futures; in plain code they are done already, so call `result()`. With
        `route_failures_to_sidecar` a failure is a result with `_ng_failure_class`; with `dispatch_budget_s` rows that
        are too late are not started, and their result says so.
        """
        from nemo_gym.rollouts.completion_stream import CompletionOrderStream, TrainerDispatch, iter_completed_sync

        num_samples_in_parallel = min(num_samples_in_parallel, max_resident_tasks or num_samples_in_parallel)
        if num_samples_in_parallel < 1:
            raise ConfigError(f"num_samples_in_parallel is {num_samples_in_parallel}; expected at least 1.")
        caller = client or self.setup_server_client(head_server_config)
        parallel = limit_to_descriptors(num_samples_in_parallel, per_rollout=_descriptors_per_rollout(caller))
        dispatch = TrainerDispatch(caller)
        is_routed = environment_server_name or caller.setting(ALIASES_KEY_NAME)
        route = plugin("row_routing").router_of(caller, environment_server_name) if is_routed else None

        async def run(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            sent = trainer_row(row if route is None else route(row), timeout_s=rollout_timeout_s)
            async with contextlib.nullcontext() if semaphore is None else semaphore:
                result = await dispatch.run(sent)
            return row, {**{name: row[name] for name in ECHOED if name in row}, **result}

        if route_failures_to_sidecar or dispatch_budget_s is not None or latency_tracker is not None:
            limits = {"budget_s": dispatch_budget_s, "margin_s": drain_margin_s, "tracker": latency_tracker}
            run = plugin("row_routing").with_limits(run, failures_are_results=route_failures_to_sidecar, **limits)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return iter_completed_sync(examples, run, parallel=parallel)  # type: ignore[return-value]
        return iter(CompletionOrderStream(examples, run, parallel=parallel))

    def setup_server_client(self, head_server_config: "BaseServerConfig | None" = None) -> ServerClient:
        """A client of the running servers."""
        return ServerClient.load_from_global_config(head_server_config)


def _checked(config: RolloutCollectionConfig, settings: Mapping[str, Any]) -> RolloutCollectionConfig:
    """Raise ConfigError for what can be known before anything is opened. Returns the configuration with every row sent
    to the agent that the options choose."""
    if config.routes_rows or ALIASES_KEY_NAME in settings:
        config = plugin("row_routing").route_dataset(config, settings)
    dataset = dataset_path(config)
    check_overrides(config)
    check_paths(Path(config.output_jsonl_fpath), dataset=dataset)
    if config.agent_name is None:
        check_rows_name_agents(dataset, settings)
    else:
        check_agent(config.agent_name, settings)
    return config


def _requested_rollouts(config: RolloutCollectionConfig, dataset: DatasetFingerprint, store: RolloutStore) -> int:
    """Return how many rollouts `config` asks for. Raises ConfigError if there are none."""
    if config.limit and dataset.rows < config.limit:
        rows = count_of(dataset.rows, "row")
        logger.info("%s has %s, fewer than the limit of %d", dataset_path(config), rows, config.limit)
    total = dataset.num_rollouts(config)
    if total == 0:
        store.discard_if_empty()
        raise ConfigError(f"{dataset_path(config)} has no rows, so there is nothing to do.")
    return total


def _call_log(config: RolloutCollectionConfig, settings: Mapping[str, Any]) -> "CallLog | None":
    if not (config.record or config.replay or config.journal):
        return None
    from nemo_gym.rollouts.call_log import call_log_of

    return call_log_of(config, settings)


@contextlib.asynccontextmanager
async def _workers_of(client: ServerClient) -> "AsyncIterator[WorkerPool | None]":
    """The workers that make the rollouts. None if this process does: it holds the servers, or nobody supervises
    them."""
    if client.local:
        yield None
        return
    from nemo_gym.rollouts.dispatch import open_dispatch

    async with open_dispatch(client) as workers:
        yield workers


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return inode, size and time of a file, which differ after a change; None if it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _window(config: RolloutCollectionConfig, client: ServerClient, most: int, *, has_workers: bool) -> AimdWindow:
    """Return a window for at most `most` rollouts, the number that is left to make."""
    fixed = config.num_samples_in_parallel
    slots = [server.concurrency for server in client.local.values() if server.concurrency is not None]
    most = min([most, config.max_samples_in_parallel, *slots] if fixed is None else [most, fixed])
    if not has_workers:  # each worker has a limit of its own, and all rollouts share one connection to it
        most = limit_to_descriptors(most, per_rollout=_descriptors_per_rollout(client))
    return AimdWindow(min(MIN_PARALLEL, most) if fixed is None else most, most)


def _descriptors_per_rollout(client: ServerClient) -> int:
    return DESCRIPTORS_PER_LOCAL_ROLLOUT if client.local else DESCRIPTORS_PER_REMOTE_ROLLOUT
