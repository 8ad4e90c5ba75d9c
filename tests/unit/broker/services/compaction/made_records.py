"""Makes records with keys, and compacted queues, for the tests of compaction."""

from __future__ import annotations

from pathlib import Path

from epochmq_broker.services.compaction.compacted_queue import CompactedQueue, GetLimits
from epochmq_broker.services.compaction.file_pairs import FilePairs, FileSizes
from epochmq_broker.services.compaction.keyed_records import KeyedRecord, keyed_record
from epochmq_broker.services.compaction.position_file import CompactionPositions
from epochmq_protocol.message import MessageExt, decode_records, encode_record, format_properties

SIZES = FileSizes(log=46 * 50, queue=46 * 10)
"""Nine messages, or 2,300 bytes, in each pair."""
LIMITS = GetLimits(1000, 1 << 20, 1000, 1 << 20, 1000, 1 << 20, 1 << 40)
TABLE_BYTES = 1 << 16


def record(offset: int, properties: dict[str, str], body: bytes = b"body") -> bytes:
    """A record as the commit log has it."""
    return encode_record(
        MessageExt(
            "topic",
            body,
            format_properties(properties),
            queue_offset=offset,
            store_timestamp=1_700_000_000_000 + offset,
        )
    )


def keyed(offset: int, key: str = "k", body: bytes = b"body", tag: str = "tag") -> KeyedRecord:
    """A record with a key."""
    found = keyed_record(record(offset, {"KEYS": key, "TAGS": tag}, body), 0)
    assert found is not None
    return found


def file_pairs(directory: Path, *, load: bool = True, trusted: bool = True) -> FilePairs:
    """The files of one queue below a directory."""
    pairs = FilePairs(directory / "log", directory / "queue", SIZES)
    if load:
        pairs.load(trusted=trusted)
    return pairs


def offsets_of(pairs: FilePairs) -> list[int]:
    """The queue offsets of all messages, by their records."""
    found = []
    for pair in pairs.pairs:
        for unit, data in pairs.records(pair):
            (message,) = decode_records(data)
            assert (message.queue_offset, message.physical_offset) == (unit.base, unit.physical)
            found.append(message.queue_offset)
    return found


def compacted_queue(directory: Path, *, trusted: bool = True) -> CompactedQueue:
    """An open queue below a directory."""
    positions = CompactionPositions(directory)
    positions.load()
    queue = CompactedQueue(topic="topic", queue_id=0, directory=directory, sizes=SIZES, positions=positions)
    queue.load(trusted=trusted)
    return queue


def messages_of(queue: CompactedQueue) -> list[tuple[int, bytes]]:
    """(queue offset, body) of all messages, by gets."""
    found: list[tuple[int, bytes]] = []
    offset = 0
    while offset < queue.max_offset:
        result = queue.get(offset, LIMITS)
        found += [(message.queue_offset, message.body) for message in decode_records(result.body)]
        assert result.next_offset > offset
        offset = result.next_offset
    return found
