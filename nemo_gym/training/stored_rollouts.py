"""Stored rollouts of a collection as prefixes to go on from: the row of a record and its calls in the journal."""

import asyncio
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from msgspec.structs import replace

from nemo_gym.client.call_log import END_OF_ATTEMPT, parse_call
from nemo_gym.client.server_client import ServerClient
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.dataset import read_rows
from nemo_gym.rollouts.resume import read_manifest
from nemo_gym.rollouts.store import journal_path
from nemo_gym.rollouts.types import Outcome, Row, RowKey
from nemo_gym.training.session import PartialRollout
from nemo_gym.training.session_process import PlayedCalls, open_runner


class StoredRollout(NamedTuple):
    """A rollout that a collection has made with `+journal`."""

    row: Row
    played: PartialRollout


def stored_rollout(output: Path, number: int) -> StoredRollout:
    """The rollout in line `number` of an output, from 0. Raises ConfigError if its row or its calls are gone."""
    key = _key_of(output, number)
    calls = b"".join(_calls_of(journal_path(output), key))
    if not calls:
        raise ConfigError(f"{journal_path(output)} has no calls of this rollout. Collect with +journal=true.")
    row = _row_of(output, key)
    return StoredRollout(row, PartialRollout(orjson.loads(row.body), calls))


async def fork(
    client: ServerClient,
    rollout: StoredRollout,
    *,
    step: int,
    n: int,
    responses_create_params: Mapping[str, Any] | None = None,
) -> list[Outcome]:
    """Make `n` rollouts that go on before model call number `step` of a stored one, perhaps with another prompt."""
    prefix, row = rollout.played.at(step), rollout.row
    if responses_create_params:
        prefix = prefix.with_request(responses_create_params)
        row = replace(row, body=orjson.dumps(prefix.row))
    limits = {"max_attempts": 1, "rollout_timeout_s": row.timeout_s}
    order = {"journal": None, "keep_partial": True, "log_to": None, **limits}
    async with open_runner(client, order) as runner, asyncio.TaskGroup() as tasks:
        rows = [replace(row, repeat_index=index, group="fork") for index in range(n)]
        playing = [tasks.create_task(runner.play(each, PlayedCalls(prefix.log))) for each in rows]
    return [task.result() for task in playing]


def _key_of(output: Path, number: int) -> RowKey:
    with output.open("rb") as lines:
        line = next(islice(lines, number, None), None)
    if line is None:
        raise ConfigError(f"{output} has no row {number}.")
    record: Mapping[str, Any] = orjson.loads(line)
    try:
        return record["_task_index"], record["_repeat_index"], record["_row_hash"]
    except KeyError as error:
        raise ConfigError(f"Row {number} of {output} is no record of a collection: it has no {error}.") from error


def _calls_of(journal: Path, key: RowKey) -> Iterator[bytes]:
    """The lines of the attempt that was scored."""
    if not journal.is_file():
        return
    attempts: dict[str, list[bytes]] = {}
    scored = ""
    with journal.open("rb") as lines:
        for line in lines:
            call = parse_call(line)
            if call is None or (call.task_index, call.repeat_index, call.row_hash) != key:
                continue
            if call.name != END_OF_ATTEMPT:
                attempts.setdefault(call.attempt_id, []).append(line)
            elif call.status == 200:
                scored = call.attempt_id
    yield from attempts.get(scored, ())


def _row_of(output: Path, key: RowKey) -> Row:
    """The row as the collection sent it."""
    manifest = read_manifest(output)
    if manifest is None:
        raise ConfigError(f"{output} has no manifest beside it, so its dataset is not known.")
    options = dict(manifest.options)
    if "prompt" in options:
        raise ConfigError(f"The rows of {output} were made with a prompt_config, so they are not in its dataset.")
    paths = {"input_jsonl_fpath": manifest.input.path, "output_jsonl_fpath": str(output)}
    config = RolloutCollectionConfig.model_validate({**options, **paths, "num_repeats": key[1] + 1})
    found = next((row for row in read_rows(config) if isinstance(row, Row) and row.key == key), None)
    if found is None:
        raise ConfigError(f"{manifest.input.path} does not have row {key[0]} any more as it was collected.")
    return found
