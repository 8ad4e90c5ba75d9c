"""Serves END_TRANSACTION for plain commits: the fast path of `end_transaction`.

It reads the needed fields of a half message from its record, and appends the committed message with the
record's body and properties, without building a message in between. Before it changes anything it raises
`FastPathMiss` for all else, and `end_transaction` serves the frame from the beginning: for rollbacks, an
unknown state, rejections, a delay, an immunity time, a response that has to wait, and a record that is not in
memory. A test checks that both paths store the same record and respond the same.
"""

from __future__ import annotations

from typing import Final

import msgspec

from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.fast_handler import FastHandler, GateName, encode_success
from epochmq_broker.requests.processors.broker_name_check import names_another_broker
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.request_latencies import COMMITS, ONEWAY_COMMITS
from epochmq_broker.services.transactions.half_messages import HALF_TOPIC
from epochmq_broker.services.transactions.transaction_service import TransactionService
from epochmq_broker.tables.stats import TrafficCounter
from epochmq_broker.writing.message_writer import QUEUE_ID_MAX, TIMER_PROPERTIES, TOPIC_BYTES_MAX
from epochmq_broker.writing.plain_append import PlainRecord, TagsCodes, append_copy, plain_record_reader
from epochmq_protocol import message_const as const
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.errors import FastPathMiss
from epochmq_protocol.frame import FLAG_ONEWAY, FLAG_RESPONSE
from epochmq_protocol.integers import Int, Long
from epochmq_protocol.message import parse_properties
from epochmq_protocol.message_const import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_NUM,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
)
from epochmq_protocol.record_layout import BORN_TIMESTAMP, QUEUE_ID, QUEUE_OFFSET, SYS_FLAG
from epochmq_protocol.topics import is_lmq, is_not_allowed_send_topic, is_service_topic
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.statuses import PutStatus

SPECIAL_PROPERTIES: Final = frozenset(
    [
        PROPERTY_DELAY_TIME_LEVEL,
        PROPERTY_INNER_NUM,
        const.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
        const.PROPERTY_CRC32,
        const.PROPERTY_INNER_MULTI_DISPATCH,
        *TIMER_PROPERTIES,
    ]
)
"""The commit of a half message with one of these is not plain."""
CACHED_QUEUES_MAX: Final = 100_000

_read: Final = plain_record_reader(HALF_TOPIC)


