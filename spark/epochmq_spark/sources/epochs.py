"""Reads epoch files as rows, one for each entry: the data source `epochmq.epochs`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from epochmq_spark import files, schemas, store_layout
from epochmq_spark.decode.epoch_file import parse_epoch_text
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource


class EpochsSource(ReplicaDataSource):
    """Rows of `schemas.EPOCHS`."""

    arrow_schema = schemas.EPOCHS

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.epochs"

    def create_reader(self) -> EpochsReader:
        """The reader."""
        return EpochsReader(self.replicas(), self.options)


class EpochsReader(FileRangeReader):
    """Reads epoch files; each is one range."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The epoch file and its .bak."""
        for name in (store_layout.EPOCH_FILE, f"{store_layout.EPOCH_FILE}.bak"):
            yield FileRange(replica.group, replica.name, files.join(replica.location, name), 0, 1, 0, 1)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The entries. A missing file has no rows; an unreadable one has a single row with a fault."""
        file = files.name_of(file_range.location)
        try:
            text = files.read(file_range.location).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            entries: list[tuple[int, int]] = []
            fault: str | None = f"cannot be read: {error}"
        else:
            entries, fault = parse_epoch_text(text)
        rows: list[dict[str, object]] = [
            {"line": line, "epoch": epoch, "start_offset": start}
            for line, (epoch, start) in enumerate(entries, 3)
        ]
        rows = rows or [{"line": 0, "epoch": None, "start_offset": None}]
        columns: dict[str, object] = {
            "group": file_range.group,
            "replica": file_range.replica,
            "file": file,
            "fault": fault,
        }
        yield pa.RecordBatch.from_pylist([columns | row for row in rows], schema=schemas.EPOCHS)
