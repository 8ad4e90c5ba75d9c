"""Serves ACK_MESSAGE for plain acknowledgements: the fast path of `pop_ack`.

It writes the record of the acknowledgement straight into the timer topic, as the message writer and the
timer's hook would. Before it changes anything it raises `FastPathMiss` for all else, and `pop_ack` serves the
frame from the beginning: for orderly POPs, checkpoints in memory, rejections, acknowledgements that are due
already, and names that JSON escapes. A test checks that both paths store the same record and respond the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from epochmq_broker.clock import now_ms
from epochmq_broker.config import LiveConfig
from epochmq_broker.message_writer import TIMER_TOPIC, MessageWriter
from epochmq_broker.pop.checkpoints import is_plain
from epochmq_broker.pop.pop_service import PopService
from epochmq_broker.pop.revive_log import ACK
from epochmq_broker.processors.broker_name_check import names_another_broker
from epochmq_broker.request_latencies import ACKS, ONEWAY_ACKS, RequestLatencies
from epochmq_broker.stats import BROKER_ACK_NUMS, GROUP_ACK_NUMS, BrokerStats
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.statuses import PutStatus
from epochmq_broker.timer.put_hook import TimerPutHook
from epochmq_broker.topics import TopicTable
from epochmq_protocol.codes import CURRENT_VERSION, RequestCode
from epochmq_protocol.errors import FastPathMiss
from epochmq_protocol.frame import FLAG_ONEWAY, FLAG_RESPONSE
from epochmq_protocol.headers_base import LONG_MAX, Int, Long
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.pop_records import ACK_TAG
from epochmq_protocol.transport.connection import FastRequestHandler, RemotingConnection

HEADER_START: Final = b'{"code":2000'
"""Of ACK_MESSAGE and some other codes; the handler looks at the rest of the number."""
PLAIN_NAMES_MAX: Final = 10_000

_REST_OF_CODE: Final = b"51,"
_CODE_END: Final = len(HEADER_START) + len(_REST_OF_CODE)
_ACK_TAGS_CODE: Final = tags_code(ACK_TAG)
_RESPONSE: Final = (
    b'{"code":0,"flag":1,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
    % CURRENT_VERSION
)


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


_decode: Final = msgspec.json.Decoder(_Request, strict=False).decode


class FastPopAck:
    """The fast path of one broker."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        writer: MessageWriter,
        topics: TopicTable,
        stats: BrokerStats,
        pop: PopService,
        latencies: RequestLatencies,
    ) -> None:
        self._counts = latencies.fast
        self._live = live
        self._store = store
        self._writer = writer
        self._topics = topics
        self._stats = stats
        self._pop = pop
        self._plain: set[tuple[str, str, str]] = set()

    def fast(self) -> Mapping[bytes, FastRequestHandler]:
        """Start of a JSON header → handler."""
        return {HEADER_START: self.ack}

    def ack(self, connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        """Acknowledges one message (`FastRequestHandler`)."""
        if header[len(HEADER_START) : _CODE_END] != _REST_OF_CODE:
            raise FastPathMiss
        try:
            request = _decode(header)
            fields = request.fields
            start_text, pop_text, invisible_text, revive_text, _, broker, queue_text, offset_text = (
                fields.extra_info.split(" ")
            )
            start, pop_time, invisible = int(start_text), int(pop_text), int(invisible_text)
            revive_queue_id = int(revive_text)
            others = int(queue_text), int(offset_text)
        except (ValueError, RecursionError):
            raise FastPathMiss("not a plain acknowledgement") from None
        config, topic, group = self._live.current, fields.topic, fields.consumer_group
        revive_time = pop_time + invisible
        if (
            request.flag & FLAG_RESPONSE
            or config.broker_role == "SLAVE"
            or config.enable_pop_buffer_merge
            or names_another_broker(fields.bname, config.broker_name)
            or not 0 <= revive_queue_id < config.revive_queue_num
            or min(start, pop_time, invisible, *others) < 0
            or max(start, revive_time, *others) > LONG_MAX
        ):
            raise FastPathMiss
        self._check_names(broker, group, topic)
        self._check_offset(topic, fields.queue_id, fields.offset)
        writer, hook = self._writer, self._writer.timer_hook
        if writer.may_reject and writer.rejection("true") is not None:
            raise FastPathMiss
        waits = writer.sends_wait and not request.flag & FLAG_ONEWAY
        if waits and not connection.can_defer:
            raise FastPathMiss
        out_ms = hook.held_until_ms(revive_time) if isinstance(hook, TimerPutHook) else None
        if out_ms is None:
            raise FastPathMiss
        uniq_key = f"{topic}@{fields.queue_id}@{fields.offset}@{group}@{pop_time}@{broker}@{ACK_TAG}"
        revive_log = self._pop.revive_log
        status, physical_offset, _, size = self._store.append(
            self._store.queue(TIMER_TOPIC, 0),
            body=(
                f'{{"ao":{fields.offset},"bn":"{broker}","c":"{group}","pt":{pop_time},'
                f'"q":{fields.queue_id},"so":{start},"t":"{topic}"}}'
            ).encode(),
            properties=(
                f"TAGS\x01{ACK_TAG}\x02TIMER_DELIVER_MS\x01{revive_time}\x02UNIQ_KEY\x01{uniq_key}\x02"
                f"TIMER_OUT_MS\x01{out_ms}\x02REAL_TOPIC\x01{revive_log.topic}\x02"
                f"REAL_QID\x01{revive_queue_id}\x02"
            ).encode(),
            born_timestamp=now_ms(),
            born_host=revive_log.host,
            tags_code=_ACK_TAGS_CODE,
            uniq_key=uniq_key,
        )
        if status is not PutStatus.PUT_OK:
            raise FastPathMiss  # nothing has changed; the ordinary path reports it
        if writer.on_append is not None:
            writer.on_append()
        revive_log.puts.add(group, topic, ACK, status.name)
        stats = self._stats
        stats.add(BROKER_ACK_NUMS, stats.cluster)
        stats.add(GROUP_ACK_NUMS, f"{topic}@{group}")
        self._pop.in_flight.remove(topic, group, fields.queue_id, pop_time, 1)
        if waits:
            self._respond_when_safe(connection, request.opaque, physical_offset + size)
            return None
        oneway = request.flag & FLAG_ONEWAY
        self._counts[ONEWAY_ACKS if oneway else ACKS] += 1
        return None if oneway else _response(request.opaque)

    def _check_names(self, broker: str, group: str, topic: str) -> None:
        """Raises FastPathMiss for names that are empty, or that JSON escapes."""
        names = (broker, group, topic)
        if names in self._plain:
            return
        if not (all(names) and all(map(is_plain, names))):
            raise FastPathMiss
        if len(self._plain) >= PLAIN_NAMES_MAX:
            self._plain.clear()
        self._plain.add(names)

    def _check_offset(self, name: str, queue_id: int, offset: int) -> None:
        """Raises FastPathMiss unless the queue exists and has this offset, or ends there."""
        topic = self._topics.get(name)
        if topic is None or not 0 <= queue_id < topic.read_queue_nums:
            raise FastPathMiss
        queue = self._store.lookup.existing_queue(name, queue_id)
        if queue is None or not queue.min_offset <= offset <= self._store.max_offset(queue):
            raise FastPathMiss

    def _respond_when_safe(self, connection: RemotingConnection, opaque: int, end: int) -> None:
        """Responds once the log is safe up to `end`, whether or not that succeeds."""
        connection.defer(opaque, RequestCode.ACK_MESSAGE)

        def respond(_: PutStatus) -> None:
            connection.respond_encoded(opaque, _response(opaque))

        self._writer.when_safe(end, respond)


def _response(opaque: int) -> bytes:
    header = _RESPONSE % opaque
    size = len(header)
    return (4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + header
