"""Write the rows of datasets with the agent that plays them, and put them together into one file."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import orjson

from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.data.row_check import AGENT_REF_KEY
from nemo_gym.data.scan import BLOCK_BYTES, FileStatistics, lines_of

Progress = Callable[[int], None]


def write_prepared(
    statistics: FileStatistics,
    output: Path,
    agent: str,
    *,
    num_repeats: int,
    max_row_bytes: int,
    on_progress: Progress,
) -> None:
    """The valid rows of a dataset, each `num_repeats` times in a row and with its `agent_ref` as the last key.

    A row is copied byte for byte, so numbers and texts stay as they were written.
    """
    reference = {"type": "responses_api_agents", "name": agent}
    ending = b', "%s": %s}\n' % (AGENT_REF_KEY.encode(), orjson.dumps(reference))
    with statistics.extent.path.open("rb") as source, atomic_write(output) as file:
        if statistics.is_plain and num_repeats == 1:
            parts = _plain_parts(source, statistics, ending)
        else:
            parts = _parts(source, statistics, ending, num_repeats, max_row_bytes)
        for part, read in parts:
            file.write(part)
            on_progress(read)


def _plain_parts(source: IO[bytes], statistics: FileStatistics, ending: bytes) -> Iterator[tuple[bytes, int]]:
    """Of a file in which every line is a row: all but the closing brace, and the ending."""
    source.seek(statistics.extent.start)
    left, carried = statistics.extent.end - statistics.extent.start, b""
    while left and (block := source.read(min(left, BLOCK_BYTES))):
        left -= len(block)
        *rows, carried = (carried + block).split(b"\n")
        parts = [row[:-1] for row in rows if row]
        yield ending.join((*parts, b"")), len(block)
    if carried:
        yield carried[:-1] + ending, 0


def _parts(
    source: IO[bytes], statistics: FileStatistics, ending: bytes, num_repeats: int, max_row_bytes: int
) -> Iterator[tuple[bytes, int]]:
    extent = statistics.extent
    bad = {index for places in statistics.bad.values() for index in places}
    index = extent.first_row
    for _, line in lines_of(source, extent.start, extent.end, max_row_bytes=max_row_bytes):
        row = line if line is None else line.strip()
        length = 0 if line is None else len(line) + 1
        if row == b"":
            yield b"", length
            continue
        if row is not None and index not in bad:
            yield _with_agent(row, ending) * num_repeats, length
        index += 1


def _with_agent(row: bytes, ending: bytes) -> bytes:
    if AGENT_REF_KEY.encode() in row:
        values = orjson.loads(row)
        if values.pop(AGENT_REF_KEY, None) is not None:
            row = orjson.dumps(values)
    return row[:-1].rstrip() + ending


def concatenate(parts: Sequence[Path], output: Path) -> None:
    """Write one file with the content of all, one after the other."""
    with atomic_write(output) as file:
        for part in parts:
            with part.open("rb") as source:
                _copy(source, file)


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    """In the kernel where that is possible."""
    target.flush()
    try:
        while os.sendfile(target.fileno(), source.fileno(), None, 2**30):
            pass
    except OSError:
        shutil.copyfileobj(source, target, BLOCK_BYTES)
