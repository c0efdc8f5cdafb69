"""Have an agent answer every row of a dataset and write down what came of each: rows stream in, records stream out."""

import asyncio
import contextlib
import itertools
import logging
import math
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.common.deadline import timeout
from nemo_gym.common.exception_groups import raise_first_error
from nemo_gym.common.retry import backoff_s
from nemo_gym.common.retry_stats import track_retries
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.rollouts.completion_stream import CompletionOrderStream, iter_completed_sync
from nemo_gym.rollouts.concurrency import (
    DESCRIPTORS_PER_LOCAL_ROLLOUT,
    DESCRIPTORS_PER_REMOTE_ROLLOUT,
    AdaptiveLimiter,
    AimdWindow,
    limit_to_descriptors,
)
from nemo_gym.rollouts.dataset import MAX_PARALLEL, MIN_PARALLEL, dataset_of, read_rows
from nemo_gym.rollouts.dataset import RolloutCollectionConfig as RolloutCollectionConfig
from nemo_gym.rollouts.dataset import count_rollouts as count_rollouts
from nemo_gym.rollouts.manifest import make_manifest, manifest_path, question, read_manifest, write_manifest
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.recording import Recorder, Replayer, recording_context
from nemo_gym.rollouts.store import CompletedIndex, JsonlFile, RolloutStore, WriteOutcome, failures_path
from nemo_gym.rollouts.stragglers import DurationPercentiles, with_straggler_policy
from nemo_gym.rollouts.types import NoResult, Outcome, Row, Scored, hash_row, raw_json_or_text, single_line_record

if TYPE_CHECKING:
    from nemo_gym.config.types import BaseServerConfig

logger = logging.getLogger(__name__)

RESUME_HINT = "All that was reported as kept is there; start the same command again to do the rest."

Report = Callable[[Outcome], None]
Run = Callable[[Row], Awaitable[Outcome]]


async def collect(rows: Iterable[Row | NoResult], run: Run, keep: WriteOutcome, limiter: AdaptiveLimiter) -> None:
    """Run every row, as many at once as the gate lets through, and keep each outcome as it lands."""

    async def one(row: Row, generation: int) -> None:
        throttled = scored = False
        try:
            with track_retries() as retry_stats:
                outcome = await run(row)
            throttled, scored = retry_stats.throttled > 0, isinstance(outcome, Scored)
        finally:
            limiter.leave(generation, throttled=throttled, scored=scored)
        await keep(outcome)

    with raise_first_error():
        async with asyncio.TaskGroup() as running:
            for row in rows:
                if isinstance(row, NoResult):
                    await keep(row)
                else:
                    running.create_task(one(row, await limiter.enter()))
                    await asyncio.sleep(0)  # let what was started reach its endpoint before the next one starts


async def attempt(client: ServerClient, row: Row, *, timeout_s: float, number: int = 1) -> Outcome:
    """One attempt at a rollout. Whatever goes wrong is an outcome, so one row cannot end the others."""
    started_at, started = time.time(), time.monotonic()
    with track_retries() as retry_stats, recording_context(row.id, number) if client.tap else contextlib.nullcontext():
        try:
            answer = await run_once(client, row.agent, row.body, timeout_s=timeout_s)
            result = parse_scored(answer)
            record, figures = single_line_record(answer.content(), result), numeric_fields(result)
        except RolloutError as error:
            failure = error
        except Exception as error:
            logger.exception("rollout of row %d failed", row.id.task_index)
            failure = RolloutError("internal", repr(error))
        else:
            seconds = time.monotonic() - started
            return Scored(row.id, record, figures, attempts=number, retries=retry_stats.retries, seconds=seconds)
    return NoResult(
        row.id,
        failure.cause,
        str(failure),
        failure.server,
        failure.code,
        attempt=number,
        started_at=started_at,
        seconds=time.monotonic() - started,
        row=raw_json_or_text(row.body),
        retryable=failure.retryable,
    )


