# pure: columns to digests
"""Condenses one pass over the files into summary rows: a few rows for each block instead of one for each
message.

Two pairs of kinds describe the same thing from two files, so that the audit can compare their digests:
`queue` rows come from the commit log and `unit` rows from the consume queues; `keys` rows come from the
commit log and `entry` rows from the index.

Kinds of rows (`SummaryKind`) and their columns (`schemas.SUMMARY`). `end` is exclusive unless noted:

- span: `at`, `end` the physical offsets of a run of records, `count` the number of records, `low`, `high` the
  store times of the first and the last, `first` the number of breaks in it (if a range has too many to list
  them), `detail` why it ends ("unread": the range could not be read)
- bad: `at`, `end` the physical offsets of a record whose body does not match its CRC, `topic`, `queue_id` and
  `low` its queue offset, `high` its store time, `detail` its unique key; at most BAD_MAX of a range
- more-bad: `at` the first such record that has no row, `count` their number in the range, `detail` a text
- block: `at` the number of the block, `end` the end of its last record, `count` the bytes of the records that
  begin in it, `digest` of these records, `low`, `high` their store times (the lowest is the greatest integer
  if no record has a time)
- queue, from the commit log: `at` the number of a bucket of queue offsets, `topic`, `queue_id`, `first`,
  `end` the lowest and the highest physical offset of its messages, `count` their number, `digest` the digest
  of the units that they should have, `low`, `high` their lowest and highest queue offset
- unit, from a consume queue: the same for the units that the queue has
- keys, from the commit log: `at` the number of the block, `count` the number of the index entries that its
  messages should have, `digest` of their (hash, offset), `end` the highest physical offset
- entry, from the index: the same for the entries that the index has
- index: `at`, `end` the first and the last physical offset in the header of an index file, `detail` its name
- chain: `at` the number of an index entry that a search does not reach, `end` the physical offset that the
  entry has, `detail` the name of the index file
- file: `at`, `end` the beginning and the end of a file that cannot be read, `detail` why

Digests of one kind and number are combined by exclusive or, so equal sets have equal digests. Several ranges
may contribute rows to one block or bucket."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from epochmq_spark import schemas
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.index_entries import IndexEntries
from epochmq_spark.decode.queue_units import QueueUnits
from epochmq_spark.log_spans import RUNS_OF_RANGE_MAX, LogSpan, join_spans

BLOCK_BITS: Final = 20
BUCKET_BITS: Final = 12
BROKEN_MAX: Final = 100  # entries of one index file that are listed
BAD_MAX: Final = 200  # records of a range with a wrong checksum that are listed
SCHEDULE_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
_INT: Final = np.int64
_SPREAD_QUEUES: Final = np.int64(0x1E3779B97F4A7C15)
_SPREAD_BUCKETS: Final = np.int64(0x165667B19E3779F9)

Array = Any


class SummaryKind(StrEnum):
    """The kinds of summary rows; the values of the column `kind`."""

    SPAN = "span"
    BAD_RECORD = "bad"
    MORE_BAD_RECORDS = "more-bad"
    BLOCK = "block"
    UNITS_BY_LOG = "queue"
    UNITS_BY_QUEUE = "unit"
    KEYS_BY_LOG = "keys"
    KEYS_BY_INDEX = "entry"
    INDEX_FILE = "index"
    BROKEN_CHAIN = "chain"
    UNREADABLE_FILE = "file"


class SummaryRows:
    """Collects the summary rows of one range of a replica's files."""

    def __init__(self, group: str, replica: str) -> None:
        self._who = (group, replica)
        self._bad = 0  # records with a wrong checksum
        self._first_unlisted = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in schemas.SUMMARY.names[2:]}

    def __len__(self) -> int:
        return len(self._columns["at"])

    def add(
        self,
        kind: SummaryKind,
        at: Array,
        end: Array,
        count: Array,
        digest: Array,
        low: Array,
        high: Array,
        *,
        topic: list[str | None] | None = None,
        queue_id: Array | None = None,
        first: Array | None = None,
        detail: list[str | None] | None = None,
    ) -> None:
        """Adds rows of one kind. The arrays have equal lengths."""
        size = len(at)
        for name, values in (
            ("at", at),
            ("end", end),
            ("count", count),
            ("digest", digest),
            ("low", low),
            ("high", high),
        ):
            self._columns[name].extend(np.asarray(values).tolist())
        self._columns["kind"].extend([kind.value] * size)
        self._columns["topic"].extend(topic or [None] * size)
        self._columns["queue_id"].extend([None] * size if queue_id is None else np.asarray(queue_id).tolist())
        self._columns["first"].extend([None] * size if first is None else np.asarray(first).tolist())
        self._columns["detail"].extend(detail or [None] * size)

    def first_bad(self, offsets: Array) -> int:
        """Counts records with a wrong checksum at these physical offsets; how many of them are to be
        listed."""
        listed = min(max(BAD_MAX - self._bad, 0), len(offsets))
        if self._bad <= BAD_MAX < self._bad + len(offsets):
            self._first_unlisted = int(offsets[listed])
        self._bad += len(offsets)
        return listed

    def batch(self) -> pa.RecordBatch:
        """All rows, as one batch."""
        if self._bad > BAD_MAX:
            zero: Any = [0]
            count: Any = [self._bad - BAD_MAX]
            at: Any = [self._first_unlisted]
            detail: list[str | None] = [f"{self._bad - BAD_MAX} of record.checksum"]
            self.add(SummaryKind.MORE_BAD_RECORDS, at, at, count, zero, zero, zero, detail=detail)
        size = len(self)
        columns = {"group": [self._who[0]] * size, "replica": [self._who[1]] * size, **self._columns}
        return pa.RecordBatch.from_pydict(columns, schema=schemas.SUMMARY)


