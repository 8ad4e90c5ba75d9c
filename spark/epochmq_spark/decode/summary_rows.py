# pure: columns to digests
"""Condenses one pass over the files into summary rows: a few rows for each block instead of one for each
message.

Two pairs of kinds describe the same thing from two files, so that the audit can compare their digests:
`queue` rows come from the commit log and `unit` rows from the consume queues; `keys` rows come from the
commit log and `entry` rows from the index.

Kinds of rows (`SummaryKind`) and their columns (`schemas.SUMMARY`). `end` is exclusive unless noted:

- span: `at`, `end` the physical offsets of a run of records, `count` the number of records, `low`, `high` the
  store times of the first and the last, `first` the number of breaks in it (if a range has too many to list
  them), `detail` why it ends ("unread": the range could not be read); `first_index`, `last_index`,
  `first_term`, `last_term` of the first and the last entry of a DLedger log, -1 without one
- term, from a DLedger log: `at` the term, `first`, `end` where its first entry starts and its last one ends,
  `count` the number of its entries in the range
- entries, from a DLedger log: `at` the number of a bucket of entry indexes, `first`, `end` the lowest and the
  highest physical offset of a record in it, `count` their number, `digest` the digest of their index units,
  `low`, `high` their lowest and highest index
- entry-unit, from the index files of a DLedger log: the same for the units that the files have
- bad: `at`, `end` the physical offsets of a record whose body does not match its CRC, `topic`, `queue_id` and
  `low` its queue offset, `high` its store time, `detail` its unique key; at most BAD_MAX of a range
- more-bad: `at` the first such record that has no row, `count` their number in the range, `detail` a text
- bad-time: `at`, `end` the range of physical offsets of the `count` records of a MiB that have a store time
  which no broker writes, `low` the first such time, `detail` a text
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
- index-time: `at` the number of an index entry whose time is out of order, `end` its physical offset,
  `digest` its hash, `low` its seconds, `high` when its file begins, `detail` the name of the file
- file: `at`, `end` the beginning and the end of a file that cannot be read, `detail` why

Digests of one kind and number are combined by exclusive or, so equal sets have equal digests. Several ranges
may contribute rows to one block or bucket."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE
from epochmq_spark import schemas
from epochmq_spark.decode import log_digests as d
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.index_chains import IndexEntries
from epochmq_spark.decode.index_entries import FIRST_TIMED
from epochmq_spark.decode.log_digests import BLOCK_BITS, BUCKET_BITS, SCHEDULE_TOPIC, LogDigests
from epochmq_spark.decode.queue_units import QueueUnits
from epochmq_spark.log_spans import ENTRY_COLUMNS, RUNS_OF_RANGE_MAX, LogSpan, join_spans

BROKEN_MAX: Final = 100  # entries of one index file that are listed
ENTRIES_MAX: Final = 32_768  # entries of a DLedger log that are collected before their rows are made
BAD_MAX: Final = 200  # records of a range with a wrong checksum that are listed
_INT: Final = np.int64

Array = Any


class SummaryKind(StrEnum):
    """The kinds of summary rows; the values of the column `kind`."""

    SPAN = "span"
    TERM = "term"
    ENTRIES_BY_LOG = "entries"
    ENTRIES_BY_INDEX = "entry-unit"
    BAD_RECORD = "bad"
    BAD_TIME = "bad-time"
    MORE_BAD_RECORDS = "more-bad"
    BLOCK = "block"
    UNITS_BY_LOG = "queue"
    UNITS_BY_QUEUE = "unit"
    KEYS_BY_LOG = "keys"
    KEYS_BY_INDEX = "entry"
    INDEX_FILE = "index"
    BROKEN_CHAIN = "chain"
    ODD_INDEX_TIME = "index-time"
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
        entries: Sequence[Sequence[int]] = ((), (), (), ()),
    ) -> None:
        """Adds rows of one kind. The arrays have equal lengths. `entries` are the four `ENTRY_COLUMNS`."""
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
        for name, numbers in zip(ENTRY_COLUMNS, entries, strict=True):
            self._columns[name].extend(numbers or [None] * size)

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


def add_bad_records(out: SummaryRows, data: Array, rows: Array, base: int) -> None:
    """Adds the rows of kind bad. `rows` are those of `walk`."""
    bad = np.flatnonzero(rows[:, w.CRC_OK] == 0)
    if not len(bad):
        return
    offsets = rows[bad, w.POSITION] + base
    if listed := out.first_bad(offsets):
        chosen, offsets = rows[bad[:listed]], offsets[:listed]
        out.add(
            SummaryKind.BAD_RECORD,
            offsets,
            offsets + chosen[:, w.SIZE],
            np.ones(listed, _INT),
            np.zeros(listed, _INT),
            chosen[:, w.QUEUE_OFFSET],
            chosen[:, w.STORE_TIME],
            topic=[text_of(data, row[w.TOPIC_AT], row[w.TOPIC_SIZE]) for row in chosen],
            queue_id=chosen[:, w.QUEUE_ID],
            detail=[text_of(data, row[w.UNIQ_AT], row[w.UNIQ_SIZE]) for row in chosen],
        )


def add_bad_times(out: SummaryRows, rows: Array, base: int, latest_ms: int) -> None:
    """Adds a row of kind bad-time if a record has a store time before 1970 or after `latest_ms`. `rows` are
    those of `walk`."""
    times = rows[:, w.STORE_TIME]
    (bad,) = np.nonzero(((times < 0) | (times > latest_ms)) & (rows[:, w.MAGIC] != w.BLANK))
    if not len(bad):
        return
    first, last = rows[bad[0]], rows[bad[-1]]
    time, zero, count = int(first[w.STORE_TIME]), np.zeros(1, _INT), np.full(1, len(bad), _INT)
    start, end = first[w.POSITION] + base, last[w.POSITION] + last[w.SIZE] + base
    text = f"{len(bad)} records, the first one with the store time {time}, expected 0 to tomorrow"
    low = np.full(1, time, _INT)
    out.add(SummaryKind.BAD_TIME, np.array([start]), np.array([end]), count, zero, low, zero, detail=[text])


def text_of(data: Array, at: int, size: int) -> str:
    """A slice of the data as text."""
    return bytes(data[at : at + size]).decode("utf-8", "replace")


def add_digests(out: SummaryRows, digests: LogDigests) -> None:
    """Adds the rows of kinds block, queue and keys."""
    numbers, found = digests.blocks()
    out.add(
        SummaryKind.BLOCK,
        numbers,
        found[:, d.BLOCK_END],
        found[:, d.BLOCK_BYTES],
        found[:, d.BLOCK_DIGEST],
        found[:, d.BLOCK_LOW],
        found[:, d.BLOCK_HIGH],
    )
    topics, buckets = digests.buckets()
    _add_buckets(out, SummaryKind.UNITS_BY_LOG, [*topics], buckets)
    numbers, found = digests.blocks_with_keys()
    zeros = np.zeros(len(numbers), _INT)
    ends, counts, sums = found[:, d.KEYS_END], found[:, d.KEYS], found[:, d.KEYS_DIGEST]
    out.add(SummaryKind.KEYS_BY_LOG, numbers, ends, counts, sums, zeros, zeros)


def _add_buckets(out: SummaryRows, kind: SummaryKind, topics: list[str | None], buckets: Array) -> None:
    out.add(
        kind,
        buckets[:, d.BUCKET],
        buckets[:, d.LAST],
        buckets[:, d.COUNT],
        buckets[:, d.DIGEST],
        buckets[:, d.LOW],
        buckets[:, d.HIGH],
        topic=topics,
        queue_id=buckets[:, d.QUEUE],
        first=buckets[:, d.FIRST],
    )


class EntryRows:
    """Collects the entries of a range of a DLedger log for the rows of kinds entries and term, some thousand
    at a time."""

    def __init__(self, out: SummaryRows) -> None:
        self._out = out
        self._parts: list[Array] = []
        self._count = 0

    def add(self, rows: Array, base: int) -> None:
        """Adds entries in the order of the log. `rows` are those of `walk`."""
        chosen = rows[rows[:, w.MAGIC] != w.BLANK]
        positions, sizes = chosen[:, w.POSITION] + base, chosen[:, w.SIZE]
        self._parts.append(
            np.stack((chosen[:, w.ENTRY_INDEX], chosen[:, w.ENTRY_TERM], positions, sizes), axis=1)
        )
        self._count += len(chosen)
        if self._count >= ENTRIES_MAX:
            self.finish()

    def finish(self) -> None:
        """Adds the rows of the entries that were collected."""
        if self._count:
            _add_entries(self._out, *np.concatenate(self._parts).T)
        self._parts, self._count = [], 0


def _add_entries(out: SummaryRows, indexes: Array, terms: Array, offsets: Array, record_sizes: Array) -> None:
    positions, sizes = offsets - ENTRY_HEADER_SIZE, record_sizes + ENTRY_HEADER_SIZE
    order = np.argsort(terms, kind="stable")
    starts = run_starts(terms[order])
    heads = order[starts]
    zeros = np.zeros(len(starts), _INT)
    out.add(
        SummaryKind.TERM,
        terms[heads],
        np.maximum.reduceat((positions + sizes)[order], starts),
        np.diff(np.append(starts, len(terms))),
        zeros,
        zeros,
        zeros,
        first=np.minimum.reduceat(positions[order], starts),
    )
    units = QueueUnits(indexes, positions, sizes, terms)
    _add_entry_units(out, SummaryKind.ENTRIES_BY_LOG, units)


def add_entry_units(out: SummaryRows, units: QueueUnits, log_start: int) -> None:
    """Adds rows of kind entry-unit, for the units of an index file of DLedger that point to entries that the
    log still has."""
    live = np.flatnonzero(units.physical >= log_start)
    if len(live):
        columns = (units.offsets[live], units.physical[live], units.sizes[live], units.tags[live])
        _add_entry_units(out, SummaryKind.ENTRIES_BY_INDEX, QueueUnits(*columns))


def _add_entry_units(out: SummaryRows, kind: SummaryKind, units: QueueUnits) -> None:
    sums = np.empty(len(units.offsets), _INT)
    columns = (units.offsets, units.physical, units.sizes, units.tags)
    w.unit_digests(*(np.ascontiguousarray(column) for column in columns), sums)
    buckets = units.offsets >> BUCKET_BITS
    starts = run_starts(buckets)
    records = units.physical + ENTRY_HEADER_SIZE
    out.add(
        kind,
        buckets[starts],
        np.maximum.reduceat(records, starts),
        np.diff(np.append(starts, len(buckets))),
        np.bitwise_xor.reduceat(sums, starts),
        np.minimum.reduceat(units.offsets, starts),
        np.maximum.reduceat(units.offsets, starts),
        first=np.minimum.reduceat(records, starts),
    )


def add_units(out: SummaryRows, topic: str, queue_id: int, units: QueueUnits, log_start: int) -> None:
    """Adds rows of kind unit, for the units of a consume queue that point to records that the log still
    has. The units are in order."""
    if not len(units.offsets):
        return
    tags = units.tags
    if topic.encode() == SCHEDULE_TOPIC:
        tags = np.zeros_like(tags)
    buckets = int(units.offsets[-1] >> BUCKET_BITS) - int(units.offsets[0] >> BUCKET_BITS) + 1
    found = np.empty((buckets, d.BUCKET_COLUMNS), _INT)
    found = found[: d.unit_buckets(units.offsets, units.physical, units.sizes, tags, log_start, found)]
    found[:, d.QUEUE] = queue_id
    _add_buckets(out, SummaryKind.UNITS_BY_QUEUE, [topic] * len(found), found)


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


def add_odd_times(
    out: SummaryRows, name: str, part: IndexEntries, times_ms: tuple[int, int], log_start: int, most: int
) -> int:
    """Adds a row of kind index-time for each entry whose time is out of order, or after the last message: at
    most `most` rows. `times_ms` are the times of the first and the last message of the file. Returns the
    number of rows."""
    begin_ms, end_ms = times_ms
    drops = np.flatnonzero(np.diff(part.seconds) < 0)
    beyond = np.flatnonzero((part.seconds < 0) | (part.seconds > max(end_ms - begin_ms, 0) // 1000))
    odd = np.unique(np.concatenate([drops, drops + 1, beyond]))
    odd = odd[(part.numbers[odd] >= FIRST_TIMED) & (part.physical[odd] >= log_start)][:most]
    if len(odd):
        zeros, names = np.zeros(len(odd), _INT), list[str | None]([name]) * len(odd)
        numbers, physical = part.numbers[odd], part.physical[odd]
        begins = np.full(len(odd), begin_ms, _INT)
        kind = SummaryKind.ODD_INDEX_TIME
        out.add(kind, numbers, physical, zeros, part.hashes[odd], part.seconds[odd], begins, detail=names)
    return len(odd)


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
            base + row[w.SPAN_START],
            base + row[w.SPAN_END],
            row[w.SPAN_FIRST_TIME],
            row[w.SPAN_LAST_TIME],
            w.STOP_NAMES[row[w.SPAN_STOP]],
            row[w.SPAN_RECORDS],
            0,
            *row[w.SPAN_FIRST_INDEX :],
        )
        for row in spans.tolist()
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
    stops: list[str | None] = [one.stop for one in runs]
    entries = [[getattr(one, name) for one in runs] for name in ENTRY_COLUMNS]
    out.add(SummaryKind.SPAN, *columns, first=breaks, detail=stops, entries=entries)
