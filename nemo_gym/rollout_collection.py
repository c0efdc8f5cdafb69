"""Have an agent answer every row of a dataset and write down what came of each: rows stream in, records stream out."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import Field

from nemo_gym.client import Answer, ServerClient
from nemo_gym.config_types import CommandConfig
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.lazy import lazily
from nemo_gym.metrics import RunningMetrics
from nemo_gym.paths import find
from nemo_gym.rollout_types import NoResult, Outcome, Row, Scored

if TYPE_CHECKING:
    from nemo_gym.config_types import BaseServerConfig

logger = logging.getLogger(__name__)

__getattr__ = lazily(__name__, {"collect_rollouts": "nemo_gym.cli.rollouts:collect_rollouts"})

DEFAULT_PARALLEL = 1024
Keep = Callable[[Outcome], None]
Run = Callable[[Row], Awaitable[Outcome]]


class RolloutCollectionConfig(CommandConfig):
    """Have an agent answer every row of a dataset and write down the scored rollouts.

    With config_paths the servers are held by this command itself, unless `ng_run` is up with the same configuration;
    without, the servers of a running `ng_run` are used.
    """

    agent_name: str | None = None
    """The agent that answers, by its name in the config. Without it every row must name one in its `agent_ref`."""

    input_jsonl_fpath: str
    """The dataset: a JSON object a line, with `responses_create_params` and what its environment needs."""

    output_jsonl_fpath: str
    """Where scored rollouts are added. Failed ones go to a file beside it, `<name>_failures.jsonl`."""

    limit: int | None = Field(default=None, ge=0)
    """Take only so many rows from the start of the dataset. 0 means all."""

    num_repeats: int = Field(default=1, ge=1)
    """How many rollouts to make of each row: abc becomes aabbcc."""

    num_samples_in_parallel: int = Field(default=DEFAULT_PARALLEL, ge=1)
    """How many rollouts may be in flight at once."""

    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Fields that replace those of every row, such as +responses_create_params.temperature=0.7"""


def read_rows(config: RolloutCollectionConfig) -> Iterator[Row | NoResult]:
    """The rollouts to make, one after the other. A line that is no row is an outcome already."""
    with find(config.input_jsonl_fpath, what="dataset").open("rb") as lines:
        index = -1
        for line in lines:
            if not line.strip():
                continue
            index += 1
            if config.limit and index >= config.limit:
                return
            for repeat in range(config.num_repeats):
                yield _row(line.strip(), index, repeat, config)


def count_rollouts(config: RolloutCollectionConfig) -> int:
    """How many rollouts `read_rows` will ask for."""
    with find(config.input_jsonl_fpath, what="dataset").open("rb") as lines:
        rows = sum(1 for line in lines if line.strip())
    return (min(rows, config.limit) if config.limit else rows) * config.num_repeats


def _row(line: bytes, index: int, repeat: int, config: RolloutCollectionConfig) -> Row | NoResult:
    if config.agent_name is not None and not config.responses_create_params and line.startswith(b"{"):
        return Row(index, repeat, config.agent_name, line)
    try:
        data = orjson.loads(line)
        if not isinstance(data, dict):
            raise ValueError(f"found a {type(data).__name__}")
    except ValueError as error:
        message = f"Row {index} of {config.input_jsonl_fpath} is not a JSON object: {error}."
        return NoResult(index, repeat, "input", message, row=line.decode(errors="replace")[:2000])
    reference = data.get("agent_ref")
    agent = config.agent_name or (reference.get("name") if isinstance(reference, dict) else None)
    if agent is None:
        message = "No agent: the row has no `agent_ref` with a `name`, and the command no +agent_name."
        return NoResult(index, repeat, "input", message, row=data)
    if config.responses_create_params:
        data["responses_create_params"] = {
            **(data.get("responses_create_params") or {}),
            **config.responses_create_params,
        }
        line = orjson.dumps(data)
    return Row(index, repeat, agent, line)


async def collect(rows: Iterable[Row | NoResult], run: Run, keep: Keep, *, parallel: int) -> None:
    """Run every row, at most `parallel` at once, and keep each outcome as it lands."""
    todo = iter(rows)

    async def worker() -> None:
        for row in todo:
            keep(row if isinstance(row, NoResult) else await run(row))

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(parallel):
                workers.create_task(worker())
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from several


async def run_row(client: ServerClient, row: Row) -> Outcome:
    """One rollout. Whatever goes wrong is an outcome, so one row cannot end the others."""
    try:
        answer = await client.call(row.agent, "/run", row.body, answer=Answer)
        record = answer.content()
        reward = orjson.loads(record).get("reward")
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise RolloutError("verifier", f"The reward is {reward!r}; expected a finite number.", server=row.agent)
    except RolloutError as error:
        return _failed(row, error)
    except ConfigError:
        raise
    except Exception as error:
        logger.exception("rollout of row %d failed", row.task_index)
        return _failed(row, RolloutError("internal", repr(error)))
    return Scored(row, record)


def _failed(row: Row, error: RolloutError) -> NoResult:
    try:
        data = orjson.loads(row.body)
    except ValueError:
        data = row.body.decode(errors="replace")[:2000]
    return NoResult(row.task_index, row.repeat_index, error.cause, str(error), error.server, data)


def failures_path(output: Path) -> Path:
    """Where failed attempts go: beside the output."""
    return output.with_name(f"{output.stem}_failures.jsonl")


@contextlib.contextmanager
def kept_in(output: Path, metrics: RunningMetrics) -> Iterator[Keep]:
    """Add outcomes to the output and its `_failures` neighbour, whole lines, each on disk before it is counted."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:
        scored = files.enter_context(output.open("ab", buffering=0))
        failed = None

        def keep(outcome: Outcome) -> None:
            nonlocal failed
            if isinstance(outcome, Scored):
                scored.write(outcome.line())
                metrics.add(orjson.loads(outcome.record))
                return
            if failed is None:
                failed = files.enter_context(failures_path(output).open("ab", buffering=0))
            failed.write(outcome.line())
            metrics.add_failure(outcome.cause)

        yield keep


class RolloutCollectionHelper:
    """Rollouts for programs: a trainer hands in rows and awaits scored records."""

    async def run_from_config(
        self, config: RolloutCollectionConfig, *, client: ServerClient | None = None, report: Keep | None = None
    ) -> RunningMetrics:
        """Collect all that `config` asks for into its output file."""
        metrics = RunningMetrics()
        caller = client or self.setup_server_client()
        with kept_in(Path(config.output_jsonl_fpath), metrics) as keep:

            def keep_and_report(outcome: Outcome) -> None:
                keep(outcome)
                if report is not None:
                    report(outcome)

            await collect(
                read_rows(config),
                lambda row: run_row(caller, row),
                keep_and_report,
                parallel=config.num_samples_in_parallel,
            )
        return metrics

    def run_examples(
        self, examples: Iterable[dict[str, Any]], head_server_config: "BaseServerConfig | None" = None
    ) -> Iterator[Awaitable[tuple[dict[str, Any], dict[str, Any]]]]:
        """Awaitables of (row, result), in the order in which the rollouts finish. A failed one raises RolloutError."""
        client = self.setup_server_client(head_server_config)

        async def run(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            answer = await client.call(row["agent_ref"]["name"], "/run", row, answer=Answer)
            return row, orjson.loads(answer.content())

        return asyncio.as_completed([run(row) for row in examples])

    def setup_server_client(self, head_server_config: "BaseServerConfig | None" = None) -> ServerClient:
        """A client of the running servers."""
        return ServerClient.load_from_global_config(head_server_config)
