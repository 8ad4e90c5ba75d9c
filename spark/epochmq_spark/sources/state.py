"""Reads the state files of POP, filters, request modes, static topics, access control and timer as rows:
the data source `epochmq.state`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from epochmq_protocol.errors import EpochMQError
from epochmq_spark import files, schemas, store_layout
from epochmq_spark.decode.state_tables import STATE_FILES
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource


class StateSource(ReplicaDataSource):
    """Rows of `schemas.STATE`."""

    arrow_schema = schemas.STATE

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.state"

    def create_reader(self) -> StateReader:
        """The reader."""
        return StateReader(self.replicas(), self.options)


class StateReader(FileRangeReader):
    """Reads state files; each is one range, whose `topic` is the name of the file."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The state files that have a parser."""
        for name in STATE_FILES:
            place = files.join(replica.location, name)
            yield FileRange(replica.group, replica.name, place, 0, 1, 0, 1, topic=name)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The entries. A missing file has no rows; an unreadable one has a single row with a fault."""
        columns: dict[str, object] = {
            "group": file_range.group,
            "replica": file_range.replica,
            "file": file_range.topic,
        }
        try:
            entries = STATE_FILES[file_range.topic](files.read(file_range.location))
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError, TypeError, EpochMQError) as error:
            rows = [columns | {"fault": f"{file_range.location}: {error}"}]
        else:
            rows = [
                columns
                | {
                    "topic": entry.topic,
                    "consumer_group": entry.consumer_group,
                    "queue_id": entry.queue_id,
                    "content": entry.content,
                    "fault": "; ".join(detail for _, detail in entry.problems) or None,
                }
                for entry in entries
            ]
        yield pa.RecordBatch.from_pylist(rows, schema=schemas.STATE)
