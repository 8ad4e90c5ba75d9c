"""`epochmq.offsets`: how far consumer groups are, by each replica's `config/consumerOffset.json`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from epochmq_protocol import fastjson
from epochmq_protocol.errors import EpochMQError
from epochmq_spark import files, layout, tables
from epochmq_spark.sources.base import Piece, PiecesReader, ReplicasSource

FILE = "config/consumerOffset.json"


class OffsetsSource(ReplicasSource):
    """Rows of `tables.OFFSETS`."""

    arrow_schema = tables.OFFSETS

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "epochmq.offsets"

    def reader(self, schema: StructType) -> OffsetsReader:
        """Reads it."""
        return OffsetsReader(self.replicas(), self.options)


class OffsetsReader(PiecesReader):
    """One file a replica."""

    def pieces_of(self, replica: layout.Replica) -> Iterator[Piece]:
        """The file."""
        yield Piece(replica.group, replica.name, files.join(replica.place, FILE), 0, 1, 0, 1)

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The offsets; a row with a fault for a file that cannot be read, nothing for one that is not
        there."""
        who: dict[str, object] = {"group": piece.group, "replica": piece.replica}
        try:
            rows = offsets(files.read(piece.place))
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError, EpochMQError) as error:
            rows = [{"fault": f"{piece.place}: {error}"}]
        yield pa.RecordBatch.from_pylist([who | row for row in rows], schema=tables.OFFSETS)


def offsets(data: bytes) -> list[dict[str, object]]:
    """The rows of a file. Raises ValueError or EpochMQError."""
    parsed = fastjson.loads(data)
    table = parsed.get("offsetTable") if isinstance(parsed, dict) else None
    if not isinstance(table, dict):
        raise ValueError("no offsetTable")
    found: list[dict[str, object]] = []
    for name, queues in table.items():
        topic, _, group = str(name).partition("@")
        if not isinstance(queues, dict):
            raise ValueError(f"{name}: expected offsets by queue")
        for queue_id, offset in queues.items():
            found.append(
                {"consumer_group": group, "topic": topic, "queue_id": int(queue_id), "offset": int(offset)}
            )
    return found
