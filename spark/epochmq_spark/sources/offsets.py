"""Reads the offsets of consumer groups, from `config/consumerOffset.json`, as rows: the data source
`epochmq.offsets`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from epochmq_protocol import fastjson
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.integers import LONG_MAX
from epochmq_protocol.topics import RMQ_SYS_SCHEDULE_TOPIC, is_lmq
from epochmq_spark import files, schemas, store_layout, volume_client
from epochmq_spark.decode.state_values import delay_offsets
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource

FILE = "config/consumerOffset.json"
FILES = (FILE, "config/lmqConsumerOffset.json")  # the second one in place of the first with enableLmq
FAULTS_MAX = 10  # entries that are named
TEXT_MAX = 80  # characters of a wrong value that are shown
DIGITS_MAX = 19  # of a long
DELAY_FILE = "config/delayOffset.json"
DELAY = "delayOffset.json"
"""Stands for the broker, which delivers delayed messages, where other rows have a consumer group. The name
of a group has no dot."""
QUEUE_ID_MAX = 2**31 - 1
QUEUE_ENDS = "queueEnds.json"
"""A file that only a frozen volume has: the ends of its queues at the moment of the request."""


class OffsetsSource(ReplicaDataSource):
    """Rows of `schemas.OFFSETS`."""

    arrow_schema = schemas.OFFSETS

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.offsets"

    def create_reader(self) -> OffsetsReader:
        """The reader."""
        return OffsetsReader(self.replicas(), self.options)


class OffsetsReader(FileRangeReader):
    """Reads the consumer offsets of each replica. A frozen volume adds the ends of its queues, as rows
    without a consumer group."""

    names: tuple[str, ...] = FILES

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The file of offsets; of a frozen volume the ends of its queues, too."""
        names = self.names
        for name in names if not volume_client.is_remote(replica.location) else (*names, QUEUE_ENDS):
            yield FileRange(replica.group, replica.name, files.join(replica.location, name), 0, 1, 0, 1)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The offsets. A missing file has no rows; an unreadable one has a single row with a fault."""
        columns: dict[str, object] = {"group": file_range.group, "replica": file_range.replica}
        try:
            data = files.read(file_range.location)
            parse = next((one for end, one in _PARSERS.items() if _ends_with(file_range.location, end)), None)
            rows = (parse or parse_offsets)(data)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError, EpochMQError) as error:
            rows = [{"fault": str(error)}]
        for row in rows:
            if "fault" in row:
                row["fault"] = f"{file_range.location}: {row['fault']}"
        yield pa.RecordBatch.from_pylist([columns | row for row in rows], schema=schemas.OFFSETS)


class ProgressReader(OffsetsReader):
    """Reads what the audit compares with the ends of queues: besides the offsets of consumer groups those of
    the delay levels, as rows of the group `DELAY`."""

    names = (*FILES, DELAY_FILE)


def parse_delay_offsets(data: bytes) -> list[dict[str, object]]:
    """The rows of a delayOffset.json, as far as its values are valid: another check reports the others."""
    try:
        offsets = delay_offsets(data)
    except (ValueError, EpochMQError):
        return []
    return [
        {"consumer_group": DELAY, "topic": RMQ_SYS_SCHEDULE_TOPIC, "queue_id": level - 1, "offset": offset}
        for level, offset in offsets.items()
    ]


def parse_offsets(data: bytes) -> list[dict[str, object]]:
    """The rows of a consumerOffset.json or lmqConsumerOffset.json, without light queues (%LMQ%). Entries that
    no broker writes are left out, and named by one row with a `fault`. Raises ValueError or EpochMQError for
    a file that is no table of offsets."""
    parsed = fastjson.loads(data)
    table = parsed.get("offsetTable") if isinstance(parsed, dict) else None
    if not isinstance(table, dict):
        raise ValueError("no offsetTable")
    rows: list[dict[str, object]] = []
    faults: list[str] = []
    for name, queues in table.items():
        topic, separator, group = str(name).partition("@")
        if is_lmq(topic):
            continue
        if not separator or not isinstance(queues, dict):
            faults.append(f"{str(name)[:TEXT_MAX]!r}: expected topic@group with offsets by queue")
            continue
        for queue_id, offset in queues.items():
            queue, place = _number(queue_id, QUEUE_ID_MAX), _number(offset, LONG_MAX)
            if queue is None or place is None:
                entry = f"{str(name)[:TEXT_MAX]!r} has the offset {str(offset)[:TEXT_MAX]} for queue "
                faults.append(f"{entry}{str(queue_id)[:TEXT_MAX]}, expected numbers that are not negative")
                continue
            rows.append({"consumer_group": group, "topic": topic, "queue_id": queue, "offset": place})
    if faults:
        more = f"; {len(faults) - FAULTS_MAX} more such entries" if len(faults) > FAULTS_MAX else ""
        rows.append({"fault": "; ".join(faults[:FAULTS_MAX]) + more})
    return rows


def _number(value: object, maximum: int) -> int | None:
    """A number of the table, whose keys are texts in strict JSON; None if it is not one of 0 to `maximum`."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= DIGITS_MAX:
        value = int(value)
    return value if type(value) is int and 0 <= value <= maximum else None


def parse_queue_ends(data: bytes) -> list[dict[str, object]]:
    """The rows of a volume reader's queueEnds.json. Raises ValueError."""
    rows: list[dict[str, object]] = []
    document = json.loads(data)
    for topic, queues in document.items() if isinstance(document, dict) else ():
        for queue_id, end in queues.items():
            queue, place = _number(queue_id, QUEUE_ID_MAX), _number(end, LONG_MAX)
            if queue is None or place is None:
                shown = (
                    f"{str(end)[:TEXT_MAX]} for queue {str(queue_id)[:TEXT_MAX]} of {str(topic)[:TEXT_MAX]}"
                )
                raise ValueError(f"the end {shown}, expected numbers that are not negative")
            rows.append({"topic": topic, "queue_id": queue, "offset": place})
    return rows


_PARSERS = {QUEUE_ENDS: parse_queue_ends, DELAY_FILE: parse_delay_offsets}


def _ends_with(location: str, name: str) -> bool:
    return location.partition("?")[0].endswith(name)
