"""Count distinct values exactly in bounded memory: digests of 16 bytes, moved to disk when there are many.

Records are partitioned by their first byte, so equal records are in the same partition, and only one partition at a
time is in memory. `sketch` returns the keys that nearly equal prompts share.
"""

import hashlib
import os
import re
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Self

DIGEST_BYTES = 16
PARTITIONS = 64
BUFFERED_BYTES = 32 * 2**20
"""Memory for all digests of a command. Beyond it they are moved to disk."""
RECORDS_AT_ONCE = 500_000
"""Records of a partition that are compared at a time: about 60 MB."""

_PARTITION_OF = [byte * PARTITIONS // 256 for byte in range(256)]


def _sha256(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()[:DIGEST_BYTES]


try:
    import xxhash  # of the extra `data`; several times as fast

    digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
except ImportError:
    digest = _sha256


def packed(records: Iterable[bytes]) -> dict[int, bytes]:
    """Group records, each starting with its digest, by partition. Workers send them in this form."""
    partitions: dict[int, list[bytes]] = defaultdict(list)
    for record in records:
        partitions[_PARTITION_OF[record[0]]].append(record)
    return {partition: b"".join(found) for partition, found in partitions.items()}


class Spill:
    """The memory and the temporary file that several sets of digests share. The file has no name, so the system
    removes it."""

    def __init__(self, folder: Path | None = None, *, buffered_bytes: int = BUFFERED_BYTES) -> None:
        self._folder, self._limit = folder, buffered_bytes
        self._file: IO[bytes] | None = None
        self._sets: list[DigestSet] = []
        self._buffered = self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def new_set(self, *, extra_bytes: int = 0) -> "DigestSet":
        """Return an empty set whose records are a digest and `extra_bytes` more."""
        made = DigestSet(self, DIGEST_BYTES + extra_bytes)
        self._sets.append(made)
        return made

    def add_bytes(self, count: int) -> None:
        """Count bytes in memory. Flush all sets when the limit is exceeded."""
        self._buffered += count
        if self._buffered > self._limit:
            for each in self._sets:
                each.flush()
            self._buffered = 0

    def write(self, data: bytes) -> int:
        """Append data to the file and return its offset."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by __exit__
        start = self._end
        self._file.write(data)
        self._end += len(data)
        return start

    def read(self, start: int, length: int) -> bytes:
        assert self._file is not None
        self._file.flush()
        return os.pread(self._file.fileno(), length, start)


class DigestSet:
    """Records that start with a digest; made by `Spill.new_set`."""

    def __init__(self, spill: Spill, width: int) -> None:
        self._spill, self.width = spill, width
        self._buffers = [bytearray() for _ in range(PARTITIONS)]
        self._segments: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
        self.count = 0
        """Number of records that were added, duplicates included."""
        self.counted: tuple[int, int] | None = None
        """Cached result of `unique_count`: the number of records at that time, and of distinct records."""

    def add(self, partitions: dict[int, bytes]) -> None:
        """Add records as `packed` returns them."""
        size = 0
        for partition, records in partitions.items():
            self._buffers[partition] += records
            size += len(records)
        self.count += size // self.width
        self._spill.add_bytes(size)

    def flush(self) -> None:
        """Move all records in memory to disk."""
        for buffer, segments in zip(self._buffers, self._segments, strict=True):
            if buffer:
                segments.append((self._spill.write(bytes(buffer)), len(buffer)))
                buffer.clear()

    def partition(self, number: int) -> Iterator[bytes]:
        """Yield the records of a partition, in the order in which they were added."""
        for start, length in self._segments[number]:
            yield from self._records(self._spill.read(start, length))
        yield from self._records(bytes(self._buffers[number]))

    def _records(self, data: bytes) -> Iterator[bytes]:
        width = self.width
        return (data[start : start + width] for start in range(0, len(data), width))

    def size_of(self, number: int) -> int:
        """Return the number of records in a partition."""
        stored = sum(length for _, length in self._segments[number]) + len(self._buffers[number])
        return stored // self.width


def slices(*sets: DigestSet, records_at_once: int = RECORDS_AT_ONCE) -> Iterator[list[list[bytes]]]:
    """Yield the records of each set in parts. Equal digests of all sets are in the same part."""
    for number in range(PARTITIONS):
        passes = -(-sum(each.size_of(number) for each in sets) // records_at_once)
        for turn in range(passes):
            if passes == 1:
                yield [list(each.partition(number)) for each in sets]
            else:
                yield [[rec for rec in each.partition(number) if rec[1] % passes == turn] for each in sets]


def unique_count(*sets: DigestSet, records_at_once: int = RECORDS_AT_ONCE) -> int:
    """Return the number of distinct digests in all sets together."""
    if len(sets) != 1:
        return _count_unique(*sets, records_at_once=records_at_once)
    [only] = sets
    if only.counted is None or only.counted[0] != only.count:
        only.counted = only.count, _count_unique(only, records_at_once=records_at_once)
    return only.counted[1]


def _count_unique(*sets: DigestSet, records_at_once: int) -> int:
    return sum(
        len({record[:DIGEST_BYTES] for records in part for record in records})
        if any(each.width != DIGEST_BYTES for each in sets)
        else len(set().union(*part))
        for part in slices(*sets, records_at_once=records_at_once)
    )


BINS = 16
BINS_A_BAND = 4
_WORDS = re.compile(rb"[a-z0-9\x80-\xff]+")


def sketch(text: bytes) -> list[bytes]:
    """Return the MinHash keys of a prompt, one digest per band. Case and punctuation do not count. A text without
    words has no keys."""
    triples = hashes_of_triples(text)
    if not triples:
        return []
    least = {value % BINS: value for value in sorted(triples, reverse=True)}
    values = [least.get(number, -1) for number in range(BINS)]
    bands = (values[start : start + BINS_A_BAND] for start in range(0, BINS, BINS_A_BAND))
    return [digest(b"%d %a" % (number, band)) for number, band in enumerate(bands)]


def hashes_of_triples(text: bytes) -> set[int]:
    """Hash every three consecutive words; all words, if there are fewer."""
    words = [zlib.crc32(word) for word in _WORDS.findall(text.lower())]
    if len(words) < 3:
        return {hash(tuple(words))} if words else set()
    threes = zip(words, islice(words, 1, None), islice(words, 2, None), strict=False)
    return set(map(hash, threes))


def similarity(one: bytes, other: bytes) -> float:
    """Return the Jaccard similarity of the word triples of two prompts."""
    first, second = hashes_of_triples(one), hashes_of_triples(other)
    return len(first & second) / len(first | second) if first or second else 0.0
