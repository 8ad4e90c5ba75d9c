"""Checks compacted queues: the files of topics with `cleanup.policy=COMPACTION`, below `compaction/`."""

from __future__ import annotations

from typing import Final

from epochmq_formats.batch_unit import BatchUnit
from epochmq_protocol import fastjson
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.message import decode_record
from epochmq_spark.features.batch_queues import used_units
from epochmq_spark.features.replica_reader import FileWindow, ReplicaReader
from epochmq_spark.store_layout import ConsumeQueueFiles

POSITIONS: Final = "compaction/position-checkpoint"


def check_compacted_queues(reader: ReplicaReader) -> None:
    """Reports log files without a queue file and the other way round, units that do not rise or do not lead
    to their record, and positions beyond the end of a queue. A running broker exchanges these files, so they
    are checked after a clean stop only. Raises OSError."""
    if not reader.stopped:
        return
    logs = {(one.topic, one.queue_id): one for one in reader.contents.compaction_logs}
    queues = {(one.topic, one.queue_id): one for one in reader.contents.compaction_queues}
    ends = {}
    for topic, queue_id in sorted(logs.keys() | queues.keys()):
        empty = ConsumeQueueFiles(topic, queue_id, ())
        key = topic, queue_id
        ends[f"{topic}_{queue_id}"] = _check_queue(reader, logs.get(key, empty), queues.get(key, empty))
    _check_positions(reader, ends)


def _check_queue(reader: ReplicaReader, log: ConsumeQueueFiles, queue: ConsumeQueueFiles) -> int:
    """Checks one queue; the queue offset after its last message."""
    of_queue = {"topic": log.topic, "queue_id": log.queue_id}
    log_files = {one.start: one for one in log.files}
    queue_files = {one.start: one for one in queue.files}
    for start in sorted(log_files.keys() ^ queue_files.keys()):
        found, missing = ("log file", "queue file") if start in log_files else ("queue file", "log file")
        file = (log_files | queue_files)[start].location
        reader.report("compaction.missing-file", **of_queue, file=file, detail=f"a {found} without {missing}")
    records = FileWindow(log.files)
    before: BatchUnit | None = None
    for start in sorted(log_files.keys() & queue_files.keys()):
        for unit in used_units(queue_files[start]):
            where = of_queue | {"file": queue_files[start].location, "queue_offset": unit.base}
            if before is not None and (unit.base < before.end or unit.physical <= before.physical):
                detail = f"it has {unit.base} at {unit.physical}, the unit before it ends at {before.end}"
                reader.report("compaction.wrong-unit", **where, detail=detail)
            before = unit
            if not start <= unit.physical < start + log_files[start].size:
                reader.report("compaction.wrong-unit", **where, detail=f"{unit.physical} is in another file")
            elif wrong := _contradiction(log, unit, records.read(unit.physical, unit.size)):
                reader.report("compaction.no-record", **where, detail=wrong)
    return 0 if before is None else before.end


def _contradiction(log: ConsumeQueueFiles, unit: BatchUnit, data: bytes | None) -> str:
    try:
        message = decode_record(data or b"")
    except EpochMQError as error:
        return str(error)
    found = message.topic, message.queue_id, message.queue_offset, message.physical_offset, message.store_size
    expected = log.topic, log.queue_id, unit.base, unit.physical, unit.size
    return "" if found == expected else f"the record is {found}, expected {expected}"


def _check_positions(reader: ReplicaReader, ends: dict[str, int]) -> None:
    data = reader.small_file(POSITIONS)
    if data is None:
        return
    file = reader.path(POSITIONS)
    try:
        document = fastjson.loads(data)
        table = document["queueOffsetMap"]
        positions = {str(key): int(offset) for key, offset in table.items()}
    except (EpochMQError, ValueError, TypeError, KeyError, AttributeError):
        return  # the check of state files reports it
    for key, offset in sorted(positions.items()):
        if key in ends and offset >= ends[key]:
            detail = f"{key} is compacted up to {offset}, its queue ends at {ends[key]}"
            reader.report("compaction.position-ahead", file=file, detail=detail)