def run_starts(keys: Array) -> Array:
    """The index at which each run of equal keys starts."""
    if not len(keys):
        return np.zeros(0, _INT)
    return np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1))


def add_records(out: SummaryRows, data: Array, rows: Array, base: int) -> None:
    """Adds the rows of kinds block, queue, keys and bad, for records in the order of the log. `rows` are
    those of `walk`."""
    if not len(rows):
        return
    offsets = rows[:, w.POSITION] + base
    _add_blocks(out, rows, offsets)
    _add_queues(out, data, rows, offsets)
    _add_keys(out, data, rows, base)
    bad = np.flatnonzero(rows[:, w.CRC_OK] == 0)
    if len(bad) and (listed := out.first_bad(offsets[bad])):
        bad = bad[:listed]
        chosen = rows[bad]
        out.add(
            SummaryKind.BAD_RECORD,
            offsets[bad],
            offsets[bad] + chosen[:, w.SIZE],
            np.ones(len(bad), _INT),
            np.zeros(len(bad), _INT),
            chosen[:, w.QUEUE_OFFSET],
            chosen[:, w.STORE_TIME],
            topic=[text_of(data, row[w.TOPIC_AT], row[w.TOPIC_SIZE]) for row in chosen],
            queue_id=chosen[:, w.QUEUE_ID],
            detail=[text_of(data, row[w.UNIQ_AT], row[w.UNIQ_SIZE]) for row in chosen],
        )


def text_of(data: Array, at: int, size: int) -> str:
    """A slice of the data as text."""
    return bytes(data[at : at + size]).decode("utf-8", "replace")


def _add_blocks(out: SummaryRows, rows: Array, offsets: Array) -> None:
    blocks = offsets >> BLOCK_BITS
    starts = run_starts(blocks)
    ends = np.append(starts[1:], len(rows)) - 1
    times = rows[:, w.STORE_TIME]
    known = np.where(times > 0, times, np.iinfo(_INT).max)
    out.add(
        SummaryKind.BLOCK,
        blocks[starts],
        (offsets + rows[:, w.SIZE])[ends],
        np.add.reduceat(rows[:, w.SIZE], starts),
        np.bitwise_xor.reduceat(rows[:, w.DIGEST], starts),
        np.minimum.reduceat(known, starts),
        np.maximum.reduceat(times, starts),
    )


def _add_queues(out: SummaryRows, data: Array, rows: Array, offsets: Array) -> None:
    flags = rows[:, w.SYS_FLAG]
    chosen = np.flatnonzero((rows[:, w.MAGIC] != w.BLANK) & (flags & 0x4 == 0) & (flags & 0x80 == 0))
    if not len(chosen):
        return
    rows, offsets = rows[chosen], offsets[chosen]
    topics, queues, numbers = rows[:, w.TOPIC_HASH], rows[:, w.QUEUE_ID], rows[:, w.QUEUE_OFFSET]
    buckets = numbers >> BUCKET_BITS
    # One number for each (topic, queue, bucket). Two of them may share a number by chance. Then the digest of
    # the log differs from that of the consume queue; the drill-down compares the messages and reports
    # nothing.
    group_numbers = topics + queues * _SPREAD_QUEUES + buckets * _SPREAD_BUCKETS
    order = np.argsort(group_numbers, kind="stable")
    starts = run_starts(group_numbers[order])
    heads = order[starts]
    names = [bytes(data[row[w.TOPIC_AT] : row[w.TOPIC_AT] + row[w.TOPIC_SIZE]]) for row in rows[heads]]
    tags = rows[:, w.TAGS_CODE].copy()
    if SCHEDULE_TOPIC in names:
        tags[topics == topics[heads[names.index(SCHEDULE_TOPIC)]]] = 0  # its units have a delivery time
    sums = np.empty(len(rows), _INT)
    w.unit_digests(numbers, offsets, rows[:, w.SIZE], tags, sums)
    counts = np.diff(np.append(starts, len(rows)))
    out.add(
        SummaryKind.UNITS_BY_LOG,
        buckets[heads],
        np.maximum.reduceat(offsets[order], starts),
        counts,
        np.bitwise_xor.reduceat(sums[order], starts),
        np.minimum.reduceat(numbers[order], starts),
        np.maximum.reduceat(numbers[order], starts),
        topic=[name.decode("utf-8", "replace") for name in names],
        queue_id=queues[heads],
        first=np.minimum.reduceat(offsets[order], starts),
    )


