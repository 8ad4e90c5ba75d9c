"""Pops one queue for a group: finds the offset, reads the messages, and stores their checkpoint (RocketMQ's
PopMessageProcessor.popMsgFromQueue)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from struct import Struct as Layout
from typing import Final

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.processors.first_message_in_memory import is_first_message_in_memory
from epochmq_broker.services.pop.checkpoints import PopCheckPoint
from epochmq_broker.services.pop.extra_info import (
    ExtraInfo,
    message_offsets_entry,
    retry_flag,
    start_offset_entry,
)
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_broker.tables.filters.message_filter import MessageFilter
from epochmq_broker.tables.stats import BROKER_CK_NUMS, GROUP_CK_NUMS, BrokerStats
from epochmq_protocol import message as records
from epochmq_protocol.headers_client import PopMessageRequestHeader
from epochmq_protocol.message_const import PROPERTY_POP_CK
from epochmq_protocol.topics import is_retry_topic
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.statuses import GetResult, GetStatus, PutStatus

log = logging.getLogger(__name__)

INIT_MODE_MIN: Final = 0
"""The header's initMode: a group without an offset begins at the first message; otherwise with the last
one."""

_SIZE: Final = Layout(">i")
_QUEUE_OFFSET: Final = Layout(">q")
_QUEUE_OFFSET_AT: Final = 20  # in a record, after size, magic, CRC, queue id and flag

EXAMINED_MAX: Final = 64
"""Messages of one queue for which one POP evaluates an expression."""

WRONG_OFFSET: Final = frozenset(
    {GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL}
)
SKIPPED: Final = frozenset(
    {
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)


class PopResult:
    """What a POP has collected so far. `rest` counts the messages that are left in the queues; `advanced` is
    whether any queue's offset has advanced without a message."""

    def __init__(self, pop_time: int, revive_queue_id: int, *, order: bool) -> None:
        self.pop_time = pop_time
        self.revive_queue_id = revive_queue_id
        self.order = order
        self.count = 0
        self.rest = 0
        self.advanced = False
        self.records: list[bytes | memoryview] = []
        """Some may be views of the mapped log until the end of the event loop's iteration (`keep`)."""
        self.start_offsets: list[str] = []
        self.message_offsets: list[str] = []
        self.order_counts: list[str] = []

    def keep(self) -> None:
        """Copies the records, because the round continues in another iteration."""
        self.records = [bytes(one) for one in self.records]


