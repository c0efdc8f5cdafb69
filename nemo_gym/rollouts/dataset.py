"""The rows of a dataset, and the agents that answer them.

A collection reads the file once to fingerprint it, and then the rows that it runs. A resumed one notes where each row
is, so that it does not read again those that are done."""

import hashlib
import itertools
import json
import logging
import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson
from msgspec.structs import replace

from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.common.paths import find, nearest
from nemo_gym.common.words import json_type
from nemo_gym.config.keys import (
    AGENT_REF_KEY_NAME,
    ENVIRONMENT_SERVER_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
    blocks_in,
)
from nemo_gym.config.validation import validate
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.prompts import apply_prompt_to_row, load_prompt_config
from nemo_gym.llm_api.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.rollouts.config import OTHER_AGENTS, RolloutCollectionConfig
from nemo_gym.rollouts.store import CompletedIndex
from nemo_gym.rollouts.types import NO_DATASET, Outcome, Row, agent_of, hash_row

logger = logging.getLogger(__name__)

READ_BYTES = 2**18
"""Bytes of a dataset that are read at once."""
_LONG_NUMBER = re.compile(rb"\d{19}")
"""Matches numbers that may not fit into 64 bits, which the fast decoder would round."""


class DatasetFingerprint(NamedTuple):
    """The content of a dataset in short, known before the first row runs."""

    sha256: str
    rows: int
    row_hashes: "array[int]"
    """The hash of each row, and where its line begins. Both are empty unless asked for."""
    offsets: "array[int]"
    blank_lines: "array[int]"
    """For each blank line, how many rows are before it."""

    def num_rollouts(self, config: RolloutCollectionConfig) -> int:
        """Return the number of rollouts that `config` asks for."""
        if isinstance(config.num_repeats, dict):
            return _count_rollouts(config, config.num_repeats)
        return (min(self.rows, config.limit) if config.limit else self.rows) * config.num_repeats


MAX_TOGETHER = 64
"""The most repeats of a row that go to one worker together. More are spread over all workers."""
_OTHER_FORMATS = {
    b"\x1f\x8b": "is compressed. Unpack it first, with gunzip.",
    b"\x28\xb5\x2f\xfd": "is compressed. Unpack it first, with unzstd.",
    b"PAR1": "is a Parquet file. Convert it to rows with ng_import.",
    b"\xef\xbb\xbf": "starts with a byte order mark. Save it as UTF-8 without BOM.",
    b"\xff\xfe": "is UTF-16 text. Save it as UTF-8 without BOM.",
}


_TABLES = (".csv", ".tsv", ".xlsx")
"""Suffixes of tables."""


def dataset_path(config: RolloutCollectionConfig) -> Path:
    """The file that the rows are in."""
    path = find(config.input_jsonl_fpath, what="dataset")
    if not path.is_file():
        raise ConfigError(f"{path} is not a file. A dataset is read twice, so it cannot be a pipe or a directory.")
    if path.suffix in _TABLES:
        raise ConfigError(f"{path} is not JSON Lines. Convert it to rows with ng_import +input_fpath={path}")
    with path.open("rb") as file:
        start = file.read(4)
    for signature, remedy in _OTHER_FORMATS.items():
        if start.startswith(signature):
            raise ConfigError(f"{path} {remedy}")
    return path


def fingerprint_dataset(path: Path, *, with_index: bool) -> DatasetFingerprint:
    """Read the dataset once. With an index, rows can be found in it without reading those before them."""
    digest, rows, offset = hashlib.sha256(), 0, 0
    row_hashes, offsets, blank_lines = array("Q"), array("Q"), array("Q")
    with path.open("rb", buffering=READ_BYTES) as file:
        while lines := file.readlines(READ_BYTES):
            digest.update(b"".join(lines))
            if not with_index:
                rows += sum(1 for line in lines if not line.isspace())
                continue
            for line in lines:
                if row := line.strip():
                    row_hashes.append(int(hash_row(row), 16))
                    offsets.append(offset)
                    rows += 1
                else:
                    blank_lines.append(rows)
                offset += len(line)
    return DatasetFingerprint(digest.hexdigest(), rows, row_hashes, offsets, blank_lines)


