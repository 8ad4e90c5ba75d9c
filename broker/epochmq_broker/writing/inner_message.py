"""Defines a message that is to be stored (MessageExtBrokerInner), and the result of storing it."""
# pure: values

from __future__ import annotations

from msgspec import Struct

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.message import MessageExt
from epochmq_protocol.message_const import PROPERTY_DELAY_TIME_LEVEL, PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX
from epochmq_store.statuses import PutStatus


class InnerMessage(Struct, kw_only=True):
    """A message to be stored (MessageExtBrokerInner). Hosts are encoded, times are epoch ms."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int
    born_host: bytes
    store_host: bytes | None = None
    reconsume_times: int = 0
    prepared_offset: int = 0
    rendered: bytes | None = None
    """The properties as they are stored. None: `MessageWriter` encodes `properties`."""
    route_topic: str = ""
    """The topic whose groups may get the message, if no other group has its own topic yet."""

    @property
    def delay_level(self) -> int:
        """The level in the DELAY property; 0 without one (Message.getDelayTimeLevel)."""
        text = self.properties.get(PROPERTY_DELAY_TIME_LEVEL)
        if text is None:
            return 0
        try:
            return int(text)
        except ValueError:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f'DELAY: For input string: "{text}"') from None

    @property
    def uniq_key(self) -> str | None:
        """The message id that the client made."""
        return self.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)


def copy_of_record(record: MessageExt, topic: str, queue_id: int, properties: dict[str, str],
                   rendered: bytes | None) -> InnerMessage:  # fmt: skip
    """Builds a message with the content, hosts and times of a stored record, to be stored in this queue.
    `properties` and `rendered` are the new ones."""
    return InnerMessage(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=properties,
        rendered=rendered,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
    )


def next_attempt(times: int) -> int:
    """How often a message was consumed when it comes again. A record has 32 bits for it, and a client may
    send any number: as in Java, −2³¹ follows 2³¹ − 1."""
    return (times + 1 + (1 << 31)) % (1 << 32) - (1 << 31)


class PutResult(Struct, frozen=True):
    """The result of storing a message. With several records, offsets are those of the first one."""

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    size: int = 0
    physical_offsets: tuple[int, ...] = ()
    topic: str = ""
    queue_id: int = 0
    is_remote: bool = False
    """Whether another group gets the message; then it has no offsets here."""

    @property
    def ok(self) -> bool:
        """Whether the message is in the log."""
        return self.status is PutStatus.PUT_OK

    messages: int = 0
    """The number of messages of an inner batch; 0 for other records."""

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.messages or len(self.physical_offsets)

    @property
    def end(self) -> int:
        """The offset in the log behind the last record; of a remote message, its number."""
        return self.physical_offset + self.size
