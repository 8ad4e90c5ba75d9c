"""Finds the messages of topics through their consume queues, where these prove that the rest of the log has
none.

A consume queue without a hole lists all messages of its queue between its first and its last unit. So the log
is walked only

- before the first unit, unless an earlier unit points to what has expired: the queue may have lost its
  beginning, or the topic was deleted and made again, and old messages lie there;
- behind the last unit: the queue may not have been built yet, or have lost its end.

With several queues it is walked before the latest beginning and behind the earliest end. The whole log is
walked if the table of topics names a queue without units, if units have holes or point to no segment, and for
topics with batch consume queues. Each message that is looked up must be of the unit's topic, queue, queue
offset and size; otherwise the part of the log around it is walked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from epochmq_formats.queue_unit import PRE_BLANK_SIZE, UNIT_BYTES
from epochmq_protocol import fastjson
from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_protocol.errors import EpochMQError
from epochmq_spark import files, store_layout
from epochmq_spark.checks.former_topics import TOPICS_FILE
from epochmq_spark.decode.queue_units import UNIT
from epochmq_spark.sources.file_ranges import FileRange

Array = Any
PLACE, SIZE, QUEUE_ID, QUEUE_OFFSET, TOPIC = range(5)
"""The columns of a message to look up, all int64: physical offset, size, queue, queue offset, and the number
of its topic."""
COLUMNS: Final = 5
LOG_SHARE: Final = 4  # topics with more than this part of the log are found faster by a walk
QUEUES_MAX: Final = 4096  # further ones are not read, but the log is walked


@dataclass(frozen=True)
class PlacedRange(FileRange):
    """A range of a segment of which the wanted messages are known. `places` is an int64 array of rows of the
    columns above, as bytes, in the order of the log."""

    places: bytes = b""
    topics: tuple[str, ...] = ()

    @property
    def cost(self) -> int:
        """The bytes to read."""
        return int(self.rows()[:, SIZE].sum())

    def split(self, bytes_max: int) -> Iterator[FileRange]:
        """The range itself: it was made no larger."""
        yield self

    def rows(self) -> Array:
        """The places as an array."""
        return np.frombuffer(self.places, np.int64).reshape(-1, COLUMNS)


def log_ranges(
    replica: store_layout.AuditedReplica, log: Sequence[store_layout.DataFile], low: int, high: int
) -> Iterator[FileRange]:
    """The parts of segments in [low, high)."""
    for file in log:
        begin = min(max(low - file.start, 0), file.size)
        end = min(max(high - file.start, 0), file.size)
        if begin < end:
            yield FileRange.of(replica, file, begin, end)


def topic_ranges(
    replica: store_layout.AuditedReplica,
    contents: store_layout.StoreContents,
    topics: Iterable[str],
    window: tuple[int, int],
    range_bytes: int,
) -> list[FileRange] | None:
    """Ranges that have all messages of these topics in a window of the log; None if the whole log must be
    walked."""
    names = tuple(sorted(topics))
    if not contents.log or not names:
        return None
    queues = _queues_of(replica.location, contents, names)
    if queues is None:
        return None
    log_start = contents.log[0].start
    head, tail, places = log_start, OFFSET_MAX, []
    for number, queue in queues:
        units = _read_queue(queue)
        if units is None:
            return None
        is_expired = units[:, PLACE] < log_start
        units[:, TOPIC] = number
        kept = units[~is_expired]
        if not len(kept):
            return None
        if not is_expired.any():
            head = max(head, int(kept[0, PLACE]))
        tail = min(tail, int(kept[-1, PLACE] + kept[-1, SIZE]))
        places.append(kept)
    low, high = window
    found = np.concatenate(places)
    within = (found[:, PLACE] >= max(head, low)) & (found[:, PLACE] < min(tail, high))
    found = found[within]
    found = found[np.argsort(found[:, PLACE], kind="stable")]
    log_bytes = sum(file.size for file in contents.log)
    if head >= tail or int(found[:, SIZE].sum()) * LOG_SHARE > log_bytes:
        return None
    ranges = list(log_ranges(replica, contents.log, low, min(head, high)))
    for file in contents.log:
        of_file = found[(found[:, PLACE] >= file.start) & (found[:, PLACE] < file.start + file.size)]
        found = found[len(of_file) :]
        ranges += _placed(replica, file, of_file, (max(head, low), min(tail, high)), names, range_bytes)
    if len(found):  # units that point to no segment
        return None
    return ranges + list(log_ranges(replica, contents.log, max(tail, low), high))


def _queues_of(
    location: str, contents: store_layout.StoreContents, topics: Sequence[str]
) -> list[tuple[int, store_layout.ConsumeQueueFiles]] | None:
    """The consume queues of topics, with the number of the topic; None if one may be missing."""
    table = _queue_counts(location)
    batch = {queue.topic for queue in contents.batch_queues}
    found = []
    for number, topic in enumerate(topics):
        queues = [queue for queue in contents.queues if queue.topic == topic]
        ids = {queue.queue_id for queue in queues}
        count = table.get(topic, 0)
        if not count or count > QUEUES_MAX or topic in batch or not ids.issuperset(range(count)):
            return None
        found += [(number, queue) for queue in queues]
    return found if len(found) <= QUEUES_MAX else None


def _queue_counts(location: str) -> dict[str, int]:
    """The number of queues of each topic in the store's table of topics; empty without a valid table."""
    try:
        parsed = fastjson.loads(files.read(files.join(location, *TOPICS_FILE.split("/"))))
        table = parsed["topicConfigTable"]
        return {
            str(topic): max(int(one.get("readQueueNums", 0)), int(one.get("writeQueueNums", 0)))
            for topic, one in table.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, EpochMQError):
        return {}


