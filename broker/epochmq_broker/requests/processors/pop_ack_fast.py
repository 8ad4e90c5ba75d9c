"""Serves ACK_MESSAGE for plain acknowledgements: the fast path of `pop_ack`.

It writes the record of the acknowledgement straight into the timer topic, as the message writer and the
timer's hook would. The acknowledgements of one read for the same POP and queue become one record, as those of
a BATCH_ACK_MESSAGE do; it is written before the first of them is answered.

Before it changes anything it raises `FastPathMiss` for all else, and `pop_ack` serves the frame from the
beginning: for orderly POPs, checkpoints in memory, rejections, acknowledgements that are due already, and
names that JSON escapes. A test checks that both paths store the same record and respond the same.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.fast_handler import FastHandler, GateName, Port, encode_success
from epochmq_broker.requests.processors.broker_name_check import names_another_broker
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.request_latencies import ACKS, ONEWAY_ACKS
from epochmq_broker.services.pop.checkpoints import is_plain
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.services.pop.revive_log import ACK
from epochmq_broker.services.timer.put_hook import TimerPutHook
from epochmq_broker.tables.stats import BROKER_ACK_NUMS, GROUP_ACK_NUMS
from epochmq_broker.writing.plain_append import real_place
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.errors import FastPathMiss
from epochmq_protocol.frame import FLAG_ONEWAY, FLAG_RESPONSE
from epochmq_protocol.integers import LONG_MAX, Int, Long
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.message_const import (
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from epochmq_protocol.pop_records import ACK_TAG, BATCH_ACK_TAG
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_store.appending.appender import AppendResult
from epochmq_store.statuses import PutStatus

log = logging.getLogger(__name__)

HEADER_START: Final = b'{"code":2000'
"""Of ACK_MESSAGE and some other codes; the handler looks at the rest of the number."""
POPPED_MAX: Final = 4096
"""POPs of one queue whose acknowledgements are prepared."""
BATCH_MAX: Final = 128
"""Acknowledgements in one record."""

_REST_OF_CODE: Final = b"51,"
_CODE_END: Final = len(HEADER_START) + len(_REST_OF_CODE)
_STORED: Final = PutStatus.PUT_OK.name
_ACK_TAGS_CODE: Final = tags_code(ACK_TAG)
_BATCH_TAGS_CODE: Final = tags_code(BATCH_ACK_TAG)


class _Fields(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """The fields of AckMessageRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    bname: str = ""


class _Request(msgspec.Struct, gc=False):
    fields: _Fields = msgspec.field(name="extFields")
    flag: Int = 0
    opaque: Int = 0


_PoppedKey = tuple[str, str, str, int, str]
"""`extraInfo` without the offset of the message, topic, group, queue id, and the broker's name in the
header."""


class _PoppedQueue(msgspec.Struct, gc=False):
    """What the acknowledgements of the messages have in common that one POP received from one queue. `place`:
    topic and queue id. Only the offset of a message is missing in the parts of key, body and properties; they
    are those of a record of one acknowledgement, since most are the only one of their POP in a read.

    `waiting`: the offsets of the acknowledgements of the present read that are not stored yet. `opaques`: of
    the requests that are answered when their record is safe."""

    place: tuple[str, int]
    group: str
    pop_time: int
    revive_time: int
    out_ms: int
    stats_key: str
    key_start: str
    key_end: str
    body_end: str
    properties_start: str
    properties_end: str
    waiting: list[str]
    opaques: list[tuple[RemotingConnection, int]]


class _Series(msgspec.Struct, gc=False):
    """The latest acknowledgement of the present read, if its response does not wait. Further ones of the same
    POP and queue need no other check than those that they have this in common, and that their offset is one
    of the queue's: from `first` to `end`, which is the end of the queue. `waiting` is that of their
    `_PoppedQueue`."""

    origin: str
    topic: str
    group: str
    queue_id: int
    bname: str
    first: int
    end: int
    waiting: list[str]


_decode: Final = msgspec.json.Decoder(_Request, strict=False).decode