class _Fields(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """The fields that a commit needs. The time of `fromTransactionCheck` matters only with an immunity
    time."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    msg_id: str
    transaction_id: str = ""
    bname: str = ""


class _Request(msgspec.Struct, gc=False):
    code: Int
    fields: _Fields = msgspec.field(name="extFields")
    flag: Int = 0
    opaque: Int = 0


_decode: Final = msgspec.json.Decoder(_Request, strict=False).decode


class _CachedQueue(msgspec.Struct, frozen=True, gc=False):
    """A queue, and the counters of its messages."""

    queue: ConsumeQueue
    traffic: TrafficCounter
    topic: str


class FastEndTransaction:
    """The fast path of one broker. Its cache is cleared when the topic table changes."""

    def __init__(self, context: ProcessorContext, *, transactions: TransactionService) -> None:
        self._counts = context.latencies.fast
        self._live = context.live
        self._standing = context.live.standing
        self._store = context.store
        self._writer = context.writer
        self._topics = context.tables.topics
        self._stats = context.tables.stats
        self._transactions = transactions
        self._queues: dict[tuple[str, str], _CachedQueue] = {}
        self._codes = TagsCodes()
        self._generation = context.tables.topics.generation

    def declaration(self) -> FastHandler:
        """The handler. The writer may not write while requests are held or relayed."""
        return FastHandler(
            codes=(RequestCode.END_TRANSACTION,),
            starts=(b'{"code":37,',),
            serve=self.end_transaction,
            satisfies=frozenset({GateName.BROKER_NAME, GateName.HOLD, GateName.COLD_READS}),
        )

    def end_transaction(self, connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        """Commits one transaction (`FastRequestHandler`)."""
        try:
            request = _decode(header)
        except (ValueError, RecursionError):
            raise FastPathMiss("not a plain header of an end") from None
        fields, config, writer = request.fields, self._live.current, self._writer
        if (
            fields.commit_or_rollback != const.TRANSACTION_COMMIT_TYPE
            or request.flag & FLAG_RESPONSE
            or not self._standing.capabilities.is_master
            or names_another_broker(fields.bname, config.broker_name)
        ):
            raise FastPathMiss
        physical_offset = fields.commit_log_offset
        record = self._record(physical_offset)
        head, encoded = record[0], record[2]
        half_offset = head[QUEUE_OFFSET]
        if half_offset != fields.tran_state_table_offset:
            raise FastPathMiss
        properties = parse_properties(encoded)
        get = properties.get
        uniq_key = get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        if (
            get(const.PROPERTY_PRODUCER_GROUP) != fields.producer_group
            or (fields.transaction_id and uniq_key and fields.transaction_id != uniq_key)
            or not SPECIAL_PROPERTIES.isdisjoint(properties)
        ):
            raise FastPathMiss
        place = get(const.PROPERTY_REAL_TOPIC, ""), get(const.PROPERTY_REAL_QUEUE_ID, "")
        if self._topics.generation != self._generation:
            self._clear_cache()
        cached = self._queues.get(place) or self._cached_queue(*place)
        if writer.may_reject and writer.rejection(get(PROPERTY_WAIT_STORE_MSG_OK, "true")) is not None:
            raise FastPathMiss
        oneway = request.flag & FLAG_ONEWAY
        if not oneway and writer.must_wait(properties):
            raise FastPathMiss
        status, _, _, size = append_copy(
            self._store.append,
            cached.queue,
            record,
            properties,
            properties=encoded,
            sys_flag=head[SYS_FLAG] & ~const.TRANSACTION_ROLLBACK_TYPE | const.TRANSACTION_COMMIT_TYPE,
            codes=self._codes,
            prepared_offset=physical_offset,
        )
        if status is not PutStatus.PUT_OK:
            raise FastPathMiss  # nothing has changed; the ordinary path builds the rejection
        if writer.on_append is not None:
            writer.on_append()
        transactions = self._transactions
        transactions.ops.end(head[QUEUE_ID], half_offset)
        transactions.metrics.add(cached.topic, -1)
        transactions.count_commit(cached.topic, now_ms() - head[BORN_TIMESTAMP])
        traffic = cached.traffic
        traffic.messages += 1
        traffic.bytes += size
        traffic.requests += 1
        self._counts[ONEWAY_COMMITS if oneway else COMMITS] += 1
        return None if oneway else encode_success(request.opaque)

    def _record(self, offset: int) -> PlainRecord:
        """The record at a physical offset. FastPathMiss if there is no plain one of the half topic, or the
        disk would have to be read."""
        try:
            data = self._store.reader.read_resident(offset) if offset >= 0 else None
        except NotResidentError:
            raise FastPathMiss from None
        record = None if data is None else _read(data, 0, len(data), offset)
        if record is None:
            raise FastPathMiss
        return record

    def _cached_queue(self, topic: str, queue_id: str) -> _CachedQueue:
        """Returns the cache entry of a queue, and creates it on first use. FastPathMiss if the topic does not
        exist, or the names are not valid."""
        if self._topics.get(topic) is None or len(topic.encode()) > TOPIC_BYTES_MAX or is_lmq(topic):
            raise FastPathMiss
        try:
            number = int(queue_id)
        except ValueError:
            raise FastPathMiss from None
        if not 0 <= number <= QUEUE_ID_MAX or is_not_allowed_send_topic(topic) or is_service_topic(topic):
            raise FastPathMiss
        if len(self._queues) >= CACHED_QUEUES_MAX:
            self._queues.clear()
        cached = self._queues[topic, queue_id] = _CachedQueue(
            self._store.queue(topic, number), self._stats.put_traffic(topic, number), topic
        )
        return cached

    def _clear_cache(self) -> None:
        self._queues.clear()
        self._generation = self._topics.generation
