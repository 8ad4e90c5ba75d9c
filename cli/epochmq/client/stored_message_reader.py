"""Reads stored messages without a consumer group's offsets: by offset, time, id and key. Commits nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass

from epochmq.client.admin import AdminClient, BrokerAddress
from epochmq.client.consumer import PULL_CODES, SUBSCRIPTION_FLAG, ReceivedMessage
from epochmq_protocol import message
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.headers_client import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)
from epochmq_protocol.signatures import UNIQUE_MSG_QUERY_FLAG
from epochmq_protocol.topics import TOOLS_CONSUMER_GROUP

PORT_MAX = 65535

BATCH = 32
KEY_RESULTS_MAX = 64
LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StoredMessageFilter:
    """Which messages a broker returns: an expression of tags (`a || b`), or of SQL92."""

    expression: str = "*"
    is_sql: bool = False

    def fits(self, received: ReceivedMessage) -> bool:
        """Whether the message has one of the tags: brokers compare only hashes of tags."""
        if self.is_sql or self.expression.strip() in ("", "*"):
            return True
        tags = {tag.strip() for tag in self.expression.split("||")}
        return received.properties.get(message.PROPERTY_TAGS) in tags


class StoredMessageReader:
    """Reads the messages of one cluster."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    async def bounds(self, broker: BrokerAddress, queue: MessageQueue) -> tuple[int, int]:
        """The first offset of a queue, and the one after its last."""
        first = await self._client.call(
            broker.address,
            RequestCode.GET_MIN_OFFSET,
            GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
        )
        last = await self._client.call(
            broker.address,
            RequestCode.GET_MAX_OFFSET,
            GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
        )
        return (
            max(GetMinOffsetResponseHeader.decode(first.ext).offset, 0),
            GetMaxOffsetResponseHeader.decode(last.ext).offset,
        )

    async def offset_at(self, broker: BrokerAddress, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored at a time or later."""
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=time_ms)
        response = await self._client.call(broker.address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return SearchOffsetResponseHeader.decode(response.ext).offset

    async def read(
        self,
        broker: BrokerAddress,
        queue: MessageQueue,
        first: int,
        end: int,
        chosen: StoredMessageFilter,
        batch: int = BATCH,
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """The messages of a queue from the offset `first` to before `end`, in order."""
        offset = first
        while offset < end:
            header = PullMessageRequestHeader(
                consumer_group=TOOLS_CONSUMER_GROUP,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_msg_nums=min(batch, end - offset) if chosen.expression == "*" else batch,
                sys_flag=SUBSCRIPTION_FLAG,
                commit_offset=0,
                suspend_timeout_millis=0,
                subscription=chosen.expression,
                sub_version=0,
                expression_type="SQL92" if chosen.is_sql else "TAG",
            )
            response = await self._client.call(
                broker.address, RequestCode.PULL_MESSAGE, header, accepted=PULL_CODES
            )
            next_offset = PullMessageResponseHeader.decode(response.ext).next_begin_offset
            if response.code == ResponseCode.SUCCESS:
                for received in received_messages(broker, response.body):
                    if first <= received.record.queue_offset < end and chosen.fits(received):
                        yield received
            elif next_offset <= offset:
                return
            offset = max(next_offset, offset + 1)

    async def by_offset_id(self, text: str, brokers: Collection[str] | None = None) -> ReceivedMessage:
        """The message with an offset id, from the broker that the id names. `brokers` are the addresses that
        it may name; None: any. Raises RequestError."""
        host, physical_offset = message.parse_message_id(text)
        ip, port = message.decode_host(host)
        address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        if not 0 < port <= PORT_MAX:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND, "it is no offset id: it names no port of a broker"
            )
        if brokers is not None and address not in brokers:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND, f"the id names {address}, which is no broker of this cluster"
            )
        response = await self._client.call(
            address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=physical_offset)
        )
        found = received_messages(BrokerAddress("", address, 0, address), response.body)
        if not found:
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"{address} has no message at {physical_offset}")
        return found[0]

    async def by_key(
        self,
        masters: Sequence[BrokerAddress],
        topic: str,
        key: str,
        *,
        unique: bool,
        from_ms: int = 0,
        to_ms: int = LONG_MAX,
    ) -> list[ReceivedMessage]:
        """The messages with a key, or with a unique key; at most 64 of each broker, oldest first."""
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=KEY_RESULTS_MAX, begin_timestamp=from_ms, end_timestamp=to_ms
        )

        async def query(broker: BrokerAddress) -> list[ReceivedMessage]:
            fields = {UNIQUE_MSG_QUERY_FLAG: "true"} if unique else {}
            response = await self._client.call(
                broker.address,
                RequestCode.QUERY_MESSAGE,
                header,
                fields=fields,
                accepted=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
            )
            return received_messages(broker, response.body or b"")

        found = [one for page in await self._client.gather(query, masters) for one in page]
        # The index compares hashes of keys; RocketMQ's client compares the keys, too.
        exact = [one for one in found if key in _keys(one, unique=unique)]
        return sorted(exact, key=lambda one: one.record.store_timestamp)


def _keys(received: ReceivedMessage, *, unique: bool) -> list[str]:
    if unique:
        return [received.properties.get(message.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")]
    return received.properties.get(message.PROPERTY_KEYS, "").split()


def received_messages(broker: BrokerAddress, body: bytes) -> list[ReceivedMessage]:
    """The messages in the body of a response, as clients see them."""
    return [
        ReceivedMessage(
            MessageQueue(one.topic, broker.broker_name, one.queue_id),
            one,
            message.uncompressed_body(one),
            message.parse_properties(one.properties),
        )
        for record in message.decode_records(body)
        for one in message.messages_of(record)
    ]
