"""`epochmq.offsets`: how far consumer groups are, by each replica's `config/consumerOffset.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from epochmq_protocol import fastjson
from epochmq_protocol.errors import EpochMQError
from epochmq_spark import files, schemas, store_layout, volume_client
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource

FILE = "config/consumerOffset.json"
QUEUE_ENDS = "queueEnds.json"
"""A file that only a frozen volume has: the ends of its queues at the moment of the request."""


class OffsetsSource(ReplicaDataSource):
    """Rows of `tables.OFFSETS`."""

    arrow_schema = schemas.OFFSETS

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "epochmq.offsets"

    def reader(self, schema: StructType) -> OffsetsReader:
        """Reads it."""
        return OffsetsReader(self.replicas(), self.options)


class OffsetsReader(FileRangeReader):
    """One file a replica; of a volume in use also the ends of its queues, as rows without a group."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The file, or both."""
        for name in (FILE, QUEUE_ENDS) if volume_client.is_remote(replica.place) else (FILE,):
            yield FileRange(replica.group, replica.name, files.join(replica.place, name), 0, 1, 0, 1)

    def batches(self, piece: FileRange) -> Iterator[pa.RecordBatch]:
        """The offsets; a row with a fault for a file that cannot be read, nothing for one that is not
        there."""
        who: dict[str, object] = {"group": piece.group, "replica": piece.replica}
        try:
            data = files.read(piece.place)
            rows = queue_ends(data) if piece.place.endswith(QUEUE_ENDS) else offsets(data)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError, EpochMQError) as error:
            rows = [{"fault": f"{piece.place}: {error}"}]
        yield pa.RecordBatch.from_pylist([who | row for row in rows], schema=schemas.OFFSETS)


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


def queue_ends(data: bytes) -> list[dict[str, object]]:
    """The rows of what a reader says of its queues. Raises ValueError."""
    found: list[dict[str, object]] = []
    for topic, queues in json.loads(data).items():
        found += [{"topic": topic, "queue_id": int(one), "offset": int(end)} for one, end in queues.items()]
    return found