def _add_keys(out: SummaryRows, data: Array, rows: Array, base: int) -> None:
    size = 4 * len(rows)
    while True:
        hashes, positions = np.empty(size, _INT), np.empty(size, _INT)
        found = w.key_hashes(data, rows, len(rows), base, hashes, positions)
        if found <= size:
            break
        size = found
    add_index_keys(out, hashes[:found], positions[:found], SummaryKind.KEYS_BY_LOG)


def add_units(out: SummaryRows, topic: str, queue_id: int, units: QueueUnits, log_start: int) -> None:
    """Adds rows of kind unit, for the units of a consume queue that point to records that the log still
    has."""
    live = np.flatnonzero(units.physical >= log_start)
    if not len(live):
        return
    numbers, physical = units.offsets[live], units.physical[live]
    tags = units.tags[live]
    if topic.encode() == SCHEDULE_TOPIC:
        tags = np.zeros_like(tags)
    sums = np.empty(len(live), _INT)
    w.unit_digests(numbers, physical, units.sizes[live], tags, sums)
    buckets = numbers >> BUCKET_BITS
    starts = run_starts(buckets)
    out.add(
        SummaryKind.UNITS_BY_QUEUE,
        buckets[starts],
        np.maximum.reduceat(physical, starts),
        np.diff(np.append(starts, len(live))),
        np.bitwise_xor.reduceat(sums, starts),
        np.minimum.reduceat(numbers, starts),
        np.maximum.reduceat(numbers, starts),
        topic=[topic] * len(starts),
        queue_id=np.full(len(starts), queue_id),
        first=np.minimum.reduceat(physical, starts),
    )


def add_entries(out: SummaryRows, part: IndexEntries, log_start: int) -> list[tuple[int, int]]:
    """Adds rows of kind entry, for a part of an index. Returns (number, physical offset) of entries with a
    wrong link, at most BROKEN_MAX."""
    live = np.flatnonzero(part.physical >= log_start)
    add_index_keys(out, part.hashes[live], part.physical[live], SummaryKind.KEYS_BY_INDEX)
    broken = part.broken[:BROKEN_MAX]
    return list(zip(part.numbers[broken].tolist(), part.physical[broken].tolist(), strict=True))


def add_index(
    out: SummaryRows, name: str, covered: tuple[int, int], broken: Sequence[tuple[int, int]]
) -> None:
    """Adds one row of kind index for a file, and one of kind chain for each entry that a search does not
    reach."""
    zero: Any = [0]
    out.add(SummaryKind.INDEX_FILE, [covered[0]], [covered[1]], *(zero,) * 4, detail=[name])
    if listed := sorted(set(broken))[:BROKEN_MAX]:
        numbers, offsets = zip(*listed, strict=True)
        zeros = np.zeros(len(listed), _INT)
        names: list[str | None] = [name] * len(listed)
        out.add(SummaryKind.BROKEN_CHAIN, numbers, offsets, zeros, zeros, zeros, zeros, detail=names)


def add_index_keys(out: SummaryRows, hashes: Array, positions: Array, kind: SummaryKind) -> None:
    """Adds rows of kind keys or entry, for (key hash, physical offset) of index entries."""
    if not len(hashes):
        return
    blocks = positions >> BLOCK_BITS
    if np.any(blocks[1:] < blocks[:-1]):
        order = np.argsort(blocks, kind="stable")
        hashes, positions, blocks = hashes[order], positions[order], blocks[order]
    starts = run_starts(blocks)
    sums = np.empty(len(hashes), _INT)
    w.pair_digests(hashes, positions, sums)
    zeros = np.zeros(len(starts), _INT)
    out.add(
        kind,
        blocks[starts],
        np.maximum.reduceat(positions, starts),
        np.diff(np.append(starts, len(hashes))),
        np.bitwise_xor.reduceat(sums, starts),
        zeros,
        zeros,
    )


def spans_of(spans: Array, base: int) -> list[LogSpan]:
    """The spans of `walk`."""
    return [
        LogSpan(
            base + int(row[w.SPAN_START]),
            base + int(row[w.SPAN_END]),
            int(row[w.SPAN_FIRST_TIME]),
            int(row[w.SPAN_LAST_TIME]),
            w.STOP_NAMES[row[w.SPAN_STOP]],
            int(row[w.SPAN_RECORDS]),
        )
        for row in spans
    ]


def add_spans(out: SummaryRows, spans: Sequence[LogSpan]) -> None:
    """Adds rows of kind span for the spans of a range."""
    runs = join_spans(spans, RUNS_OF_RANGE_MAX)
    columns: Any = (
        [one.start for one in runs],
        [one.end for one in runs],
        [one.records for one in runs],
        [0] * len(runs),
        [one.first_time for one in runs],
        [one.last_time for one in runs],
    )
    breaks: Any = [one.breaks for one in runs]
    out.add(SummaryKind.SPAN, *columns, first=breaks, detail=[one.stop for one in runs])