class QueuePopper:
    """Pops queues."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        offsets: ConsumerOffsetTable,
        stats: BrokerStats,
        pop: PopService,
    ) -> None:
        self._live = live
        self._store = store
        self._offsets = offsets
        self._stats = stats
        self._pop = pop

    def pop(
        self,
        header: PopMessageRequestHeader,
        topic: str,
        queue_id: int,
        wanted: MessageFilter,
        result: PopResult,
    ) -> None:
        """Pops one queue into `result`, without messages if that is full already. Raises NotResidentError
        before anything has changed, and RequestError."""
        config, group = self._live.current, header.consumer_group
        queue = self._store.readable_queue(topic, queue_id)
        if config.enable_pop_message_threshold:
            in_flight = self._pop.in_flight.count(topic, group, queue_id)
            if in_flight > config.pop_inflight_message_threshold:
                offset = self._offset(header, topic, queue_id, queue, init=False)
                result.rest += self._store.max_offset(queue) - offset
                return
        offset = self._offset(header, topic, queue_id, queue, init=True)
        if result.count >= header.max_msg_nums and not result.order:
            result.rest += self._store.max_offset(queue) - offset
            return
        if result.order:
            if self._pop.orders.blocks(header.attempt_id, topic, group, queue_id, header.invisible_time):
                return
            self._pop.in_flight.clear(topic, group, queue_id)
        count_max = header.max_msg_nums - result.count
        if count_max <= 0 or not self._has_room(topic, group, queue_id):
            result.rest += self._store.max_offset(queue) - offset
            return
        found = self._get(queue, offset, count_max, wanted)
        if found.status in WRONG_OFFSET:
            log.warning(
                "group %s continues on %s-%d at offset %d instead of %d: %s",
                group,
                topic,
                queue_id,
                found.next_offset,
                offset,
                found.status.value,
            )
            self._offsets.commit(group, topic, queue_id, found.next_offset)
            offset = found.next_offset
            found = self._get(queue, offset, count_max, wanted)
        if found.status is GetStatus.FOUND:
            if not self._take(header, topic, queue_id, offset, found, result):
                result.rest += found.max_offset - offset
                return
        elif found.status in SKIPPED and found.next_offset >= 0:
            result.advanced |= found.next_offset > offset
            if result.order:
                self._offsets.commit(group, topic, queue_id, found.next_offset)
            else:
                self._pop.buffer.add_stored(
                    (topic, group, queue_id), found.next_offset, 0, self._pop.sink.safe_end()
                )
        result.rest += found.max_offset - found.next_offset

    def _get(self, queue: ConsumeQueue, offset: int, count_max: int, wanted: MessageFilter) -> GetResult:
        """Reads messages. An expression is evaluated for a few messages; the next POP examines the next
        ones. As in RocketMQ the client filters those of a compacted queue."""
        compacted = self._pop.compacted.queue_of(queue.topic, queue.queue_id)
        if compacted is not None:
            return self._pop.compacted.get(compacted, offset, count_max)
        if wanted.select is None:
            return self._store.get(queue, offset, count_max, tags=wanted.tags)
        reader = self._store.reader
        resident = reader.resident_only is not None
        return reader.get_selected(
            queue, offset, count_max, wanted.select, examine_max=EXAMINED_MAX, resident=resident
        )

    # where to continue

    def _offset(
        self, header: PopMessageRequestHeader, topic: str, queue_id: int, queue: ConsumeQueue, *, init: bool
    ) -> int:
        """The offset at which the group continues. With `init` a reset is taken, and the first offset of a
        new group committed."""
        offsets, group = self._offsets, header.consumer_group
        committed = offsets.query(group, topic, queue_id)
        if committed is None:
            committed = self._first_offset(header, topic, queue_id, queue)
            if init:
                offsets.commit(group, topic, queue_id, committed)
        key = (topic, group, queue_id)
        if init and offsets.has_resets:
            reset = offsets.take_reset(group, topic, queue_id)
            if reset is not None:
                self._pop.orders.clear(topic, group, queue_id)
                self._pop.buffer.forget(key)
                offsets.commit(group, topic, queue_id, reset)
                return reset
        return max(committed, self._pop.buffer.latest_offset(key))

    def _first_offset(
        self, header: PopMessageRequestHeader, topic: str, queue_id: int, queue: ConsumeQueue
    ) -> int:
        """The first offset of a group that has none: that of the first message, or of the last one."""
        if header.init_mode == INIT_MODE_MIN or is_retry_topic(topic):
            return max(self._pop.compacted.min_offset(queue), 0)
        if self._live.current.init_pop_offset_by_check_msg_in_mem and is_first_message_in_memory(
            self._store, topic, queue_id
        ):
            return 0
        return max(0, self._store.max_offset(queue) - 1)

    def _has_room(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether one more POP of the queue may be pending. A replica that lags does not stop POPs if masters
        may acknowledge without it."""
        buffer, key = self._pop.buffer, (topic, group, queue_id)
        if buffer.has_room(key, self._pop.settings):
            return True
        buffer.advance(self._pop.sink.safe_end(acknowledged=True))
        return buffer.has_room(key, self._pop.settings)

    # what was found

    def _take(
        self,
        header: PopMessageRequestHeader,
        topic: str,
        queue_id: int,
        offset: int,
        found: GetResult,
        result: PopResult,
    ) -> bool:
        """Adds the found messages to the result, once they have a checkpoint. Returns whether they have
        one."""
        group = header.consumer_group
        pieces = found.pieces
        offsets = found_offsets(found, offset)
        if result.order:
            result.order_counts += self._pop.orders.update(
                header.attempt_id, topic, group, queue_id, result.pop_time, header.invisible_time, offsets
            )
            self._offsets.commit(group, topic, queue_id, offset)
        elif not self._add_checkpoint(header, topic, queue_id, offset, offsets, found.next_offset, result):
            return False
        traffic = self._stats.get_traffic(group, topic, queue_id)
        traffic.messages += found.count
        traffic.bytes += found.size
        traffic.requests += 1
        result.start_offsets.append(start_offset_entry(topic, queue_id, offset))
        result.message_offsets.append(message_offsets_entry(topic, queue_id, offsets))
        result.count += len(offsets)
        if topic == header.topic or self._live.current.pop_response_return_actual_retry_topic:
            result.records += pieces
        else:
            result.records += self._renamed(header, topic, offset, pieces, result)
        self._pop.in_flight.add(topic, group, queue_id, len(offsets))
        return True

    def _add_checkpoint(
        self,
        header: PopMessageRequestHeader,
        topic: str,
        queue_id: int,
        offset: int,
        offsets: Sequence[int],
        next_offset: int,
        result: PopResult,
    ) -> bool:
        """Keeps or stores the checkpoint of the found messages. Returns False if it could not be stored; the
        messages must not be handed out then."""
        config, group = self._live.current, header.consumer_group
        checkpoint = PopCheckPoint(
            count=len(offsets),
            pop_time=result.pop_time,
            invisible_time=header.invisible_time,
            start_offset=offset,
            group=group,
            topic=topic,
            queue_id=queue_id,
            diffs=[at - offset for at in offsets],
            broker_name=config.broker_name,
        )
        key, revive_queue_id = (topic, group, queue_id), result.revive_queue_id
        buffered = config.enable_pop_buffer_merge and self._pop.buffer.add_buffered(
            checkpoint, key, revive_queue_id, next_offset, self._pop.settings, now_ms()
        )
        if not buffered:
            stored = self._pop.revive_log.put_checkpoint(checkpoint, revive_queue_id)
            if stored.status is not PutStatus.PUT_OK:
                log.error(
                    "group %s gets no messages of %s-%d: their checkpoint could not be stored: %s",
                    group,
                    topic,
                    queue_id,
                    stored.status.value,
                )
                return False
            self._pop.buffer.add_stored(key, next_offset, stored.end, self._pop.sink.safe_end())
        self._pop.wake()
        self._stats.add(BROKER_CK_NUMS, self._stats.cluster)
        self._stats.add(GROUP_CK_NUMS, f"{header.topic}@{group}")
        return True

    def _renamed(
        self,
        header: PopMessageRequestHeader,
        topic: str,
        start_offset: int,
        pieces: Sequence[bytes | memoryview],
        result: PopResult,
    ) -> list[bytes]:
        """The records of a retry topic under the name of the topic itself, each with its `extraInfo`, which
        the client cannot derive from the response."""
        renamed = []
        for piece in pieces:
            for message in records.decode_records(bytes(piece)):
                info = ExtraInfo(
                    start_offset,
                    result.pop_time,
                    header.invisible_time,
                    result.revive_queue_id,
                    retry_flag(topic),
                    self._live.current.broker_name,
                    message.queue_id,
                    message.queue_offset,
                )
                if PROPERTY_POP_CK not in records.parse_properties(message.properties):
                    message.properties = records.append_property(
                        message.properties, PROPERTY_POP_CK, info.encode()
                    )
                message.topic = header.topic
                renamed.append(records.encode_record(message))
        return renamed


def found_offsets(found: GetResult, first: int) -> Sequence[int]:
    """The queue offsets of the messages of a get from the offset `first` on."""
    pieces, count = found.pieces, found.count
    if found.next_offset - first == count == len(pieces):  # no message was passed over
        ends = [_QUEUE_OFFSET.unpack_from(piece, _QUEUE_OFFSET_AT)[0] for piece in (pieces[0], pieces[-1])]
        if ends == [first, first + count - 1]:
            return range(first, first + count)
    return [at for piece in pieces for at in queue_offsets(piece)]


def queue_offsets(piece: bytes | memoryview) -> list[int]:
    """The queue offsets of consecutive records."""
    found = []
    at = 0
    while at < len(piece):
        (size,) = _SIZE.unpack_from(piece, at)
        assert size > _QUEUE_OFFSET_AT, f"a record of {size} bytes"
        found.append(_QUEUE_OFFSET.unpack_from(piece, at + _QUEUE_OFFSET_AT)[0])
        at += size
    return found
