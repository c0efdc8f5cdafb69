"""The rows of a dataset, read one after the other, and the agents that answer them. A collection reads the file twice:
once to fingerprint it, once to run it."""

import hashlib
import itertools
import json
import logging
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.common.paths import find, nearest
from nemo_gym.common.words import json_type
from nemo_gym.config.keys import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, blocks_in
from nemo_gym.config.validation import validate
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.prompts import apply_prompt_to_row, load_prompt_config
from nemo_gym.llm_api.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.rollouts.config import OTHER_AGENTS, RolloutCollectionConfig
from nemo_gym.rollouts.store import CompletedIndex
from nemo_gym.rollouts.types import NO_DATASET, NoResult, Row, RowId, hash_row, raw_json_or_text

logger = logging.getLogger(__name__)

READ_BYTES = 2**18
"""How much of a dataset is read at once."""
_LONG_NUMBER = re.compile(rb"\d{19}")
"""What may not fit into 64 bits, where the fast decoder would round it."""


class DatasetFingerprint(NamedTuple):
    """What a run must know of its dataset before the first row."""

    sha256: str
    rows: int
    row_hashes: "array[int]"
    """The hash of each row, if asked for."""

    def num_rollouts(self, config: RolloutCollectionConfig) -> int:
        """How many rollouts `config` asks for."""
        if isinstance(config.num_repeats, dict):
            return _count_rollouts(config, config.num_repeats)
        return (min(self.rows, config.limit) if config.limit else self.rows) * config.num_repeats


_OTHER_FORMATS = {
    b"\x1f\x8b": "is compressed. Unpack it first, with gunzip.",
    b"\x28\xb5\x2f\xfd": "is compressed. Unpack it first, with unzstd.",
    b"PAR1": "is a Parquet file. Convert it to rows with ng_import.",
    b"\xef\xbb\xbf": "starts with a byte order mark. Save it as UTF-8 without BOM.",
    b"\xff\xfe": "is UTF-16 text. Save it as UTF-8 without BOM.",
}


def dataset_path(config: RolloutCollectionConfig) -> Path:
    """The file that the rows are in."""
    path = find(config.input_jsonl_fpath, what="dataset")
    if not path.is_file():
        raise ConfigError(f"{path} is not a file. A dataset is read twice, so it cannot be a pipe or a directory.")
    with path.open("rb") as file:
        start = file.read(4)
    for signature, remedy in _OTHER_FORMATS.items():
        if start.startswith(signature):
            raise ConfigError(f"{path} {remedy}")
    return path


def fingerprint_dataset(path: Path, *, with_row_hashes: bool) -> DatasetFingerprint:
    """Read the dataset once."""
    digest, rows, row_hashes = hashlib.sha256(), 0, array("Q")
    with path.open("rb", buffering=READ_BYTES) as file:
        while lines := file.readlines(READ_BYTES):
            digest.update(b"".join(lines))
            found = [line for raw in lines if (line := raw.strip())]
            rows += len(found)
            if with_row_hashes:
                row_hashes.extend([int(hash_row(line), 16) for line in found])
    return DatasetFingerprint(digest.hexdigest(), rows, row_hashes)


def check_overrides(config: RolloutCollectionConfig) -> None:
    """Raise if `responses_create_params` has a value that no request may have: every row would fail."""
    what = "responses_create_params"
    request = {"input": [], **config.responses_create_params}
    validate(NeMoGymResponseCreateParamsNonStreaming, request, what=what, prefix=(what,))


def read_rows(
    config: RolloutCollectionConfig,
    done: CompletedIndex | None = None,
    *,
    with_done: bool = False,
    num_rows: int | None = None,
) -> Iterator[Row | NoResult]:
    """The rollouts that are not done yet, or `with_done` all of them. A line that is not a valid row is a NoResult
    already. Rows beyond `num_rows`, which were added since these were counted, are left out."""
    is_unchanged = not config.changes_rows
    agent, limit, repeats = config.agent_name if is_unchanged else None, config.limit, config.max_repeats
    is_same_for_all = not isinstance(config.num_repeats, dict)
    numbering = None if done is None else done.numbering()
    with dataset_path(config).open("rb", buffering=READ_BYTES) as lines:
        index = -1
        for number, raw in enumerate(lines, 1):
            line = raw.strip()
            if not line:
                continue
            index += 1
            if (limit and index >= limit) or index == num_rows:
                return
            row_hash = hash_row(line)
            task_index = index if numbering is None else numbering.task_index(row_hash, index)
            for repeat in range(repeats if is_same_for_all else config.repeats_of(_agent_of(line, config))):
                row_id = RowId(task_index, repeat, row_hash)
                if done is not None and not with_done and done.contains(row_id):
                    continue
                if agent is not None and line.startswith(b"{"):
                    yield Row(row_id, agent, line)
                else:
                    yield _make_row(line, row_id, config, number=number, is_unchanged=is_unchanged)


def trainer_row(row: object) -> Row:
    """A row that a trainer brings, as its agent gets it. Raises RolloutError if it cannot be sent."""
    if not isinstance(row, Mapping):
        raise RolloutError("input", f"The row is {row!r:.100}; expected a dict.", retryable=False)
    reference = row.get(AGENT_REF_KEY_NAME)
    agent = reference.get("name") if isinstance(reference, Mapping) else None
    if not isinstance(agent, str):
        message = f"The row has the `agent_ref` {reference!r:.100}; expected one with a `name`."
        raise RolloutError("input", message, retryable=False)
    try:
        return Row(NO_DATASET, agent, encode(row))
    except (ValueError, TypeError, RecursionError) as error:
        message = f"The row cannot be written as JSON: {error}. Expected texts, finite numbers, lists and dicts."
        raise RolloutError("input", message, retryable=False) from error


