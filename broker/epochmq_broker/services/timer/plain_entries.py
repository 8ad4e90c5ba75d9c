"""Takes plain messages into the wheel, many at a time: the fast path of `enqueuer`.

It reads a few fields of each record from the mapped log, adds all units to the timer log in one step, and
sets each slot once. It leaves all other messages to `TimerEnqueuer`: those that roll, delete others or are
due already, those whose record is damaged, and those for which the timer log has no room. A test checks that
both write the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_broker.services.timer.timer_store import NewUnit, TimerStore
from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_protocol.javahash import java_hash
from epochmq_protocol.message_const import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_OUT_MS,
    stored_name,
)
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_store.message_store import MessageStore

_HEAD: Final = record_layout.fields_of_head(
    record_layout.SIZE,
    record_layout.MAGIC,
    record_layout.PHYSICAL_OFFSET,
    record_layout.SYS_FLAG,
    record_layout.BORN_TIMESTAMP,
    record_layout.STORE_TIMESTAMP,
    record_layout.BODY_SIZE,
)
_TOPIC_FIELD: Final = bytes([len(TIMER_TOPIC)]) + TIMER_TOPIC.encode()
_OUT_MS: Final = b"\x02" + stored_name(PROPERTY_TIMER_OUT_MS)
_REAL_TOPIC: Final = b"\x02" + stored_name(PROPERTY_REAL_TOPIC)
_DELETE_KEY: Final = stored_name(PROPERTY_TIMER_DEL_UNIQKEY)
_DIGITS_MAX: Final = 18


class PlainEntries:
    """Takes plain messages of one store into the wheel. It counts like `TimerEnqueuer`."""

    def __init__(self, store: MessageStore, timers: TimerStore, metrics: TimerMetrics) -> None:
        self.stored_at_ms = 0
        """When the message that was taken last had been stored."""
        self._store = store
        self._timers = timers
        self._metrics = metrics

    def take(
        self, units: Sequence[tuple[int, int, int]], not_before_ms: int, window_ms: int, *, counts: bool
    ) -> int:
        """Takes the first of these messages of the timer topic's queue, whose records are in memory, and
        returns how many. Stops at a message that is not plain, for example because it is due before
        `not_before_ms`, or `window_ms` after its store time. `counts`: whether the messages count as pending
        in the metrics."""
        file = self._store.log.files.find(units[0][0])
        room = self._timers.room(len(units))
        if file is None or not room:
            return 0
        log, start, end, precision_ms = file.map, file.start, file.end, self._timers.wheel.precision_ms
        read, head_size, read_end = _HEAD.unpack_from, _HEAD.size, _place_at_end
        entries: list[NewUnit] = []
        delays: dict[tuple[bytes, int], int] = {}
        for physical, size, _ in units[:room]:
            if not (start <= physical and head_size < size <= end - physical):
                break
            at = physical - start
            size_there, magic, physical_there, flags, born_ms, stored_ms, body = read(log, at)
            if size_there != size or physical_there != physical or magic != const.MAGIC_V1:
                break
            if flags & record_layout.HOSTS_V6 or not 0 <= body < size:
                break
            tail = log[at + head_size + body : at + size]
            if not (tail.startswith(_TOPIC_FIELD) and tail.endswith(b"\x02")) or _DELETE_KEY in tail:
                break
            placed = read_end(tail[tail.rfind(_OUT_MS) :]) or _place(tail)
            if placed is None:
                break
            out_ms, topic, topic_hash = placed
            if out_ms < not_before_ms or out_ms - stored_ms + stored_ms % precision_ms >= window_ms:
                break
            entries.append((out_ms, physical, size, topic_hash))
            known = topic, (out_ms - born_ms) // 1000
            delays[known] = delays.get(known, 0) + 1
            self.stored_at_ms = stored_ms
        if entries:
            self._timers.add_all(entries)
            self._count(delays, counts=counts)
        return len(entries)

    def _count(self, delays: dict[tuple[bytes, int], int], *, counts: bool) -> None:
        for (name, delay_s), times in delays.items():
            topic = name.decode("utf-8", "replace")
            self._metrics.count_enqueued(topic, delay_s * 1000, times)
            if counts:
                self._metrics.add(topic, times)


@lru_cache(maxsize=1024)
def _place_at_end(end: bytes) -> tuple[int, bytes, int] | None:
    """`_place` of properties that end like this, from TIMER_OUT_MS on: many messages that are stored one
    after the other have the same end. None if REAL_TOPIC is not there."""
    return _place(end)


def _place(properties: bytes) -> tuple[int, bytes, int] | None:
    """TIMER_OUT_MS, the real topic and its hash code; None unless these properties have both."""
    out_at = properties.rfind(_OUT_MS) + len(_OUT_MS)
    topic_at = properties.rfind(_REAL_TOPIC) + len(_REAL_TOPIC)
    if out_at < len(_OUT_MS) or topic_at < len(_REAL_TOPIC):
        return None
    out = properties[out_at : properties.find(b"\x02", out_at)]
    topic = properties[topic_at : properties.find(b"\x02", topic_at)]
    if not (topic and out.isdigit() and len(out) <= _DIGITS_MAX):
        return None
    return int(out), topic, java_hash(topic.decode("utf-8", "replace"))
