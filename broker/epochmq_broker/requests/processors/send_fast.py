"""Serves SEND_MESSAGE_V2 for plain messages, also for those of a transaction or with a delivery time: the
fast send path.

It gets a JSON header and a body and returns the encoded response. Everything that can be cached, omitted or
bound in advance is. For a message that is not plain it raises `FastPathMiss` before it changes anything, and
`send` serves the frame from the beginning: for another topic state, a batch, a delay level, a property that
the broker sets, or a message without an id. A test checks that both paths store the same record and respond
the same.
"""

from __future__ import annotations

import time

from msgspec import Struct

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.requests.fast_handler import FastHandler, GateName
from epochmq_broker.requests.processors.broker_name_check import names_another_broker
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.processors.send import (
    DELAY,
    FIFO,
    STORED_CODES,
    TRANSACTION,
    put_rejection,
    response_ext,
)
from epochmq_broker.requests.request_latencies import ONEWAY_SENDS, SENDS
from epochmq_broker.services.timer.put_hook import TimerPutHook
from epochmq_broker.services.timer.recall_handle import encode_handle, handle_prefix
from epochmq_broker.services.transactions.half_messages import HALF_TOPIC
from epochmq_broker.services.transactions.transaction_metrics import TransactionMetrics
from epochmq_broker.tables.stats import MEDIUM_BYTES, SMALL_BYTES, PutCounter
from epochmq_broker.writing.message_writer import TIMER_PROPERTIES
from epochmq_broker.writing.plain_append import TagsCodes, real_place
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import FastPathMiss
from epochmq_protocol.fastpath import SendFields, SendResponseEncoder, decode_send, send_response_template
from epochmq_protocol.frame import FLAG_ONEWAY, FLAG_RESPONSE, Command, encode
from epochmq_protocol.message import COMPRESSED_FLAG, COMPRESSION_TYPE_COMPARATOR
from epochmq_protocol.message_const import (
    PROPERTY_CLUSTER,
    PROPERTY_CRC32,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_POP_CK,
    PROPERTY_PRIORITY,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
    TRANSACTION_ROLLBACK_TYPE,
)
from epochmq_protocol.topics import (
    PERM_WRITE,
    TIMER_TOPIC,
    TopicConfig,
    TopicFilterType,
    is_lmq,
    is_not_allowed_send_topic,
    is_retry_topic,
    is_service_topic,
    validate_topic,
)
from epochmq_protocol.transport.connection import FastRequestHandler, RemotingConnection
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.statuses import PutStatus

SPECIAL_PROPERTIES = frozenset(
    [
        # a message with one of these is not plain; with TRAN_MSG it may be a half message, with one of
        # TIMER_PROPERTIES a timer message
        PROPERTY_DELAY_TIME_LEVEL,
        PROPERTY_TRANSACTION_PREPARED,
        *TIMER_PROPERTIES,
        PROPERTY_INNER_NUM,
        PROPERTY_INNER_MULTI_DISPATCH,
        PROPERTY_PRIORITY,
        # the broker removes or sets these
        PROPERTY_CRC32,
        PROPERTY_POP_CK,
        PROPERTY_MSG_REGION,
        PROPERTY_TRACE_SWITCH,
        PROPERTY_CLUSTER,
    ]
)
SPECIAL_FLAGS = ~(COMPRESSED_FLAG | COMPRESSION_TYPE_COMPARATOR)
"""Bits of sysFlag of messages that are not plain: tags, transactions, hosts, batches."""
SEPARATOR = "\x02"
CACHED_QUEUES_MAX = 100_000

# On the hot path a global costs less than a lookup in the enum.
_PUT_OK = PutStatus.PUT_OK
_SEND_MESSAGE_V2 = int(RequestCode.SEND_MESSAGE_V2)


# opaque, queue id, queue offset, physical offset, unique key, recall handle
_ResponseFields = tuple[int, int, int, int, bytes, bytes]


class _CachedQueue(Struct, frozen=True, gc=False):
    """The data about a queue that is known before a message arrives."""

    queue: ConsumeQueue
    traffic: PutCounter
    suffix: str  # the properties that the broker adds


