"""`epochmq.epochs`: epoch files, entry by entry, as they stand."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from epochmq_spark import files, schemas, store_layout
from epochmq_spark.decode.epoch_file import parse
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource


class EpochsSource(ReplicaDataSource):
    """Rows of `tables.EPOCHS`."""

    arrow_schema = schemas.EPOCHS

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "epochmq.epochs"

    def reader(self, schema: StructType) -> EpochsReader:
        """Reads it."""
        return EpochsReader(self.replicas(), self.options)


class EpochsReader(FileRangeReader):
    """One piece for each file; they are small."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The file, and the one before it."""
        for name in (store_layout.EPOCH_FILE, f"{store_layout.EPOCH_FILE}.bak"):
            yield FileRange(replica.group, replica.name, files.join(replica.place, name), 0, 1, 0, 1)

    def batches(self, piece: FileRange) -> Iterator[pa.RecordBatch]:
        """The entries. A file that is not there has no rows; one that cannot be read has one with a fault."""
        file = piece.place.rsplit("/", 1)[-1]
        try:
            text = files.read(piece.place).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            entries: list[tuple[int, int]] = []
            fault: str | None = f"cannot be read: {error}"
        else:
            entries, fault = parse(text)
        rows: list[dict[str, object]] = [
            {"line": line, "epoch": epoch, "start_offset": start}
            for line, (epoch, start) in enumerate(entries, 3)
        ]
        rows = rows or [{"line": 0, "epoch": None, "start_offset": None}]
        who: dict[str, object] = {
            "group": piece.group,
            "replica": piece.replica,
            "file": file,
            "fault": fault,
        }
        yield pa.RecordBatch.from_pylist([who | row for row in rows], schema=schemas.EPOCHS)
