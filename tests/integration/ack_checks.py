"""Checks that every acknowledged message of a replica group is stored where its acknowledgement said."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochmq_protocol.message import MessageExt
from tests.support.group_processes import Member
from tests.support.group_traffic import epoch_cache


@dataclass(frozen=True)
class Ack:
    """An acknowledged message: the place that its acknowledgement named, and when it was sent and
    acknowledged (s, monotonic)."""

    body: bytes
    queue_id: int
    queue_offset: int
    position: int
    sent_s: float
    acked_s: float
    address: str


def check_stored(
    queues: Sequence[Sequence[MessageExt]], acks: Sequence[Ack], copies_max: Callable[[bytes], int]
) -> None:
    """Asserts that offsets are dense, that every acknowledged message is at its place, and that no body is
    stored more often than `copies_max` allows (0 for a body that was not sent)."""
    for stored in queues:
        assert [one.queue_offset for one in stored] == list(range(len(stored)))
    for ack in acks:
        stored = queues[ack.queue_id]
        assert ack.queue_offset < len(stored), f"lost: {ack}"
        found = stored[ack.queue_offset]
        assert (found.body, found.physical_offset) == (ack.body, ack.position), f"lost: {ack}: {found}"
    copies = Counter(one.body for stored in queues for one in stored)
    for body, count in copies.items():
        assert count <= copies_max(body), f"{count} times, {copies_max(body)} at most: {body!r}"


def epoch_starts(master: Member) -> list[tuple[int, int]]:
    """(position, epoch) of each epoch's first byte, the oldest first."""
    entries: Any = epoch_cache(master)["epochList"]
    return [(entry["startOffset"], entry["epoch"]) for entry in entries]


def check_masters(starts: Sequence[tuple[int, int]], acks: Sequence[Ack]) -> None:
    """Asserts that no message of an older epoch was sent after a message of a newer epoch was acknowledged,
    and that one broker acknowledged all messages of an epoch."""
    older = sorted(acks, key=lambda ack: ack.position)
    earliest_s = float("inf")
    for start, epoch in reversed(starts):
        of_epoch = [ack for ack in older if ack.position >= start]
        older = [ack for ack in older if ack.position < start]
        for ack in of_epoch:
            assert ack.sent_s < earliest_s, (
                f"a message of epoch {epoch} was sent after a newer epoch had begun: {ack}"
            )
        assert len({ack.address for ack in of_epoch}) <= 1, f"epoch {epoch} had two masters"
        earliest_s = min([earliest_s, *(ack.acked_s for ack in of_epoch)])


def check_seen(queues: Sequence[Sequence[MessageExt]], seen: Mapping[tuple[int, int], int], who: str) -> None:
    """Asserts that everything a consumer saw, as {(queue, offset): CRC-32 of the body}, is stored in the
    end."""
    for (queue_id, offset), crc in seen.items():
        stored = queues[queue_id]
        assert offset < len(stored), (
            f"{who} saw a message that is not stored: queue {queue_id}, offset {offset}"
        )
        assert zlib.crc32(stored[offset].body) == crc, (
            f"{who} saw another body in queue {queue_id} at offset {offset}"
        )