async def run_once(client: ServerClient, agent: str, body: Any, *, timeout_s: float) -> ServerReply:
    """What the agent answers when it is given a row. One that is not there is a mistake of the row that names it."""
    try:
        async with timeout(timeout_s, what="The rollout"):
            return await client.call(agent, "/run", body, answer=ServerReply, timeout_s=timeout_s)
    except ConfigError as error:
        raise RolloutError("input", str(error), server=agent) from error


def parse_scored(answer: ServerReply) -> dict[str, Any]:
    """What an agent answers of a rollout: an object with a finite reward, or there is no result."""
    try:
        result = orjson.loads(answer.content())
    except (ValueError, TypeError) as error:
        raise RolloutError("internal", f"The answer is not JSON: {error}.", server=answer.server) from error
    if not isinstance(result, dict):
        raise RolloutError("internal", f"The answer is {result!r:.300}; expected an object.", server=answer.server)
    reward = result.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        raise RolloutError("verifier", f"The reward is {reward!r}; expected a finite number.", server=answer.server)
    return result


def numeric_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The small part of a record that metrics look at, so that the rest need not be held or decoded twice."""
    small = {name: value for name, value in record.items() if not isinstance(value, dict | list)}
    response = record.get("response")
    return {**small, "response": {"usage": response.get("usage")} if isinstance(response, dict) else None}


def run_with(client: ServerClient, config: RolloutCollectionConfig, keep: WriteOutcome) -> Run:
    """How this job makes a rollout: several attempts, each failed one kept, stragglers seen to."""

    async def run(row: Row) -> Outcome:
        for number in range(1, config.max_attempts + 1):
            outcome = await attempt(client, row, timeout_s=config.rollout_timeout_s, number=number)
            if isinstance(outcome, Scored) or number == config.max_attempts or not outcome.retryable:
                return outcome
            await keep(replace(outcome, is_final=False))
            await asyncio.sleep(backoff_s(number))
        raise AssertionError("unreachable")

    if config.straggler_percentile is None:
        return run
    return with_straggler_policy(
        run, pace=DurationPercentiles(), percentile=config.straggler_percentile, action=config.straggler_action
    )


@contextlib.asynccontextmanager
async def _run_limit(seconds: float) -> AsyncIterator[None]:
    """Interrupt the job when its time is up. No deadline for rollouts: one that is cut short so has not failed."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise RolloutError("timeout", f"The run did not finish within {seconds:g} s. {RESUME_HINT}") from error


class Groups:
    """Holds back the outcomes of a row until all that are to be made of it are in."""

    def __init__(self, keep: WriteOutcome) -> None:
        self._keep = keep
        self._sizes: dict[int, int] = {}
        self._waiting: dict[int, list[Outcome]] = {}

    def of(self, rows: Iterable[Row | NoResult]) -> Iterator[Row | NoResult]:
        """The same rows, having noted how many there are of each: fewer than repeats if some are done already."""
        for task_index, repeats in itertools.groupby(rows, key=lambda row: row.id.task_index):
            group = list(repeats)
            self._sizes[task_index] = len(group)
            yield from group

    async def put(self, outcome: Outcome) -> None:
        task_index = outcome.id.task_index
        group = self._waiting.setdefault(task_index, [])
        group.append(outcome)
        if len(group) == self._sizes[task_index]:
            del self._sizes[task_index]
            await self._let_go(task_index)

    async def close(self) -> None:
        """Let go of what is in when the job ends early, rather than lose it."""
        for task_index in list(self._waiting):
            await self._let_go(task_index)

    async def _let_go(self, task_index: int) -> None:
        for outcome in sorted(self._waiting.pop(task_index), key=lambda outcome: outcome.id):
            await self._keep(outcome)


