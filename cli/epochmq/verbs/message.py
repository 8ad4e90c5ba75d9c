"""Implements `epochmq message`: shows, exports and sends again messages that a cluster stores.

Nothing here commits an offset: no consumer group notices that its messages are looked at."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from epochmq.client import Producer, ReceivedMessage
from epochmq.client.admin import AdminClient, BrokerAddress
from epochmq.client.routes import readable_queues
from epochmq.client.stored_message_reader import StoredMessageFilter, StoredMessageReader
from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.cluster_calls import ClusterVerb, confirm
from epochmq.verbs.message_json import message_object
from epochmq.verbs.name_checks import check_tags, check_topic
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq.verbs.target import NameserverTarget
from epochmq.verbs.topic import masters_of
from epochmq_protocol import message_const
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError, RetryableError
from epochmq_protocol.topics import is_dlq_topic, is_retry_topic

BODY_CHARS = 60
ALL_MESSAGES = StoredMessageFilter()
SCANNED_MAX = 200_000
"""How many messages of a queue a search for the newest ones with a filter reads."""
RESERVED = frozenset(
    value
    for name, value in vars(message_const).items()
    if name.startswith("PROPERTY_") and isinstance(value, str)
)
SENT_AGAIN = frozenset(
    {message_const.PROPERTY_TAGS, message_const.PROPERTY_KEYS, message_const.PROPERTY_SHARDING_KEY}
)
"""The properties of RocketMQ's that a message keeps when it is sent again, besides those of applications."""


@dataclass(frozen=True, slots=True)
class MessageRange:
    """Which messages of a topic: of one queue (broker, number) or all, from an offset or a time on (ms since
    1970), until a time, and through a filter."""

    queue: tuple[str, int] | None = None
    offset: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    chosen: StoredMessageFilter = ALL_MESSAGES


def message_filter(tag: str | None, sql: str | None) -> StoredMessageFilter:
    """The filter of the options. Raises UsageError if both are given, and for tags that are none."""
    if tag is not None and sql is not None:
        raise UsageError("give --tag or --sql, not both")
    if sql is not None:
        return StoredMessageFilter(sql, is_sql=True)
    return StoredMessageFilter("*" if tag is None else check_tags("--tag", tag))


COLUMNS = (
    Column("BROKER", "brokerName"),
    Column("QUEUE", "queueId"),
    Column("OFFSET", "queueOffset"),
    Column("STORED", "storeTimestamp", is_time=True),
    Column("TAG", "tags"),
    Column("KEY", "keys"),
    Column("ID", "msgId", is_wide=True),
    Column("RETRIES", "reconsumeTimes", is_wide=True),
    Column("BODY", "shownBody"),
)


def messages_result(found: Sequence[ReceivedMessage], *, with_ids: bool = False) -> VerbResult:
    """Messages as a table, with the begin of each body. `with_ids`: also without the format `wide`."""
    objects = [message_object(one) for one in found]
    rows = [{**one, "shownBody": _shown(one)} for one in objects]
    columns = [replace(one, is_wide=False) if with_ids and one.field == "msgId" else one for one in COLUMNS]
    return VerbResult(objects, [OutputTable(columns, rows)], [one["msgId"] for one in objects])


def _shown(document: dict[str, Any]) -> str:
    text = str(document["body"]) if "body" in document else f"base64:{document['bodyBase64']}"
    line = text.replace("\n", "\\n")
    return line if len(line) <= BODY_CHARS else line[: BODY_CHARS - 1] + "…"


def peek(verb: ClusterVerb, topic: str, span: MessageRange, *, key: str | None, count: int) -> int:
    """Prints messages of a topic: those with a key, those from a place on, or the newest."""
    check_topic(topic)
    _check_span(span)
    if key is not None and (span.offset is not None or span.queue is not None):
        raise UsageError("give --key, or --queue and --offset, not both: a key is searched in all queues")
    found = verb.run(lambda client: peeked_messages(client, topic, span, key=key, count=count))
    print_result(messages_result(found), verb.output)
    if not found:
        print_error(f"topic {topic} has no such message")
    return ExitCode.OK


def _check_span(span: MessageRange) -> None:
    """Raises UsageError for a span that ends before it begins."""
    if span.from_ms is not None and span.until_ms is not None and span.until_ms <= span.from_ms:
        raise UsageError("--until is not after --time, so the span has no message: expected a later time")


async def peeked_messages(
    client: AdminClient, topic: str, span: MessageRange, *, key: str | None, count: int
) -> list[ReceivedMessage]:
    """Messages of a topic: those with a key, those from a place on, or the newest."""
    if key is None:
        return await messages_of_topic(client, topic, span, count)
    masters = masters_of(await client.route(topic))
    until_ms = span.until_ms if span.until_ms is not None else (1 << 63) - 1
    reader = StoredMessageReader(client)
    found = await reader.by_key(masters, topic, key, unique=False, from_ms=span.from_ms or 0, to_ms=until_ms)
    return [one for one in found if span.chosen.fits(one)][:count]


