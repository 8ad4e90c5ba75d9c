# pure: records of a range of a log to digests
"""Condenses the records of a range of a commit log into digests, some records at a time, in compiled code.

There are three: for each block of the log one over its records and one over the index entries that they
should have, and for each bucket of queue offsets one over the units that they should have.
`epochmq_spark.decode.summary_rows` makes rows of them."""

from __future__ import annotations

from typing import Any, Final

import numba as nb
import numpy as np

from epochmq_protocol.message_const import INNER_BATCH_FLAG, TRANSACTION_PREPARED_TYPE
from epochmq_protocol.topics import RMQ_SYS_SCHEDULE_TOPIC
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.digest import Bytes, mix, xxh64

BLOCK_BITS: Final = 20
BUCKET_BITS: Final = 12
SCHEDULE_TOPIC: Final = RMQ_SYS_SCHEDULE_TOPIC.encode()
WITHOUT_UNIT: Final = TRANSACTION_PREPARED_TYPE | INNER_BATCH_FLAG
"""Messages with one of these flags have no unit: they are prepared or rolled back, or of a batch."""
_INT: Final = np.int64
_INT_MAX: Final = np.iinfo(_INT).max

# Columns of a block, all int64. Those of the keys are about the index entries of its messages.
BLOCK_BYTES, BLOCK_DIGEST, BLOCK_END, BLOCK_LOW, BLOCK_HIGH = range(5)
KEYS, KEYS_DIGEST, KEYS_END = range(5, 8)
BLOCK_COLUMNS: Final = 8

# Columns of a bucket, all int64. FIRST and LAST are the lowest and the highest physical offset.
TOPIC, QUEUE, BUCKET, COUNT, DIGEST, LOW, HIGH, FIRST, LAST, NAME_AT, NAME_SIZE = range(11)
BUCKET_COLUMNS: Final = 11
BUCKETS_AT_FIRST: Final = 256

Array = Any


@nb.njit(nogil=True, cache=True, inline="always")
def unit_digest(offset: Any, physical: Any, size: Any, tag: Any) -> Any:
    """A number for a unit of a consume queue, to be combined into a digest."""
    value = mix(np.uint64(offset) + np.uint64(0x9E3779B97F4A7C15))
    value = mix(value + np.uint64(physical))
    value = mix(value + np.uint64(size))
    return np.int64(mix(value + np.uint64(tag)))


@nb.njit(nogil=True, cache=True)
def _add_blocks(rows: Any, base: int, first_block: int, blocks: Any) -> None:
    for at in range(len(rows)):
        row = rows[at]
        offset = base + row[w.POSITION]
        block = blocks[(offset >> BLOCK_BITS) - first_block]
        time = row[w.STORE_TIME]
        block[BLOCK_BYTES] += row[w.SIZE]
        block[BLOCK_DIGEST] ^= row[w.DIGEST]
        block[BLOCK_END] = offset + row[w.SIZE]
        block[BLOCK_HIGH] = max(block[BLOCK_HIGH], time)
        if time > 0:
            block[BLOCK_LOW] = min(block[BLOCK_LOW], time)


@nb.njit(nogil=True, cache=True)
def _add_keys(hashes: Any, positions: Any, count: int, first_block: int, blocks: Any) -> None:
    for at in range(count):
        block = blocks[(positions[at] >> BLOCK_BITS) - first_block]
        value = mix(np.uint64(hashes[at]) + np.uint64(0x9E3779B97F4A7C15))
        block[KEYS] += 1
        block[KEYS_DIGEST] ^= np.int64(mix(value + np.uint64(positions[at])))
        block[KEYS_END] = max(block[KEYS_END], positions[at])


@nb.njit(nogil=True, cache=True)
def _slot_of(buckets: Any, slots: Any, topic: Any, queue: Any, number: Any) -> Any:
    """The slot of a bucket, or the free slot where it belongs. `slots` is a hash table with the positions of
    buckets, counted from 1; 0 is free. Its size is a power of two, and it has free slots."""
    last = len(slots) - 1
    hashed = mix(np.uint64(topic) + mix(np.uint64(queue) + mix(np.uint64(number))))
    slot = np.int64(hashed & np.uint64(last))
    while slots[slot] > 0:
        found = buckets[slots[slot] - 1]
        if found[TOPIC] == topic and found[QUEUE] == queue and found[BUCKET] == number:
            break
        slot = (slot + 1) & last
    return slot


@nb.njit(nogil=True, cache=True)
def _fill_slots(buckets: Any, used: int, slots: Any) -> None:
    for at in range(used):
        slot = _slot_of(buckets, slots, buckets[at, TOPIC], buckets[at, QUEUE], buckets[at, BUCKET])
        slots[slot] = at + 1