def _read_queue(queue: store_layout.ConsumeQueueFiles) -> Array | None:
    """The units of a queue as rows of a place; None if there are none, if they have a hole, do not follow
    the order of the log, or cannot be read."""
    parts = []
    for file in queue.files:
        if file.start % UNIT_BYTES:
            return None
        try:
            data = files.read_range(file.location, 0, file.size)
        except OSError:
            return None
        units = np.frombuffer(data[: len(data) // UNIT_BYTES * UNIT_BYTES], UNIT)
        sizes, physical = units["size"].astype(np.int64), units["physical"].astype(np.int64)
        used = np.flatnonzero((sizes > 0) & ~((sizes == PRE_BLANK_SIZE) & (physical == 0)))
        part = np.zeros((len(used), COLUMNS), np.int64)
        part[:, PLACE], part[:, SIZE] = physical[used], sizes[used]
        part[:, QUEUE_ID], part[:, QUEUE_OFFSET] = queue.queue_id, used + file.start // UNIT_BYTES
        parts.append(part)
    found = np.concatenate(parts) if parts else np.zeros((0, COLUMNS), np.int64)
    if not len(found) or found[0, PLACE] < 0:
        return None
    has_hole = (np.diff(found[:, QUEUE_OFFSET]) != 1).any()
    is_disordered = (np.diff(found[:, PLACE]) < found[:-1, SIZE]).any()
    return None if has_hole or is_disordered else found


def _placed(
    replica: store_layout.AuditedReplica,
    file: store_layout.DataFile,
    places: Array,
    window: tuple[int, int],
    topics: tuple[str, ...],
    range_bytes: int,
) -> Iterator[PlacedRange]:
    """The places of a segment in ranges of at most `range_bytes` of messages. The ranges touch each other and
    reach from the first place on to the end of the segment or of the window."""
    sizes = np.cumsum(places[:, SIZE])
    begin = 0
    while begin < len(places):
        before = int(sizes[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(sizes, before + range_bytes, "right")), begin + 1)
        first = max(window[0], file.start) if begin == 0 else int(places[begin, PLACE])
        stop = int(places[end, PLACE]) if end < len(places) else min(window[1], file.start + file.size)
        yield PlacedRange(
            replica.group,
            replica.name,
            file.location,
            file.start,
            file.size,
            first - file.start,
            stop - file.start,
            header_bytes=file.header_bytes,
            places=places[begin:end].tobytes(),
            topics=topics,
        )
        begin = end
