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


class _PoppedQueue(msgspec.Struct, frozen=True, gc=False):
    """What the acknowledgements of the messages have in common that one POP received from one queue. `place`:
    topic and queue id. Only the offset of a message is missing in the parts of key, body and properties."""

    place: tuple[str, int]
    group: str
    pop_time: int
    revive_time: int
    out_ms: int
    stats_key: str
    key_start: str
    key_end: str
    batch_key_end: str
    body_end: bytes
    properties_start: bytes
    batch_properties_start: bytes
    properties_end: bytes


class _Waiting(msgspec.Struct, gc=False):
    """The acknowledgements of the present read that are not stored yet, of one `_PoppedQueue`. `opaques`: of
    the requests that are answered when the record is safe."""

    popped: _PoppedQueue
    offsets: list[int]
    opaques: list[tuple[RemotingConnection, int]]


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
        self._waiting: dict[_PoppedKey, _Waiting] = {}
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
        fields = request.fields
        if self._live.current is not self._config or self._topics.generation != self._topics_seen:
            self._clear_cache()
        origin, _, offset_text = fields.extra_info.rpartition(" ")
        key = (origin, fields.topic, fields.consumer_group, fields.queue_id, fields.bname)
        popped = self._popped.get(key)
        if popped is None:
            popped = self._add_popped(key)
        offset = fields.offset
        text = str(offset)
        if request.flag & FLAG_RESPONSE or (offset_text != text and not _is_offset(offset_text)):
            raise FastPathMiss
        self._check_offset(popped.place, offset)
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
        waiting = self._waiting.get(key)
        if waiting is None or len(waiting.offsets) >= BATCH_MAX:
            if waiting is not None:
                self._store(waiting)
            waiting = self._waiting[key] = _Waiting(popped, [], [])
            connection.before_responses = self._store_waiting
        waiting.offsets.append(offset)
        if waits:
            connection.defer(request.opaque, RequestCode.ACK_MESSAGE)
            waiting.opaques.append((connection, request.opaque))
            return None
        oneway = request.flag & FLAG_ONEWAY
        self._counts[ONEWAY_ACKS if oneway else ACKS] += 1
        return None if oneway else encode_success(request.opaque)

    def _store_waiting(self) -> None:
        """Stores the acknowledgements of the present read."""
        for waiting in self._waiting.values():
            self._store(waiting)
        self._waiting.clear()

    def _store(self, waiting: _Waiting) -> None:
        """Stores one record, and answers what waits for it. As on the ordinary path the client is told
        nothing of an acknowledgement that could not be stored: its message comes again."""
        popped, offsets = waiting.popped, waiting.offsets
        group, (topic, queue_id) = popped.group, popped.place
        name, end = PutStatus.UNKNOWN_ERROR.name, 0
        try:
            status, physical_offset, _, size = self._append(popped, offsets)
            name = status.name
            if status is PutStatus.PUT_OK:
                end = physical_offset + size
                if self._writer.on_append is not None:
                    self._writer.on_append()
        except Exception:  # the acknowledgements of other POPs must still be stored
            log.exception("an acknowledgement could not be stored")
        if not end:
            log.error("%d acknowledgements of %s could not be stored: %s", len(offsets), popped.place, name)
        self._pop.revive_log.puts.add(group, topic, ACK, name)
        stats = self._stats
        stats.add(BROKER_ACK_NUMS, stats.cluster, len(offsets))
        stats.add(GROUP_ACK_NUMS, popped.stats_key, len(offsets))
        self._pop.in_flight.remove(topic, group, queue_id, popped.pop_time, len(offsets))
        if waiting.opaques:
            self._respond_when_safe(waiting.opaques, end)

    def _append(self, popped: _PoppedQueue, offsets: list[int]) -> AppendResult:
        """Appends the record of these acknowledgements."""
        if len(offsets) == 1:
            uniq_key = f"{popped.key_start}{offsets[0]}{popped.key_end}"
            body = b'{"ao":%d,%b' % (offsets[0], popped.body_end)
            start, tags = popped.properties_start, _ACK_TAGS_CODE
        else:
            uniq_key = f"{popped.key_start}[{', '.join(map(str, offsets))}]{popped.batch_key_end}"
            body = b'{"ao":-1,"aol":[%b],%b' % (",".join(map(str, offsets)).encode(), popped.body_end)
            start, tags = popped.batch_properties_start, _BATCH_TAGS_CODE
        return self._log.append(
            self._log.queue(TIMER_TOPIC, 0),
            body=body,
            properties=b"%b%b%b" % (start, uniq_key.encode(), popped.properties_end),
            born_timestamp=now_ms(),
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
            or min(start, pop_time, invisible, queue_named) < 0
            or max(start, revive_time, queue_named) > LONG_MAX
            or not all(name and is_plain(name) for name in (broker, group, topic))
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
        start_of, batch_start_of = (
            (
                f"{PROPERTY_TAGS}\x01{tag}\x02{PROPERTY_TIMER_DELIVER_MS}\x01{revive_time}\x02"
                f"{PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX}\x01"
            ).encode()
            for tag in (ACK_TAG, BATCH_ACK_TAG)
        )
        popped = self._popped[key] = _PoppedQueue(
            (topic, queue_id),
            group,
            pop_time,
            revive_time,
            out_ms,
            f"{topic}@{group}",
            f"{topic}@{queue_id}@",
            f"@{group}@{pop_time}@{broker}@{ACK_TAG}",
            f"@{group}@{pop_time}@{BATCH_ACK_TAG}",
            (
                f'"bn":"{broker}","c":"{group}","pt":{pop_time},"q":{queue_id},"so":{start},"t":"{topic}"}}'
            ).encode(),
            start_of,
            batch_start_of,
            (
                f"\x02{PROPERTY_TIMER_OUT_MS}\x01{out_ms}\x02"
                f"{real_place(self._pop.revive_log.topic, revive_queue_id)}"
            ).encode(),
        )
        return popped

    def _clear_cache(self) -> None:
        self._popped.clear()
        self._config = self._live.current
        self._topics_seen = self._topics.generation

    def _check_offset(self, place: tuple[str, int], offset: int) -> None:
        """Raises FastPathMiss unless the queue exists and has this offset, or ends there."""
        queue = self._queues.get(place)
        if queue is None or not queue.min_offset <= offset <= self._log.max_offset(queue):
            raise FastPathMiss

    def _respond_when_safe(self, opaques: list[tuple[RemotingConnection, int]], end: int) -> None:
        """Responds once the log is safe up to `end`, whether or not that succeeds."""

        def respond(_: PutStatus) -> None:
            for connection, opaque in opaques:
                connection.respond_encoded(opaque, encode_success(opaque))

        self._writer.when_safe(end, respond)


def _is_offset(text: str) -> bool:
    """Whether the text is an offset, written in any way."""
    try:
        return 0 <= int(text) <= LONG_MAX
    except ValueError:
        return False
