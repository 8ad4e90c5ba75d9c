"""Reads a range of a commit log as Arrow batches of the wanted columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from epochmq_spark.decode.record_columns import Records, batches_of, needed_for
from epochmq_spark.sources.file_ranges import FileRange
from epochmq_spark.sources.log_chunks import read_chunks


def read_records(
    file_range: FileRange, columns: pa.Schema, without: frozenset[str] = frozenset()
) -> Iterator[pa.RecordBatch]:
    """The records that start in a range. The columns `without` are null. Raises OSError."""
    needed = needed_for(set(columns.names) - without)
    for chunk in read_chunks(file_range, needed=needed):
        records = Records(
            file_range.group,
            file_range.replica,
            file_range.base,
            chunk.data,
            chunk.base,
            chunk.rows,
            chunk.in_entries,
        )
        yield from batches_of(records, columns, without)