class _TimerPlace(Struct, frozen=True, gc=False):
    """The data about a queue to which timer messages are addressed."""

    before: str  # the properties that the broker adds: what precedes the value of TIMER_OUT_MS
    after: str  # and what follows it
    handle_prefix: str


class FastSend:
    """The fast send path of one broker. Its cache is cleared when the topic table or a setting changes."""

    def __init__(self, context: ProcessorContext, *, transaction_metrics: TransactionMetrics) -> None:
        self._latencies = context.latencies
        self._static = context.tables.static_topics
        self._transaction_metrics = transaction_metrics
        self._half_queue: _CachedQueue | None = None
        self._timer_queue: _CachedQueue | None = None
        self._live = context.live
        self._store = context.store
        self._writer = context.writer
        self._topics = context.tables.topics
        self._stats = context.tables.stats
        self._store_host = context.store_host
        self._queues: dict[tuple[str, int], _CachedQueue] = {}
        self._timer_places: dict[tuple[str, int], _TimerPlace] = {}
        self._codes = TagsCodes()
        self._generation = context.tables.topics.generation
        self._respond = _response_template(context.live.current, context.store_host)
        self._name = context.live.current.broker_name
        context.live.on_change.append(self._reconfigured)

    def declaration(self) -> FastHandler:
        """The handler. The writer may not write while requests are held or relayed."""
        return FastHandler(
            codes=(RequestCode.SEND_MESSAGE_V2,),
            starts=(b'{"code":310',),
            serve=self._handler(),
            satisfies=frozenset({GateName.BROKER_NAME, GateName.HOLD, GateName.COLD_READS}),
        )

    def _handler(self) -> FastRequestHandler:
        """The handler as a closure: its own variables are the cheapest to access."""
        topics, writer, queues, codes = self._topics, self._writer, self._queues, self._codes
        append, decode, special, stats = self._store.append, decode_send, SPECIAL_PROPERTIES, self._stats
        stored, small_bytes, medium_bytes = _PUT_OK, SMALL_BYTES, MEDIUM_BYTES
        counts, sends = self._latencies.fast, SENDS

        def send(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
            request = decode(header)
            fields = request.fields
            if topics.generation != self._generation:
                self._clear_cache()
            if fields.broker_name != self._name and names_another_broker(fields.broker_name, self._name):
                raise FastPathMiss
            cached = queues.get((fields.topic, fields.queue_id)) or self._cached_queue(fields)
            properties = fields.properties
            uniq_key = tags = keys = wait = ""
            sys_flag, half, is_fifo = fields.sys_flag, False, False
            timer, handle = "", b""
            for entry in properties.split("\x02"):
                name, _, value = entry.partition("\x01")
                if name == PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX:
                    uniq_key = value
                elif name == PROPERTY_TAGS:
                    tags = value
                elif name == PROPERTY_KEYS:
                    keys = value
                elif name == PROPERTY_WAIT_STORE_MSG_OK:
                    wait = value
                elif name in special:
                    if name == PROPERTY_TRANSACTION_PREPARED and value == "true":
                        half = True
                    elif name in TIMER_PROPERTIES and not timer:
                        timer = entry
                    else:
                        raise FastPathMiss
                elif name == PROPERTY_SHARDING_KEY:
                    is_fifo = True
                if entry and not (name and value):
                    raise FastPathMiss
            suffix = cached.suffix
            if timer:
                if half:
                    raise FastPathMiss
                cached, suffix, handle = self._as_timer_message(fields, cached, timer, uniq_key)
            if half:
                sys_flag &= ~TRANSACTION_ROLLBACK_TYPE
                cached, suffix = self._as_half_message(fields, cached, uniq_key)
            if not uniq_key or not body or sys_flag & SPECIAL_FLAGS or fields.batch != "false":
                raise FastPathMiss
            if writer.may_reject and writer.rejection(wait or "true") is not None:
                raise FastPathMiss
            try:
                rendered = f"{properties}{'' if properties[-1] == SEPARATOR else SEPARATOR}{suffix}".encode()
            except UnicodeEncodeError:
                raise FastPathMiss from None
            waits = (
                writer.sends_wait
                and (not wait or writer.waits_always or wait.lower() == "true")
                and not request.flag & FLAG_ONEWAY
            )
            if waits and not connection.can_defer:
                raise FastPathMiss  # the ordinary path rejects the message before storing it
            status, physical_offset, queue_offset, size = append(
                cached.queue,
                body=body,
                properties=rendered,
                born_timestamp=fields.born_timestamp,
                born_host=connection.remote_host,
                flag=fields.flag,
                sys_flag=sys_flag,
                reconsume_times=fields.reconsume_times,
                tags_code=codes[tags],
                uniq_key=uniq_key,
                keys=keys,
            )
            if status is not stored:
                raise FastPathMiss  # nothing has changed; the ordinary path builds the rejection
            if writer.on_append is not None:
                writer.on_append()
            traffic = cached.traffic
            traffic.received_bytes += size
            if size <= small_bytes:
                traffic.small += 1
            elif size <= medium_bytes:
                traffic.medium += 1
            else:
                traffic.receive_large(size)
            if half:
                self._transaction_metrics.add(fields.topic, 1)
                stats.count_type(HALF_TOPIC, TRANSACTION, 1, size)
            elif timer:
                stats.count_type(TIMER_TOPIC, FIFO if is_fifo else DELAY, 1, size)
            elif is_fifo:
                stats.count_type(fields.topic, FIFO, 1, size)
            if request.flag & FLAG_ONEWAY:
                counts[ONEWAY_SENDS] += 1
                return None
            response_fields = (
                request.opaque,
                fields.queue_id,
                queue_offset,
                physical_offset,
                uniq_key.encode(),
                handle,
            )
            if waits:
                self._respond_later(connection, response_fields, physical_offset + size)
                return None
            counts[sends] += 1
            return self._respond(*response_fields)

        return send

    def _respond_later(
        self, connection: RemotingConnection, response_fields: _ResponseFields, end: int
    ) -> None:
        """Responds when the message is safe, or after the timeout."""
        opaque = response_fields[0]
        connection.defer(opaque, _SEND_MESSAGE_V2)
        frame = self._respond(*response_fields)

        def done(status: PutStatus) -> None:
            if status is _PUT_OK:
                data = frame
            elif status not in STORED_CODES:
                config = self._live.current
                error = put_rejection(status, config, self._live.standing.refusal())
                ext = response_ext(config)
                command = Command(
                    int(error.code), opaque=opaque, flag=FLAG_RESPONSE, remark=error.remark, ext=ext
                )
                connection.respond_encoded(opaque, encode(command))
                return
            else:
                respond = _response_template(self._live.current, self._store_host, STORED_CODES[status])
                data = respond(*response_fields)
            connection.respond_encoded(opaque, data)

        self._writer.when_safe(end, done)

    def _cached_queue(self, fields: SendFields) -> _CachedQueue:
        """Returns the cache entry of a queue, and creates it on first use. Raises FastPathMiss if the queue
        does not exist, or its messages are not plain."""
        config = self._live.current
        name, queue_id = fields.topic, fields.queue_id
        topic = self._topics.get(name)
        if (
            topic is None
            or name in self._static.table
            or not _is_plain(topic)
            or time.time() * 1000 < config.start_accept_send_request_time_stamp
        ):
            raise FastPathMiss
        if not config.broker_permission & PERM_WRITE and topic.order:
            raise FastPathMiss
        if not 0 <= queue_id < max(topic.write_queue_nums, topic.read_queue_nums):
            raise FastPathMiss
        if len(self._queues) >= CACHED_QUEUES_MAX:
            self._queues.clear()
        cached = _CachedQueue(
            self._store.queue(name, queue_id),
            self._stats.put_traffic(name, queue_id),
            _suffix(config),
        )
        self._queues[name, queue_id] = cached
        return cached

    def _as_half_message(
        self, fields: SendFields, cached: _CachedQueue, uniq_key: str
    ) -> tuple[_CachedQueue, str]:
        """Returns the half queue, and the properties that the broker adds to this half message
        (`half_messages.make_half_message`). Raises FastPathMiss if half messages are rejected, or if the
        message has such a property already."""
        if self._live.current.reject_transaction_message or fields.reconsume_times:
            raise FastPathMiss
        if "REAL_" in fields.properties or PROPERTY_TRANSACTION_ID in fields.properties:
            raise FastPathMiss
        half = self._half_queue
        if half is None:
            half = self._half_queue = _CachedQueue(
                self._store.queue(HALF_TOPIC, 0), self._stats.put_traffic(HALF_TOPIC, 0), ""
            )
        suffix = (
            f"{cached.suffix}{PROPERTY_TRANSACTION_ID}\x01{uniq_key}\x02"
            f"{real_place(fields.topic, fields.queue_id)}"
        )
        return half, suffix

    def _as_timer_message(
        self, fields: SendFields, cached: _CachedQueue, entry: str, uniq_key: str
    ) -> tuple[_CachedQueue, str, bytes]:
        """Returns the queue of the timer topic, the properties that the broker adds to this message, and its
        recall handle. `entry` is the property with the delivery time. Raises FastPathMiss if the message is
        due already, may be rejected, or has such a property already."""
        hook, properties = self._writer.timer_hook, fields.properties
        name, _, text = entry.partition("\x01")
        if not isinstance(hook, TimerPutHook) or "REAL_" in properties or PROPERTY_TIMER_OUT_MS in properties:
            raise FastPathMiss
        out_ms = hook.plain_out_ms(name, text)
        if out_ms is None:
            raise FastPathMiss
        timer = self._timer_queue
        if timer is None:
            timer = self._timer_queue = _CachedQueue(
                self._store.queue(TIMER_TOPIC, 0), self._stats.put_traffic(TIMER_TOPIC, 0), ""
            )
        place = self._timer_places.get((fields.topic, fields.queue_id)) or self._timer_place(fields, cached)
        try:
            handle = encode_handle(place.handle_prefix, out_ms + 1, uniq_key)
        except UnicodeEncodeError:
            raise FastPathMiss from None
        return timer, f"{place.before}{out_ms}{place.after}", handle

    def _timer_place(self, fields: SendFields, cached: _CachedQueue) -> _TimerPlace:
        """Creates the entry of a queue for its timer messages."""
        if len(self._timer_places) >= CACHED_QUEUES_MAX:
            self._timer_places.clear()
        place = self._timer_places[fields.topic, fields.queue_id] = _TimerPlace(
            f"{cached.suffix}{PROPERTY_TIMER_OUT_MS}\x01",
            f"\x02{real_place(fields.topic, fields.queue_id)}",
            handle_prefix(fields.topic, self._name),
        )
        return place

    def _clear_cache(self) -> None:
        self._queues.clear()
        self._timer_places.clear()
        self._half_queue = self._timer_queue = None
        self._generation = self._topics.generation

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self._clear_cache()
        self._respond = _response_template(after, self._store_host)
        self._name = after.broker_name


def _is_plain(topic: TopicConfig) -> bool:
    """Whether messages of this topic need nothing that only the ordinary path does."""
    name = topic.topic_name
    kept_whole = {"queue.type", "cleanup.policy"}.isdisjoint(topic.attributes)
    single_tag = topic.topic_filter_type is TopicFilterType.SINGLE_TAG
    allowed = validate_topic(name) is None and not (is_not_allowed_send_topic(name) or is_service_topic(name))
    return kept_whole and single_tag and allowed and not is_retry_topic(name) and not is_lmq(name)


def _suffix(config: BrokerConfig) -> str:
    trace_on = "true" if config.trace_on else "false"
    return (
        f"{PROPERTY_MSG_REGION}\x01{config.region_id}\x02{PROPERTY_TRACE_SWITCH}\x01{trace_on}\x02"
        f"{PROPERTY_CLUSTER}\x01{config.broker_cluster_name}\x02"
    )


def _response_template(
    config: BrokerConfig, store_host: bytes, code: ResponseCode = ResponseCode.SUCCESS
) -> SendResponseEncoder:
    return send_response_template(store_host, config.region_id, is_traced=config.trace_on, code=code)
