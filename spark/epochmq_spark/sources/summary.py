"""`epochmq.summary`: the sums that audits compare, one pass over each byte of logs, queues and indexes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from epochmq_spark import layout, tables
from epochmq_spark.decode.summary import SummaryRows, add_records, add_spans
from epochmq_spark.sources.base import Piece, PiecesReader, ReplicasSource
from epochmq_spark.sources.log_pass import chunks


class SummarySource(ReplicasSource):
    """Rows of `tables.SUMMARY`; `epochmq_spark.decode.summary` says what they mean."""

    arrow_schema = tables.SUMMARY

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "epochmq.summary"

    def reader(self, schema: StructType) -> SummaryReader:
        """Reads it."""
        return SummaryReader(self.replicas(), self.options)


class SummaryReader(PiecesReader):
    """Walks the logs."""

    def pieces_of(self, replica: layout.Replica) -> Iterator[Piece]:
        """Segments."""
        for file in layout.contents(replica.place).log:
            yield Piece(replica.group, replica.name, file.place, file.start, file.size, 0, file.size)

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Sums of a range."""
        out = SummaryRows(piece.group, piece.replica)
        try:
            for chunk in chunks(piece):
                add_records(out, chunk.data, chunk.rows, chunk.base)
                add_spans(out, chunk.spans, chunk.base)
        except OSError as error:
            _unreadable(out, piece, error)
        if len(out):
            yield out.batch()


def _unreadable(out: SummaryRows, piece: Piece, error: Exception) -> None:
    nothing: Any = [0]
    said: list[str | None] = [f"{piece.place}: {error}"]
    out.add("file", [piece.base], [piece.base + piece.size], *(nothing,) * 4, detail=said)