class FastPopAck:
    """The fast path of one broker."""

    def __init__(self, context: ProcessorContext, *, pop: PopService) -> None:
        self._counts = context.latencies.fast
        self._live = context.live
        self._log = context.store
        self._writer = context.writer
        self._topics = context.tables.topics
        self._stats = context.tables.stats
        self._pop = pop
        self._queues = context.store.queues
        self._popped: dict[_PoppedKey, _PoppedQueue] = {}
        self._waiting: list[_PoppedQueue] = []
        self._series: _Series | None = None
        self._born_ms = 0
        self._config = context.live.current
        self._topics_seen = context.tables.topics.generation

    def declaration(self) -> FastHandler:
        """The handler. The writer may not write while requests are held or relayed."""
        return FastHandler(
            codes=(RequestCode.ACK_MESSAGE,),
            starts=(HEADER_START,),
            serve=self.ack,
            satisfies=frozenset({GateName.BROKER_NAME, GateName.HOLD, GateName.COLD_READS}),
            ports=(Port.MAIN,),
        )

    def ack(self, connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        """Acknowledges one message (`FastRequestHandler`)."""
        if header[len(HEADER_START) : _CODE_END] != _REST_OF_CODE:
            raise FastPathMiss
        try:
            request = _decode(header)
        except (ValueError, RecursionError):
            raise FastPathMiss("not a plain acknowledgement") from None
        fields, offset = request.fields, request.fields.offset
        if self._live.current is not self._config or self._topics.generation != self._topics_seen:
            self._clear_cache()
        series = self._series
        if (
            series is not None
            and not request.flag
            and series.first <= offset <= series.end
            and fields.extra_info == f"{series.origin} {offset}"
            and fields.topic == series.topic
            and fields.consumer_group == series.group
            and fields.queue_id == series.queue_id
            and fields.bname == series.bname
            and len(series.waiting) < BATCH_MAX
        ):
            series.waiting.append(str(offset))
            self._counts[ACKS] += 1
            return encode_success(request.opaque)
        origin, _, offset_text = fields.extra_info.rpartition(" ")
        key = (origin, fields.topic, fields.consumer_group, fields.queue_id, fields.bname)
        popped = self._popped.get(key)
        if popped is None:
            popped = self._add_popped(key)
        text = str(offset)
        if request.flag & FLAG_RESPONSE or (offset_text != text and not _is_offset(offset_text)):
            raise FastPathMiss
        queue = self._queues.get(popped.place)
        if queue is None or not queue.min_offset <= offset <= self._log.max_offset(queue):
            raise FastPathMiss  # the offset is neither in the queue nor its end
        writer, hook, present_ms = self._writer, self._writer.timer_hook, now_ms()
        if writer.may_reject and writer.rejection("true") is not None:
            raise FastPathMiss
        waits = writer.sends_wait and not request.flag & FLAG_ONEWAY
        if waits and not connection.can_defer:
            raise FastPathMiss
        if (
            not isinstance(hook, TimerPutHook)
            or present_ms >= popped.revive_time
            or not hook.has_room(popped.out_ms)
        ):
            raise FastPathMiss
        waiting = popped.waiting
        if not waiting or len(waiting) >= BATCH_MAX:
            if waiting:
                self._store_waiting()
            self._waiting.append(popped)
            self._born_ms = present_ms
            connection.before_responses = self._store_waiting
        waiting.append(text)
        self._series = (
            None if waits else _Series(*key, queue.min_offset, self._log.max_offset(queue), waiting)
        )
        if waits:
            connection.defer(request.opaque, RequestCode.ACK_MESSAGE)
            popped.opaques.append((connection, request.opaque))
            return None
        oneway = request.flag & FLAG_ONEWAY
        self._counts[ONEWAY_ACKS if oneway else ACKS] += 1
        return None if oneway else encode_success(request.opaque)

    def _store_waiting(self) -> None:
        """Stores the acknowledgements of the present read, and answers what waits for them. As on the
        ordinary path the client is told nothing of an acknowledgement that could not be stored: its message
        comes again."""
        stats, pop, on_append, total = self._stats, self._pop, self._writer.on_append, 0
        for popped in self._waiting:
            count, name, end = len(popped.waiting), _STORED, 0
            try:
                status, physical_offset, _, size = self._append(popped)
                if status is PutStatus.PUT_OK:
                    end = physical_offset + size
                    if on_append is not None:
                        on_append()
                else:
                    name = status.name
            except Exception:  # the acknowledgements of other POPs must still be stored
                log.exception("an acknowledgement could not be stored")
                name = name if end else PutStatus.UNKNOWN_ERROR.name
            popped.waiting.clear()
            if not end:
                log.error("%d acknowledgements of %s could not be stored: %s", count, popped.place, name)
            group, (topic, queue_id) = popped.group, popped.place
            total += count
            pop.revive_log.puts.add(group, topic, ACK, name)
            stats.add(GROUP_ACK_NUMS, popped.stats_key, count)
            pop.in_flight.remove(topic, group, queue_id, popped.pop_time, count)
            if popped.opaques:
                self._respond_when_safe(popped, end)
        stats.add(BROKER_ACK_NUMS, stats.cluster, total, len(self._waiting))
        self._waiting.clear()
        self._series = None

    def _append(self, popped: _PoppedQueue) -> AppendResult:
        """Appends the record of the acknowledgements that wait."""
        waiting = popped.waiting
        if len(waiting) == 1:
            offset = waiting[0]
            uniq_key = f"{popped.key_start}{offset}{popped.key_end}"
            body = f'{{"ao":{offset},{popped.body_end}'
            start, tags = popped.properties_start, _ACK_TAGS_CODE
        else:
            key_end = f"@{popped.group}@{popped.pop_time}@{BATCH_ACK_TAG}"
            uniq_key = f"{popped.key_start}[{', '.join(waiting)}]{key_end}"
            body = f'{{"ao":-1,"aol":[{",".join(waiting)}],{popped.body_end}'
            start, tags = _properties_start(BATCH_ACK_TAG, popped.revive_time), _BATCH_TAGS_CODE
        return self._log.append(
            self._queues[TIMER_TOPIC, 0],
            body=body.encode(),
            properties=f"{start}{uniq_key}{popped.properties_end}".encode(),
            born_timestamp=self._born_ms,
            born_host=self._pop.revive_log.host,
            tags_code=tags,
            uniq_key=uniq_key,
        )

    def _add_popped(self, key: _PoppedKey) -> _PoppedQueue:
        """The new cache entry for these acknowledgements. Raises FastPathMiss if the ordinary path has to
        serve them."""
        origin, topic, group, queue_id, bname = key
        config = self._config
        try:
            start_text, pop_text, invisible_text, revive_text, _, broker, queue_text = origin.split(" ")
            start, pop_time, invisible = int(start_text), int(pop_text), int(invisible_text)
            revive_queue_id, queue_named = int(revive_text), int(queue_text)
        except ValueError:
            raise FastPathMiss("not a plain acknowledgement") from None
        revive_time = pop_time + invisible
        if (
            not self._live.standing.capabilities.is_master
            or config.enable_pop_buffer_merge
            or names_another_broker(bname, config.broker_name)
            or not 0 <= revive_queue_id < config.revive_queue_num
            or not (0 <= start <= LONG_MAX and 0 <= queue_named <= LONG_MAX)
            or not 0 <= pop_time <= revive_time <= LONG_MAX
            or not (broker and group and topic and is_plain(f"{broker}{group}{topic}"))
        ):
            raise FastPathMiss
        found, hook = self._topics.get(topic), self._writer.timer_hook
        if found is None or not 0 <= queue_id < found.read_queue_nums:
            raise FastPathMiss
        out_ms = hook.held_until_ms(revive_time) if isinstance(hook, TimerPutHook) else None
        if out_ms is None:
            raise FastPathMiss
        if len(self._popped) >= POPPED_MAX:
            self._popped.clear()
        popped = self._popped[key] = _PoppedQueue(
            (topic, queue_id),
            group,
            pop_time,
            revive_time,
            out_ms,
            f"{topic}@{group}",
            f"{topic}@{queue_id}@",
            f"@{group}@{pop_time}@{broker}@{ACK_TAG}",
            f'"bn":"{broker}","c":"{group}","pt":{pop_time},"q":{queue_id},"so":{start},"t":"{topic}"}}',
            _properties_start(ACK_TAG, revive_time),
            (
                f"\x02{PROPERTY_TIMER_OUT_MS}\x01{out_ms}\x02"
                f"{real_place(self._pop.revive_log.topic, revive_queue_id)}"
            ),
            [],
            [],
        )
        return popped

    def _clear_cache(self) -> None:
        self._popped.clear()
        self._series = None
        self._config = self._live.current
        self._topics_seen = self._topics.generation

    def _respond_when_safe(self, popped: _PoppedQueue, end: int) -> None:
        """Responds once the log is safe up to `end`, whether or not that succeeds."""
        opaques, popped.opaques = popped.opaques, []

        def respond(_: PutStatus) -> None:
            for connection, opaque in opaques:
                connection.respond_encoded(opaque, encode_success(opaque))

        self._writer.when_safe(end, respond)


def _properties_start(tag: str, revive_time: int) -> str:
    """The properties of a record before its key."""
    return (
        f"{PROPERTY_TAGS}\x01{tag}\x02{PROPERTY_TIMER_DELIVER_MS}\x01{revive_time}\x02"
        f"{PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX}\x01"
    )


def _is_offset(text: str) -> bool:
    """Whether the text is an offset, written in any way."""
    try:
        return 0 <= int(text) <= LONG_MAX
    except ValueError:
        return False