@nb.njit(nogil=True, cache=True)
def _add_units(
    rows: Any, start: int, base: int, schedule: Any, buckets: Any, used: int, slots: Any
) -> tuple[int, int]:
    """Adds the units of rows from `start` on until no bucket is free. Returns how many rows it has read, and
    how many buckets are used."""
    for at in range(start, len(rows)):
        row = rows[at]
        flags = row[w.SYS_FLAG]
        if row[w.MAGIC] == w.BLANK or flags & WITHOUT_UNIT:
            continue
        topic, queue, offset = row[w.TOPIC_HASH], row[w.QUEUE_ID], row[w.QUEUE_OFFSET]
        number = offset >> BUCKET_BITS
        physical = base + row[w.POSITION]
        slot = _slot_of(buckets, slots, topic, queue, number)
        if slots[slot] == 0:
            if used == len(buckets):
                return at, used
            bucket = buckets[used]
            bucket[:] = 0
            bucket[TOPIC], bucket[QUEUE], bucket[BUCKET] = topic, queue, number
            bucket[NAME_AT], bucket[NAME_SIZE] = row[w.TOPIC_AT], row[w.TOPIC_SIZE]
            bucket[LOW] = bucket[HIGH] = offset
            bucket[FIRST] = bucket[LAST] = physical
            used += 1
            slots[slot] = used
        bucket = buckets[slots[slot] - 1]
        tag = np.int64(0) if topic == schedule else row[w.TAGS_CODE]  # its units have a delivery time
        bucket[COUNT] += 1
        bucket[DIGEST] ^= unit_digest(offset, physical, row[w.SIZE], tag)
        bucket[LOW] = min(bucket[LOW], offset)
        bucket[HIGH] = max(bucket[HIGH], offset)
        bucket[FIRST] = min(bucket[FIRST], physical)
        bucket[LAST] = max(bucket[LAST], physical)
    return len(rows), used


@nb.njit(nogil=True, cache=True)
def unit_buckets(offsets: Any, physical: Any, sizes: Any, tags: Any, log_start: int, rows: Any) -> int:
    """Sets the columns BUCKET to LAST of the buckets of a consume queue's units, which are in order. Units
    that point below `log_start` do not count. Returns the number of buckets; `rows` must have room for
    all."""
    used = 0
    for at in range(len(offsets)):
        if physical[at] < log_start:
            continue
        if used == 0 or rows[used - 1, BUCKET] != offsets[at] >> BUCKET_BITS:
            row = rows[used]
            row[:] = 0
            row[BUCKET], row[LOW] = offsets[at] >> BUCKET_BITS, offsets[at]
            row[FIRST] = row[LAST] = physical[at]
            used += 1
        row = rows[used - 1]
        row[COUNT] += 1
        row[DIGEST] ^= unit_digest(offsets[at], physical[at], sizes[at], tags[at])
        row[HIGH] = offsets[at]
        row[FIRST] = min(row[FIRST], physical[at])
        row[LAST] = max(row[LAST], physical[at])
    return used


@nb.njit(nogil=True, cache=True)
def topic_hash(data: Bytes) -> Any:
    """The column TOPIC_HASH of the records of a topic, whose name is `data`."""
    return np.int64(xxh64(data, 0, len(data), np.uint64(0)))


class LogDigests:
    """The digests of the records that start in a range of physical offsets [start, end)."""

    def __init__(self, start: int, end: int) -> None:
        self._first_block = start >> BLOCK_BITS
        self._blocks = np.zeros(((end >> BLOCK_BITS) - self._first_block + 1, BLOCK_COLUMNS), _INT)
        self._blocks[:, BLOCK_LOW] = _INT_MAX
        self._buckets = np.empty((BUCKETS_AT_FIRST, BUCKET_COLUMNS), _INT)
        self._slots = np.zeros(2 * BUCKETS_AT_FIRST, np.int32)
        self._names: list[bytes] = []  # of the topics of the buckets
        self._hashes, self._positions = np.empty(0, _INT), np.empty(0, _INT)
        self._schedule = topic_hash(np.frombuffer(SCHEDULE_TOPIC, np.uint8))

    def add(self, data: Array, rows: Array, base: int) -> None:
        """Adds records in the order of the log. `rows` are those of `walk`."""
        _add_blocks(rows, base, self._first_block, self._blocks)
        self._add_units(data, rows, base)
        found = w.key_hashes(data, rows, len(rows), base, self._hashes, self._positions)
        if found > len(self._hashes):
            self._hashes, self._positions = np.empty(2 * found, _INT), np.empty(2 * found, _INT)
            w.key_hashes(data, rows, len(rows), base, self._hashes, self._positions)
        _add_keys(self._hashes, self._positions, found, self._first_block, self._blocks)

    def _add_units(self, data: Array, rows: Array, base: int) -> None:
        done = 0
        while done < len(rows):
            known = len(self._names)
            done, used = _add_units(rows, done, base, self._schedule, self._buckets, known, self._slots)
            for at, size in self._buckets[known:used, NAME_AT:].tolist():
                self._names.append(bytes(data[at : at + size]))
            if done < len(rows):
                self._buckets = np.concatenate((self._buckets, np.empty_like(self._buckets)))
                self._slots = np.zeros(2 * len(self._buckets), np.int32)
                _fill_slots(self._buckets, used, self._slots)

    def blocks(self) -> tuple[Array, Array]:
        """The numbers and the columns of the blocks that contain records."""
        return self._with(BLOCK_BYTES)

    def blocks_with_keys(self) -> tuple[Array, Array]:
        """The numbers and the columns of the blocks that have keys."""
        return self._with(KEYS)

    def _with(self, column: int) -> tuple[Array, Array]:
        used = np.flatnonzero(self._blocks[:, column])
        return used + self._first_block, self._blocks[used]

    def buckets(self) -> tuple[list[str], Array]:
        """The topics and the columns of the buckets."""
        names = [name.decode("utf-8", "replace") for name in self._names]
        return names, self._buckets[: len(names)]