async def messages_of_topic(
    client: AdminClient, topic: str, span: MessageRange, count: int
) -> list[ReceivedMessage]:
    """The first messages of a span that says where it begins, else the newest; in the order of storage."""
    reader = StoredMessageReader(client)
    queues = await _queues(client, topic, span.queue)
    begins = span.offset is not None or span.from_ms is not None
    take = _first if begins else _newest
    pages = await client.gather(lambda place: take(reader, *place, span, count), queues)
    found = sorted(
        (one for page in pages for one in page),
        key=lambda one: (one.record.store_timestamp, one.queue, one.record.queue_offset),
    )
    return found[:count] if begins else found[-count:]


async def _queues(
    client: AdminClient, topic: str, queue: tuple[str, int] | None
) -> list[tuple[BrokerAddress, MessageQueue]]:
    route = await client.route(topic)
    brokers = {broker.broker_name: broker for broker in masters_of(route)}
    found = [
        (brokers[one.broker_name], one)
        for one in readable_queues(topic, route)
        if queue is None or (one.broker_name, one.queue_id) == queue
    ]
    if not found:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"topic {topic} has no readable queue {'' if queue is None else f'{queue[0]}:{queue[1]}'}; "
            f"see `epochmq topic describe {topic}`",
        )
    return found


async def _bounds(
    reader: StoredMessageReader, broker: BrokerAddress, queue: MessageQueue, span: MessageRange
) -> tuple[int, int]:
    """The first offset of the span in a queue, and the one after its last."""
    first, end = await reader.bounds(broker, queue)
    if span.offset is not None:
        first = max(first, span.offset)
    if span.from_ms is not None:
        first = max(first, await reader.offset_at(broker, queue, span.from_ms))
    if span.until_ms is not None:
        end = min(end, await reader.offset_at(broker, queue, span.until_ms))
    return first, end


async def _first(
    reader: StoredMessageReader, broker: BrokerAddress, queue: MessageQueue, span: MessageRange, count: int
) -> list[ReceivedMessage]:
    first, end = await _bounds(reader, broker, queue, span)
    found: list[ReceivedMessage] = []
    messages = reader.read(broker, queue, first, end, span.chosen)
    async for one in messages:
        if span.from_ms is not None and one.record.store_timestamp < span.from_ms:
            continue
        found.append(one)
        if len(found) >= count:
            break
    await messages.aclose()
    return found


async def _newest(
    reader: StoredMessageReader, broker: BrokerAddress, queue: MessageQueue, span: MessageRange, count: int
) -> list[ReceivedMessage]:
    """The last messages of a queue. With a filter the search goes back further, to a bound."""
    first, end = await _bounds(reader, broker, queue, span)
    window = count
    while True:
        start = max(first, end - window)
        found = [one async for one in reader.read(broker, queue, start, end, span.chosen)]
        if len(found) >= count or start <= first or window >= SCANNED_MAX:
            return found[-count:]
        window = min(window * 8, SCANNED_MAX)


async def find_message(
    client: AdminClient, text: str, topic: str | None, *, brokers: Collection[str] | None = None
) -> ReceivedMessage:
    """The message with an id: the offset id that a broker gave it or, in a topic, the producer's unique
    key. An offset id names the address to ask; `brokers` are the addresses that it may name, None: any.
    Raises RequestError, and UsageError for an empty id."""
    if not text.strip():
        raise UsageError("ID: the id is empty, expected the id that `epochmq produce` prints")
    reader = StoredMessageReader(client)
    if topic is not None:
        masters = masters_of(await client.route(topic))
        found = await reader.by_key(masters, topic, text, unique=True)
        if found:
            return found[-1]
    try:
        return await reader.by_offset_id(text, brokers)
    except (RequestError, RetryableError) as error:
        where = "" if topic is None else f" in topic {topic}"
        hint = "; give --topic TOPIC if it is the unique key of a producer" if topic is None else ""
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND, f"no message has the id {text:.100}{where} ({error}){hint}"
        ) from None


def get(verb: ClusterVerb, text: str, topic: str | None, *, raw: bool) -> int:
    """Prints one message; with `raw` only its body, unchanged."""
    if topic is not None:
        check_topic(topic)
    found = verb.run(lambda client: find_message(client, text, topic))
    if raw:
        sys.stdout.buffer.write(found.body)
        sys.stdout.buffer.flush()
        return ExitCode.OK
    document = message_object(found)
    fields = [{"field": name, "value": value} for name, value in document.items()]
    table = OutputTable((Column("FIELD", "field"), Column("VALUE", "value")), fields)
    print_result(VerbResult(document, [table], [document["msgId"]]), verb.output)
    return ExitCode.OK


