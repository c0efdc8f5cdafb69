"""Read the lines of a file, however long they are."""

from collections.abc import Iterator
from typing import IO

BLOCK_BYTES = 256 * 2**10
"""Small enough that a block is still in the processor's cache when its lines are looked at."""


def lines_of(
    file: IO[bytes], start: int, end: int, *, max_row_bytes: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, bytes | None]]:
    """The lines between two places of a file, with where they start and without their line breaks.

    None stands for a line longer than `max_row_bytes`, which is never in memory as a whole.
    """
    file.seek(start)
    begun: list[bytes] = []
    length = 0
    while start + length < end and (block := file.read(min(block_bytes, end - start - length))):
        *lines, rest = block.split(b"\n")
        for end_of_line in lines:
            length += len(end_of_line)
            line = b"".join((*begun, end_of_line)) if begun else end_of_line
            begun = []
            yield start, line if length <= max_row_bytes else None
            start += length + 1
            length = 0
        length += len(rest)
        if length <= max_row_bytes:
            begun.append(rest)
        else:
            begun = []
    if length:
        yield start, b"".join(begun) if length <= max_row_bytes else None