class RolloutCollectionHelper:
    """Rollouts for programs: a trainer hands in rows and awaits scored records."""

    def __init__(self) -> None:
        self._limiter: AdaptiveLimiter | None = None
        self.found = 0
        """How many rollouts were in the output of `run_from_config` already."""

    @property
    def in_flight(self) -> int:
        """How many rollouts `run_from_config` has under way."""
        return self._limiter.in_flight if self._limiter else 0

    async def run_from_config(
        self,
        config: RolloutCollectionConfig,
        *,
        client: ServerClient | None = None,
        settings: Mapping[str, Any] | None = None,
        report: Report | None = None,
    ) -> RunningMetrics:
        """Make all that `config` asks for and is not in its output file yet. `settings` is the servers' configuration,
        as far as known: it is kept beside the output, without secrets, to notice a change."""
        output, metrics = Path(config.output_jsonl_fpath), RunningMetrics(num_repeats=config.num_repeats)
        _check_apart(dataset_of(config), output)
        if config.resume == "restart":
            archive_output(output)

        def kept(outcome: Outcome) -> None:
            record_outcome(metrics, outcome)
            if report is not None:
                report(outcome)

        with contextlib.closing(RolloutStore(output, kept=kept)) as store:
            done = _look_up_done(store, config, settings or {}, metrics)
            self.found = done.count
            await self._make_missing(config, store, done, client or self.setup_server_client())
        return metrics

    async def _make_missing(
        self, config: RolloutCollectionConfig, store: RolloutStore, done: CompletedIndex, client: ServerClient
    ) -> None:
        if config.agent_name is not None and config.agent_name not in client.local:
            client.url_of(config.agent_name)  # raises if there is none: no row is to blame for that
        window = _window(config, client)
        async with _run_limit(config.run_timeout_s), store.writing() as keep:
            self._limiter = AdaptiveLimiter(window)
            rows, run = read_rows(config, done), run_with(client, config, keep)
            if not config.group_output:
                return await collect(rows, run, keep, self._limiter)
            groups = Groups(keep)
            try:
                await collect(groups.of(rows), run, groups.put, self._limiter)
            finally:
                await groups.close()

    def run_examples(
        self,
        examples: Iterable[dict[str, Any]],
        head_server_config: "BaseServerConfig | None" = None,
        *,
        client: ServerClient | None = None,
        num_samples_in_parallel: int = MAX_PARALLEL,
        rollout_timeout_s: float = 3600.0,
    ) -> "Iterator[asyncio.Future[tuple[dict[str, Any], dict[str, Any]]]]":
        """Futures of (row, result), in the order in which the rollouts finish. A failed one raises RolloutError.

        In an event loop the futures are awaited; in plain code they are settled already, and `result()` is called.
        """
        if num_samples_in_parallel < 1:
            raise ConfigError(f"num_samples_in_parallel is {num_samples_in_parallel}; expected at least 1.")
        caller = client or self.setup_server_client(head_server_config)
        parallel = limit_to_descriptors(num_samples_in_parallel, per_rollout=_descriptors_per_rollout(caller))

        async def run(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            reference = row.get("agent_ref")
            agent = reference.get("name") if isinstance(reference, Mapping) else None
            if not isinstance(agent, str):
                raise RolloutError(
                    "input", f"The row has the `agent_ref` {reference!r:.100}; expected one with a `name`."
                )
            return row, parse_scored(await run_once(caller, agent, row, timeout_s=rollout_timeout_s))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return iter_completed_sync(examples, run, parallel=parallel)  # type: ignore[return-value]
        return iter(CompletionOrderStream(examples, run, parallel=parallel))

    def setup_server_client(self, head_server_config: "BaseServerConfig | None" = None) -> ServerClient:
        """A client of the running servers."""
        return ServerClient.load_from_global_config(head_server_config)


def _window(config: RolloutCollectionConfig, client: ServerClient) -> AimdWindow:
    fixed = config.num_samples_in_parallel
    wanted = config.max_samples_in_parallel if fixed is None else fixed
    most = limit_to_descriptors(wanted, per_rollout=_descriptors_per_rollout(client))
    return AimdWindow(min(MIN_PARALLEL, most) if fixed is None else most, most)


def _descriptors_per_rollout(client: ServerClient) -> int:
    return DESCRIPTORS_PER_LOCAL_ROLLOUT if client.local else DESCRIPTORS_PER_REMOTE_ROLLOUT


def record_outcome(metrics: RunningMetrics, outcome: Outcome) -> None:
    """Count an outcome that is on disk."""
    if isinstance(outcome, Scored):
        metrics.add({**outcome.figures, **outcome.metadata()})
    elif outcome.is_final:
        metrics.add_failure(outcome.cause, code=outcome.code, task_index=outcome.id.task_index)


def _look_up_done(
    store: RolloutStore, config: RolloutCollectionConfig, settings: Mapping[str, Any], metrics: RunningMetrics
) -> CompletedIndex:
    """What is in the output already, if it was made the same way; otherwise ask what to do."""
    options = config.model_dump(include={"agent_name", "responses_create_params", "seed_per_repeat"})
    dataset = dataset_of(config)
    now = make_manifest(dataset, options=options, settings=settings)
    before = read_manifest(store.output)
    changes = [] if before is None or store.is_empty else before.changes_to(now)
    if before is None and not store.is_empty:
        changes = [f"{manifest_path(store.output).name}, which says how they were made, is not there"]
    if changes and config.resume == "ask":
        raise question(store.output, changes)
    done = CompletedIndex(
        num_repeats=config.num_repeats, by_content=bool(changes) or not _all_in_place(store, dataset)
    )
    for row in store.ids():
        done.add(row)
        metrics.num_repeats = max(metrics.num_repeats or 1, row.repeat_index + 1)  # once there were more
    if before is None and done.count == 0 and not store.is_empty:
        raise store.not_ours(1)
    if before is None or changes or done.count == 0:
        write_manifest(store.output, now)
    if done.count:
        logger.info("%d rollouts are in %s already", done.count, store.output)
        for line in store.records():
            metrics.add(numeric_fields(orjson.loads(line)))
    return done


def _all_in_place(store: RolloutStore, dataset: Path) -> bool:
    """Whether every record is of the row that stands where its own did. After `continue` with another input some are
    not, and no manifest tells."""
    hashes = array("Q")
    if not store.is_empty:
        with dataset.open("rb") as lines:
            hashes.extend(int(hash_row(line), 16) for raw in lines if (line := raw.strip()))
    return all(row.task_index < len(hashes) and hashes[row.task_index] == int(row.row_hash, 16) for row in store.ids())


def _check_apart(dataset: Path, output: Path) -> None:
    """Refuse a dataset that we would write into."""
    for file in (output, failures_path(output), manifest_path(output), metrics_path(output)):
        if file.exists() and file.samefile(dataset):
            raise ConfigError(f"{file}, which is to be written, is the dataset. Choose another output_jsonl_fpath.")


def metrics_path(output: Path) -> Path:
    """Where the figures of a run are kept: beside the output."""
    return output.with_name(f"{output.stem}_metrics.json")


def archive_output(output: Path) -> None:
    """Give the files of an earlier run other names, so that nothing of them is lost. Not while it still goes on."""
    files = [
        path for path in (output, failures_path(output), manifest_path(output), metrics_path(output)) if path.exists()
    ]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (f".{stamp}{ending}" for ending in itertools.chain([""], map("-{}".format, itertools.count(2))))
    name = next(name for name in names if not any(_renamed(path, name).exists() for path in files))
    with contextlib.closing(JsonlFile(output)) if output.exists() else contextlib.nullcontext():
        for path in files:
            path.rename(_renamed(path, name))


def _renamed(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.stem}{ending}{path.suffix}")


@contextlib.contextmanager
def record_or_replay(
    client: ServerClient, config: RolloutCollectionConfig, settings: Mapping[str, Any]
) -> Iterator[None]:
    """Record or replay the calls of a client that holds the servers itself, if `config` asks for it."""
    if config.record is None and config.replay is None:
        yield
        return
    if config.record is not None and config.replay is not None:
        raise ConfigError("Both record and replay are given. Expected one of them.")
    if not client.local:
        raise ConfigError("Traffic can be recorded and replayed only by a command that holds the servers itself.")
    models = frozenset(
        name for name, block in settings.items() if isinstance(block, dict) and "responses_api_models" in block
    )
    goes_on = config.resume != "restart" and manifest_path(Path(config.output_jsonl_fpath)).exists()
    tap: Recorder | Replayer = (
        Recorder(Path(config.record), models, goes_on=goes_on)
        if config.record
        else Replayer(Path(config.replay or ""), models)
    )
    client.tap = tap
    try:
        yield
    finally:
        client.tap = None
        tap.close()