def export(verb: ClusterVerb, topic: str, span: MessageRange, *, file: Path | None, count: int | None) -> int:
    """Writes messages as JSON lines, queue by queue, each in the order of its offsets."""
    check_topic(topic)
    _check_span(span)

    async def action(client: AdminClient) -> int:
        written = 0
        with _output(file) as output:
            async for one in _all(client, topic, span):
                if count is not None and written >= count:
                    break
                output.write(msgspec.json.encode(message_object(one)) + b"\n")
                written += 1
                if written % 10_000 == 0:
                    print_error(f"{written} messages so far")
            output.flush()
        return written

    print_error(f"{verb.run(action)} messages of topic {topic} were written")
    return ExitCode.OK


class _output:  # noqa: N801 (a context manager, named as it reads)
    """The file, which must not exist yet, or the standard output."""

    def __init__(self, file: Path | None) -> None:
        self._file: BinaryIO | None = None
        if file is not None:
            try:
                self._file = file.open("xb")
            except FileExistsError:
                raise UsageError(f"--file {file}: it exists; give another name, or remove it") from None
            except OSError as error:
                raise UsageError(f"--file {file} cannot be written: {error.strerror}") from None

    def __enter__(self) -> BinaryIO:
        return self._file if self._file is not None else sys.stdout.buffer

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()


async def _all(client: AdminClient, topic: str, span: MessageRange) -> AsyncIterator[ReceivedMessage]:
    reader = StoredMessageReader(client)
    for broker, queue in await _queues(client, topic, span.queue):
        first, end = await _bounds(reader, broker, queue, span)
        async for one in reader.read(broker, queue, first, end, span.chosen):
            if span.from_ms is None or one.record.store_timestamp >= span.from_ms:
                yield one


def resent_properties(received: ReceivedMessage) -> dict[str, str]:
    """The properties with which a message is sent again: its own, without those of its first journey."""
    return {
        name: value
        for name, value in received.properties.items()
        if name in SENT_AGAIN or (name not in RESERVED and not name.startswith("__"))
    }


def resend(verb: ClusterVerb, text: str, topic: str | None, *, to: str | None, yes: bool) -> int:
    """Sends a stored message again, to its topic or to another one."""
    for name in (topic, to):
        if name is not None:
            check_topic(name)
    found = verb.run(lambda client: find_message(client, text, topic))
    target = to or found.record.topic
    if to is None and (is_retry_topic(target) or is_dlq_topic(target)):
        raise UsageError(f"the message is in {target}: name a topic with --to, or use `epochmq dlq resend`")
    confirm(f"Send message {found.msg_id} again to topic {target}? All its groups get it.", yes=yes)
    return send_again(verb, [(target, found, {})])


def send_again(verb: ClusterVerb, messages: Sequence[tuple[str, ReceivedMessage, dict[str, str]]]) -> int:
    """Sends messages to topics, with further properties, and prints where each was stored."""
    rows = verb.run(lambda client: sent_again(client, verb.target, messages))
    names = [row["msgId"] for row in rows]
    print_result(VerbResult(rows, [OutputTable(SENT_COLUMNS, rows)], names), verb.output)
    return ExitCode.OK


async def sent_again(
    client: AdminClient,
    target: NameserverTarget,
    messages: Sequence[tuple[str, ReceivedMessage, dict[str, str]]],
) -> list[dict[str, Any]]:
    """Sends messages to topics, with further properties. Returns a row of `SENT_COLUMNS` for each."""
    producer = Producer(
        client.nameservers,
        "epochmq_resend",
        timeout_ms=client.timeout_ms,
        credentials=target.credentials(),
        tls=target.tls(),
    )
    rows = []
    try:
        for topic, received, further in messages:
            properties = resent_properties(received) | further
            sent = await producer.send(topic, received.body, properties=properties)
            rows.append(
                {
                    "topic": topic,
                    "brokerName": sent.broker_name,
                    "queueId": sent.queue_id,
                    "queueOffset": sent.queue_offset,
                    "status": sent.status.value,
                    "msgId": sent.msg_id,
                    "originMsgId": received.msg_id,
                }
            )
    finally:
        await producer.close()
    return rows


SENT_COLUMNS = (
    Column("STATUS", "status"),
    Column("TOPIC", "topic"),
    Column("BROKER", "brokerName"),
    Column("QUEUE", "queueId"),
    Column("OFFSET", "queueOffset"),
    Column("ID", "msgId"),
    Column("ORIGIN", "originMsgId", is_wide=True),
)