def check_overrides(config: RolloutCollectionConfig) -> None:
    """Raise if `responses_create_params` has a value that no request may have: every row would fail."""
    what = "responses_create_params"
    request = {"input": [], **config.responses_create_params}
    validate(NeMoGymResponseCreateParamsNonStreaming, request, what=what, prefix=(what,))


def read_rows(
    config: RolloutCollectionConfig,
    done: CompletedIndex | None = None,
    dataset: DatasetFingerprint | None = None,
    *,
    with_done: bool = False,
) -> Iterator[Row | Outcome]:
    """The rollouts that are not done yet, or `with_done` all of them. A line that is not a valid row is an Outcome
    already. Rows that were added since the dataset was fingerprinted are left out, and those that were changed."""
    is_unchanged = not config.changes_rows
    agent, repeats = config.agent_name if is_unchanged else None, config.max_repeats
    is_same_for_all, timeout_s = not isinstance(config.num_repeats, dict), config.rollout_timeout_s
    numbering = None if done is None else done.numbering()
    with dataset_path(config).open("rb", buffering=READ_BYTES) as file:
        stored = _indexed_lines(file, dataset) if dataset is not None and dataset.offsets else _all_lines(file)
        for index, number, row_hash, read in stored:
            if (config.limit and index >= config.limit) or (dataset is not None and index >= dataset.rows):
                return
            if not is_same_for_all:
                repeats = config.repeats_of(_agent_of(read(), config))
            task_index = index if numbering is None else numbering.task_index(row_hash, index)
            missing: Iterable[int] = range(repeats)
            if done is not None and not with_done:
                missing = [repeat for repeat in missing if not done.contains((task_index, repeat, row_hash))]
            line = read() if missing else b""
            group = f"{task_index}" if 1 < repeats <= MAX_TOGETHER else ""
            for repeat in missing if line else ():
                row = Row(task_index, repeat, row_hash, agent or "", line, timeout_s, group=group)
                if agent is not None and line.startswith(b"{"):
                    yield row
                else:
                    yield _make_row(row, config, number=number, is_unchanged=is_unchanged)


_Line = tuple[int, int, str, Callable[[], bytes]]
"""A row's index, the number of its line from 1, its hash, and the function that returns the line: empty if the row is
no longer there."""


def _all_lines(file: BinaryIO) -> Iterator[_Line]:
    index = 0
    for number, raw in enumerate(file, 1):
        if line := raw.strip():
            yield index, number, hash_row(line), partial(bytes, line)
            index += 1


def _indexed_lines(file: BinaryIO, dataset: DatasetFingerprint) -> Iterator[_Line]:
    """The lines of an index. Only those are read that are asked for."""

    def line_at(offset: int, row_hash: str) -> bytes:
        file.seek(offset)
        line = file.readline().strip()
        return line if hash_row(line) == row_hash else b""

    for index, offset in enumerate(dataset.offsets):
        number = index + 1 + bisect_right(dataset.blank_lines, index)
        row_hash = f"{dataset.row_hashes[index]:016x}"
        yield index, number, row_hash, partial(line_at, offset, row_hash)


def trainer_row(row: object, *, timeout_s: float = 3600.0, group: str = "") -> Row:
    """A row that a trainer brings, as its agent gets it. Raises RolloutError if it cannot be sent."""
    if not isinstance(row, Mapping):
        raise RolloutError("input", f"The row is {row!r:.100}; expected a dict.", retryable=False)
    reference = row.get(AGENT_REF_KEY_NAME)
    named = reference.get("name") if isinstance(reference, Mapping) else None
    agent = row.get(ENVIRONMENT_SERVER_KEY_NAME, named)
    if not isinstance(agent, str):
        message = f"The row has the `agent_ref` {reference!r:.100}; expected one with a `name`."
        raise RolloutError("input", message, retryable=False)
    try:
        return Row(NO_DATASET, 0, "", agent, encode(row), float(timeout_s), group=group)
    except (ValueError, TypeError, RecursionError) as error:
        message = f"The row cannot be written as JSON: {error}. Expected texts, finite numbers, lists and dicts."
        raise RolloutError("input", message, retryable=False) from error


