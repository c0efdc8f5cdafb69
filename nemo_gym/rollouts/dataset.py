"""What a collection is told, and the rollouts it asks for: read from the dataset one after the other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field

from nemo_gym.common.paths import find
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.store import CompletedIndex
from nemo_gym.rollouts.stragglers import Action
from nemo_gym.rollouts.types import NoResult, Row, RowId, hash_row, raw_json_or_text

WEEK_S = 7 * 86400.0
MIN_PARALLEL = 8
MAX_PARALLEL = 4096
"""Between these the number in flight adapts to the endpoint, unless told otherwise."""
_LONG_NUMBER = re.compile(rb"\d{19}")
"""What may not fit into 64 bits, where the fast decoder would round it."""


class RolloutCollectionConfig(CommandConfig):
    """Run an agent on every row of a dataset and write the scored rollouts.

    With config_paths, this command starts the servers itself, unless `ng_run` is running with the same configuration.
    Without config_paths, it uses the servers of the running `ng_run`. After an interruption, run the same command
    again to complete what is missing.
    """

    agent_name: str | None = None
    """Name of the agent in the config. If not set, every row must name its agent in `agent_ref`."""

    input_jsonl_fpath: str
    """The dataset: one JSON object per line, with `responses_create_params` and the fields its environment needs."""

    output_jsonl_fpath: str
    """Scored rollouts are appended to this file. Failed attempts go to `<name>_failures.jsonl` beside it."""

    limit: int | None = Field(default=None, ge=0)
    """Use only the first N rows of the dataset. 0 means all."""

    num_repeats: Annotated[int, BeforeValidator(lambda given: 1 if given is None else given)] = Field(default=1, ge=1)
    """Number of rollouts per row. Repeats of a row are consecutive: abc becomes aabbcc."""

    num_samples_in_parallel: int | None = Field(default=None, ge=1)
    """Number of rollouts in flight. By default it adapts to the endpoint."""

    max_samples_in_parallel: int = Field(default=MAX_PARALLEL, ge=1)
    """Upper bound for adaptive concurrency. Each rollout in flight needs an open file."""

    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Fields that override those of every row, such as +responses_create_params.temperature=0.7."""

    seed_per_repeat: int | None = None
    """Base sampling seed. Repeat i is sent with `metadata.seed` set to this number plus i."""

    max_attempts: int = Field(default=3, ge=1)
    """Maximum number of attempts per rollout if the failure is retryable."""

    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Time limit for one attempt at a rollout, in seconds."""

    run_timeout_s: float = Field(default=WEEK_S, gt=0)
    """Time limit for the whole command, in seconds. Run it again to complete what is missing."""

    tolerated_failures: int = Field(default=0, ge=0)
    """Exit with code 0 if at most this many rollouts have no result."""

    straggler_percentile: float | None = Field(default=None, gt=0, lt=100)
    """Treat a rollout that takes longer than this percentile of the others as a straggler."""

    straggler_action: Action = "hedge"
    """For stragglers: `hedge` runs the row a second time and keeps the first result, `give_up` cancels it."""

    group_output: bool = False
    """Write the repeats of a row together, when all of them are complete."""

    record: str | None = None
    """Record all requests to models, judges and tools, with their responses, in this new folder."""

    replay: str | None = None
    """Replay a folder written with +record: models and judges answer from it; the first difference is an error."""

    resume: Literal["ask", "continue", "restart"] = "ask"
    """If the output contains rollouts from a different input or configuration: `ask` stops with an error, `continue`
    keeps them, `restart` moves them aside."""


def dataset_of(config: RolloutCollectionConfig) -> Path:
    """The file that the rows are in."""
    path = find(config.input_jsonl_fpath, what="dataset")
    if not path.is_file():
        raise ConfigError(f"{path} is not a file. A dataset is read more than once, so no pipe or folder will do.")
    return path


def read_rows(config: RolloutCollectionConfig, done: CompletedIndex | None = None) -> Iterator[Row | NoResult]:
    """The rollouts to make, one after the other, without those done. A line that is no row is an outcome already."""
    with dataset_of(config).open("rb") as lines:
        index = -1
        for raw in lines:
            line = raw.strip()
            if not line:
                continue
            index += 1
            if config.limit and index >= config.limit:
                return
            row_hash = hash_row(line)
            for repeat in range(config.num_repeats):
                row_id = RowId(index, repeat, row_hash)
                if done is None or not done.take(row_id):
                    yield _row(line, row_id, config)


def count_rollouts(config: RolloutCollectionConfig) -> int:
    """How many rollouts the dataset asks for."""
    with dataset_of(config).open("rb") as lines:
        rows = sum(1 for line in lines if line.strip())
    return (min(rows, config.limit) if config.limit else rows) * config.num_repeats


def _row(line: bytes, row_id: RowId, config: RolloutCollectionConfig) -> Row | NoResult:
    is_as_it_is = not config.responses_create_params and config.seed_per_repeat is None
    if config.agent_name is not None and is_as_it_is and line.startswith(b"{"):
        return Row(row_id, config.agent_name, line)
    try:
        data = _object(_decoded(line), "The row")
        agent = config.agent_name or _object(data.get("agent_ref"), "`agent_ref`").get("name")
        if not isinstance(agent, str) or not agent:
            raise ValueError("No agent: the row has no `agent_ref` with a `name`, and the command no +agent_name")
        return Row(row_id, agent, line if is_as_it_is else encode(_changed(data, row_id, config)))
    except (ValueError, TypeError, RecursionError) as error:
        message = f"Row {row_id.task_index} of {config.input_jsonl_fpath} cannot be run. {error}."
        return NoResult(row_id, "input", message, row=raw_json_or_text(line))


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line) if _LONG_NUMBER.search(line) else orjson.loads(line)
    except ValueError as error:
        raise ValueError(f"It is not JSON: {error}") from error


def _changed(data: JsonObject, row_id: RowId, config: RolloutCollectionConfig) -> JsonObject:
    params = _object(data.get("responses_create_params"), "`responses_create_params`")
    params = {**params, **config.responses_create_params}
    if config.seed_per_repeat is not None:
        seed = str(config.seed_per_repeat + row_id.repeat_index)
        params["metadata"] = {**_object(params.get("metadata"), "`metadata`"), "seed": seed}
    return {**data, "responses_create_params": params}


def _object(value: Any, what: str) -> JsonObject:
    if value is None and what != "The row":
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is a {type(value).__name__}; expected a JSON object")
    return value
