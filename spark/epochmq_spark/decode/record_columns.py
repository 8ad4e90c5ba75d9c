# pure: rows of the walk to columns
"""Builds the columns of `schemas.RECORDS` from what the walk finds, those that are wanted and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from epochmq_spark.decode import message_columns as m
from epochmq_spark.decode import walk as w

Array = Any
BATCH_BYTES: Final = 32 << 20
"""The largest size of the records of a batch, if it has bodies or properties: Spark's JVM holds a batch."""
_TEXT_BYTES: Final = 1 << 30  # otherwise: the strings of a column have less than 2 GiB


@dataclass(frozen=True)
class Records:
    """Some records of a segment. `base` is the physical offset of data[0], `rows` those of `walk`, `segment`
    the physical offset at which the segment starts. `in_entries`: they are in a data file of DLedger."""

    group: str
    replica: str
    segment: int
    data: Array
    base: int
    rows: Array
    in_entries: bool

    @property
    def blank(self) -> Array:
        """Which records are blank."""
        return self.rows[:, w.MAGIC] == w.BLANK

    def repeated(self, value: Any) -> pa.Array:
        """A column with the same value in all rows."""
        return pa.repeat(value, len(self.rows))

    def number(self, column: int, kind: Any) -> pa.Array:
        """A column of the walk; null for blank records."""
        return pa.array(self.rows[:, column].astype(kind), mask=self.blank)

    def text(self, column: int) -> pa.Array:
        """Strings, whose positions and sizes are this column of the walk and the next one. Empty ones are
        null."""
        sizes = self.rows[:, column + 1]
        return m.texts(self.data, self.rows[:, column], sizes, sizes == 0)

    def kinds(self) -> pa.Array:
        """`message` or `blank`."""
        if not self.blank.any():
            return self.repeated("message")
        return pa.array(["message", "blank"]).take(pa.array(self.blank.astype(np.int8)))

    def of_entry(self, column: int) -> pa.Array:
        """A column of the walk about the entry of a message; null where there are none."""
        return pa.array(self.rows[:, column], mask=self.blank | (not self.in_entries))


Builder = Callable[[Records], pa.Array]


def _text(column: int) -> Builder:
    return lambda records: records.text(column)


def _number(column: int, kind: Any) -> Builder:
    return lambda records: records.number(column, kind)


def _plain(column: int) -> Builder:
    return lambda records: pa.array(records.rows[:, column])


_BUILDERS: Final[Mapping[str, tuple[int, Builder]]] = {
    "group": (0, lambda records: records.repeated(records.group)),
    "replica": (0, lambda records: records.repeated(records.replica)),
    "segment": (0, lambda records: records.repeated(pa.scalar(records.segment, pa.int64()))),
    "physical_offset": (0, lambda records: pa.array(records.rows[:, w.POSITION] + records.base)),
    "size": (0, _plain(w.SIZE)),
    "kind": (0, Records.kinds),
    "topic": (0, _text(w.TOPIC_AT)),
    "queue_id": (0, _number(w.QUEUE_ID, np.int32)),
    "queue_offset": (0, _number(w.QUEUE_OFFSET, np.int64)),
    "store_timestamp": (0, _number(w.STORE_TIME, np.int64)),
    "sys_flag": (0, _number(w.SYS_FLAG, np.int32)),
    "crc_ok": (w.NEED_CRC, lambda records: pa.array(records.rows[:, w.CRC_OK] == 1)),
    "body_size": (0, _number(w.BODY_SIZE, np.int32)),
    "tags_code": (w.NEED_PROPERTIES, _number(w.TAGS_CODE, np.int64)),
    "tags": (w.NEED_PROPERTIES, _text(w.TAGS_AT)),
    "keys": (w.NEED_PROPERTIES, _text(w.KEYS_AT)),
    "uniq_key": (w.NEED_PROPERTIES, _text(w.UNIQ_AT)),
    "digest": (w.NEED_DIGEST, _plain(w.DIGEST)),
    "store_time": (0, lambda records: m.timestamps(records.rows[:, w.STORE_TIME], records.blank)),
    "born_time": (0, lambda records: m.timestamps(m.born_times(records.data, records.rows), records.blank)),
    "born_host": (0, lambda records: m.born_hosts(records.data, records.rows)),
    "store_host": (0, lambda records: m.store_hosts(records.data, records.rows)),
    "properties": (0, lambda records: m.properties(records.data, records.rows)),
    "properties_text": (0, lambda records: _slices(m.texts, records, w.PROPERTIES_AT)),
    "body": (0, lambda records: _slices(m.slices, records, w.BODY_AT)),
    "entry_index": (0, lambda records: records.of_entry(w.ENTRY_INDEX)),
    "term": (0, lambda records: records.of_entry(w.ENTRY_TERM)),
}
"""By the name of a column, what the walk must find out for it (`walk.NEED_…`), and what builds it."""
_LARGE: Final = frozenset({"properties", "properties_text", "body"})


def _slices(build: Callable[..., pa.Array], records: Records, column: int) -> pa.Array:
    return build(records.data, records.rows[:, column], records.rows[:, column + 1], records.blank)


def needed_for(names: Iterable[str]) -> int:
    """What the walk must find out for these columns."""
    needed = 0
    for name in names:
        needed |= _BUILDERS[name][0]
    return needed


def batches_of(
    records: Records, schema: pa.Schema, without: frozenset[str] = frozenset()
) -> Iterator[pa.RecordBatch]:
    """Records as Arrow batches with the columns of a schema, a part of `schemas.RECORD_COLUMNS` in any order.
    The columns `without` are null."""
    names = set(schema.names) - without
    bytes_max = BATCH_BYTES if names & _LARGE else _TEXT_BYTES
    sizes = np.cumsum(records.rows[:, w.SIZE])
    begin, count = 0, len(records.rows)
    while begin < count:
        before = int(sizes[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(sizes, before + bytes_max, "right")), begin + 1)
        part = replace(records, rows=records.rows[begin:end])
        columns = [
            _BUILDERS[field.name][1](part) if field.name in names else pa.nulls(end - begin, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        begin = end