def _agent_of(line: bytes, config: RolloutCollectionConfig) -> str:
    """The agent of a row; an empty name for a row that cannot be run."""
    row = _make_row(line, RowId(0, 0, ""), config, number=0, is_unchanged=True)
    return row.agent if isinstance(row, Row) else OTHER_AGENTS


def _count_rollouts(config: RolloutCollectionConfig, repeats: Mapping[str, int]) -> int:
    """Count them by reading the rows, and name the numbers that are for no row."""
    counts = Counter(row.agent if isinstance(row, Row) else OTHER_AGENTS for row in read_rows(config))
    for agent in repeats.keys() - counts.keys() - {OTHER_AGENTS}:
        logger.warning("num_repeats.%s has no effect: no row is for that agent", agent)
    return counts.total()


def write_materialized_inputs(config: RolloutCollectionConfig, done: CompletedIndex, path: Path) -> None:
    """The rows as they are sent to their agents, one rollout a line, with the indices that records have."""
    with atomic_write(path) as file:
        for row in read_rows(config, done, with_done=True):
            if isinstance(row, Row):
                indices = {TASK_INDEX_KEY_NAME: row.id.task_index, ROLLOUT_INDEX_KEY_NAME: row.id.repeat_index}
                fields = {**indices, AGENT_REF_KEY_NAME: {"name": row.agent}, **_decode_row(row.body)}
                file.write(encode(fields) + b"\n")


def _make_row(
    line: bytes, row_id: RowId, config: RolloutCollectionConfig, *, number: int, is_unchanged: bool
) -> Row | NoResult:
    try:
        data = _expect_object(_decode_row(line), "The row")
        agent = config.agent_name or _expect_object(data.get("agent_ref"), "`agent_ref`").get("name")
        if not isinstance(agent, str) or not agent:
            raise ValueError("The row has no `agent_ref` with a `name`, and no agent_name is given")
        return Row(row_id, agent, line if is_unchanged else encode(_with_overrides(data, row_id, config)))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        message = f"{config.input_jsonl_fpath}:{number} cannot be run. {error}."
        return NoResult(row_id, "input", message, row=raw_json_or_text(line))


def _decode_row(line: bytes) -> Any:
    try:
        return json.loads(line) if _LONG_NUMBER.search(line) else orjson.loads(line)
    except ValueError as error:
        raise ValueError(f"It is not JSON: {error}") from error


def _with_overrides(data: JsonObject, row_id: RowId, config: RolloutCollectionConfig) -> JsonObject:
    if config.prompt_config is not None:
        data = apply_prompt_to_row(data, load_prompt_config(config.prompt_config))
    params = _expect_object(data.get("responses_create_params"), "`responses_create_params`")
    params = {**params, **config.responses_create_params}
    metadata = _expect_object(params.get("metadata"), "`metadata`")
    if config.seed_per_repeat is not None:
        params["metadata"] = metadata = {**metadata, "seed": str(config.seed_per_repeat + row_id.repeat_index)}
    if config.num_repeats_add_seed:
        extra = _expect_object(orjson.loads(metadata.get("extra_body") or b"{}"), "`metadata.extra_body`")
        seeded = encode({**extra, "seed": row_id.repeat_index}).decode()
        params["metadata"] = {**metadata, "extra_body": seeded}
    return {**data, "responses_create_params": params}


def _expect_object(value: Any, what: str) -> JsonObject:
    if value is None and what != "The row":
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {json_type(value)}; expected a JSON object")
    return value


PEEKED_ROWS = 20


def agents_of(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """The agents of a configuration, each with the environment it acts in."""
    blocks = (block for block in blocks_in(settings) if block.server_type == "responses_api_agents")
    return {block.name: _environment(block.config) for block in blocks}


def check_agent(name: str, settings: Mapping[str, Any]) -> None:
    """Raise unless `name` is an agent, with the agents there are."""
    agents = agents_of(settings)
    if agents and name not in agents:
        listed = (f"{agent} (of {environment})" if environment else agent for agent, environment in agents.items())
        raise ConfigError(f"No agent is called '{name}'. Agents: {', '.join(listed)}.{nearest(name, agents)}")


def check_rows_name_agents(dataset: Path, settings: Mapping[str, Any]) -> None:
    """Raise if no agent is given and the rows do not name theirs either."""
    with dataset.open("rb") as lines:
        rows = [line for line in itertools.islice(lines, PEEKED_ROWS) if line.startswith(b"{")]
    if rows and not any(b'"agent_ref"' in row for row in rows):
        listed = ", ".join(agents_of(settings))
        raise ConfigError(
            f"The rows of {dataset} do not name their agent (`agent_ref`). Pass +agent_name=<agent>"
            f"{f'; agents: {listed}' if listed else ''}."
        )


def _environment(config: Any) -> str | None:
    reference = config.get("resources_server") if isinstance(config, Mapping) else None
    return reference.get("name") if isinstance(reference, Mapping) else None
