"""Splits the files of consume queues into ranges."""

from __future__ import annotations

from collections.abc import Iterator

from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_protocol.topics import LMQ_PREFIX
from epochmq_spark import store_layout
from epochmq_spark.sources.file_ranges import FileRange

RANGE_BYTES = UNIT_BYTES * (1 << 20)


def queue_file_ranges(
    replica: store_layout.AuditedReplica, contents: store_layout.StoreContents
) -> Iterator[FileRange]:
    """The files of the consume queues, in ranges of whole units. Light queues (%LMQ%) are left out: their
    units point to messages of other topics."""
    for queue in contents.queues:
        if queue.topic.startswith(LMQ_PREFIX):
            continue
        for file in queue.files:
            for begin in range(0, file.size, RANGE_BYTES):
                end = min(begin + RANGE_BYTES, file.size)
                yield FileRange(
                    replica.group,
                    replica.name,
                    file.location,
                    file.start,
                    file.size,
                    begin,
                    end,
                    queue.topic,
                    queue.queue_id,
                )