def _agent_of(line: bytes, config: RolloutCollectionConfig) -> str:
    """The agent of a row; an empty name for a row that cannot be run."""
    row = _make_row(Row(0, 0, "", "", line), config, number=0, is_unchanged=True)
    if isinstance(row, Outcome):
        return OTHER_AGENTS
    return config.agent_name or agent_of(_decode_row(line)) or row.agent


def _count_rollouts(config: RolloutCollectionConfig, repeats: Mapping[str, int]) -> int:
    """Count the rollouts by reading the rows. Warn about agents with a number of repeats but no rows."""
    counts = Counter(row.agent if isinstance(row, Row) else OTHER_AGENTS for row in read_rows(config))
    for agent in repeats.keys() - counts.keys() - {OTHER_AGENTS}:
        logger.warning("num_repeats.%s has no effect: no row is for that agent", agent)
    return counts.total()


def write_materialized_inputs(config: RolloutCollectionConfig, done: CompletedIndex, path: Path) -> None:
    """The rows as they are sent to their agents, one rollout a line, with the indices that records have."""
    with atomic_write(path) as file:
        for row in read_rows(config, done, with_done=True):
            if isinstance(row, Row):
                indices = {TASK_INDEX_KEY_NAME: row.task_index, ROLLOUT_INDEX_KEY_NAME: row.repeat_index}
                fields = {**indices, AGENT_REF_KEY_NAME: {"name": row.agent}, **_decode_row(row.body)}
                file.write(encode(fields) + b"\n")


def _make_row(row: Row, config: RolloutCollectionConfig, *, number: int, is_unchanged: bool) -> Row | Outcome:
    """The row with its agent, and as it is sent to it; an Outcome if it cannot be run."""
    try:
        data = _expect_object(_decode_row(row.body), "The row")
        agent = config.agent_name or data.get(ENVIRONMENT_SERVER_KEY_NAME)
        agent = agent or _expect_object(data.get("agent_ref"), "`agent_ref`").get("name")
        if not isinstance(agent, str) or not agent:
            raise ValueError("The row has no `agent_ref` with a `name`, and no agent_name is given")
        body = row.body if is_unchanged else encode(_with_overrides(data, row.repeat_index, config))
        return replace(row, agent=agent, body=body)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        message = f"{config.input_jsonl_fpath}:{number} cannot be run. {error}."
        return Outcome.failed(row, RolloutError("input", message))


def _decode_row(line: bytes) -> Any:
    try:
        return json.loads(line) if _LONG_NUMBER.search(line) else orjson.loads(line)
    except ValueError as error:
        raise ValueError(f"It is not JSON: {error}") from error


def _with_overrides(data: JsonObject, repeat_index: int, config: RolloutCollectionConfig) -> JsonObject:
    if config.prompt_config is not None:
        data = apply_prompt_to_row(data, load_prompt_config(config.prompt_config))
    params = _expect_object(data.get("responses_create_params"), "`responses_create_params`")
    params = {**params, **config.responses_create_params}
    metadata = _expect_object(params.get("metadata"), "`metadata`")
    if config.seed_per_repeat is not None:
        params["metadata"] = metadata = {**metadata, "seed": str(config.seed_per_repeat + repeat_index)}
    if config.num_repeats_add_seed:
        extra = _expect_object(orjson.loads(metadata.get("extra_body") or b"{}"), "`metadata.extra_body`")
        seeded = encode({**extra, "seed": repeat_index}).decode()
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
    names = f'"{AGENT_REF_KEY_NAME}"'.encode(), f'"{ENVIRONMENT_SERVER_KEY_NAME}"'.encode()
    if rows and not any(name in row for row in rows for name in names):
        listed = ", ".join(agents_of(settings))
        raise ConfigError(
            f"The rows of {dataset} do not name their agent (`agent_ref`). Pass +agent_name=<agent>"
            f"{f'; agents: {listed}' if listed else ''}."
        )


def _environment(config: Any) -> str | None:
    reference = config.get("resources_server") if isinstance(config, Mapping) else None
    return reference.get("name") if isinstance(reference, Mapping) else None
