"""Builds the records of transactions from messages and half messages (RocketMQ's TransactionalMessageBridge,
EndTransactionProcessor and DefaultTransactionalMessageCheckListener).

A message of a transaction is first stored as a half message: in RMQ_SYS_TRANS_HALF_TOPIC, with its own topic
and queue in its properties. A commit stores it in its own topic. A commit and a rollback both end the
transaction: an op message in RMQ_SYS_TRANS_OP_HALF_TOPIC names the queue offsets of ended half messages.

RocketMQ encodes the properties of most of these records before it changes the properties. So a committed
record still has REAL_TOPIC, REAL_QID and TRAN_MSG. This module stores the same properties. In the functions
below `properties` are those of the half message, parsed; the functions may change them.
"""
# pure: builds values from values

from __future__ import annotations

from collections.abc import Sequence

from epochmq_broker.writing.inner_message import InnerMessage, copy_of_record
from epochmq_protocol import message as records
from epochmq_protocol import message_const as const
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.fastjson import parse_int
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import CheckTransactionStateRequestHeader
from epochmq_protocol.integers import LONG_MAX, LONG_MIN
from epochmq_protocol.message import MessageExt
from epochmq_protocol.topics import (
    CID_SYS_RMQ_TRANS,
    RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC,
    RMQ_SYS_TRANS_HALF_TOPIC,
    RMQ_SYS_TRANS_OP_HALF_TOPIC,
)

HALF_TOPIC = RMQ_SYS_TRANS_HALF_TOPIC
OP_TOPIC = RMQ_SYS_TRANS_OP_HALF_TOPIC
DISCARD_TOPIC = RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC
TRANSACTION_GROUP = CID_SYS_RMQ_TRANS
"""The group whose consumer offsets tell how far half messages and op messages are checked."""
REMOVE_TAG = "d"
"""The tag of op messages."""
SEPARATOR = ","
LONG_CHARS_MAX = 20
_OP_PROPERTIES = records.format_properties(
    {const.PROPERTY_WAIT_STORE_MSG_OK: "true", const.PROPERTY_TAGS: REMOVE_TAG}
)


def is_transactional(message: InnerMessage) -> bool:
    """Whether a sent message belongs to a transaction. Retries of clients before 4.6.1 do not: they keep the
    property of the original."""
    if (message.properties.get(const.PROPERTY_TRANSACTION_PREPARED) or "").lower() != "true":
        return False
    return not (message.reconsume_times > 0 and message.delay_level > 0)


def make_half_message(message: InnerMessage) -> None:
    """Changes a sent message into the half message to be stored (parseHalfMessageInner)."""
    properties = message.properties
    uniq_key = message.uniq_key
    if uniq_key:
        properties[const.PROPERTY_TRANSACTION_ID] = uniq_key
    properties[const.PROPERTY_REAL_TOPIC] = message.topic
    properties[const.PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    message.sys_flag &= ~const.TRANSACTION_ROLLBACK_TYPE
    message.topic = HALF_TOPIC
    message.queue_id = 0
    message.rendered = None


def committed_message(half: MessageExt, properties: dict[str, str]) -> InnerMessage:
    """Builds the message that a commit stores in its own topic (endMessageTransaction). Raises KeyError or
    ValueError if the half message does not name its topic and queue."""
    topic = properties.pop(const.PROPERTY_REAL_TOPIC)
    queue_id = int(properties.pop(const.PROPERTY_REAL_QUEUE_ID))
    properties.pop(const.PROPERTY_TRANSACTION_PREPARED, None)
    committed = copy_of_record(half, topic, queue_id, properties, half.properties)
    committed.sys_flag = half.sys_flag & ~const.TRANSACTION_ROLLBACK_TYPE | const.TRANSACTION_COMMIT_TYPE
    committed.prepared_offset = half.physical_offset
    return committed


def renewed_half_message(half: MessageExt, properties: dict[str, str]) -> InnerMessage:
    """Builds the copy of a half message that is stored at the end of the half queue before a check
    (renewHalfMessageInner). As in RocketMQ it loses the flag and the number of retries."""
    renewed = _copy_of_half(half, half.topic, half.queue_id, properties)
    renewed.flag = renewed.reconsume_times = 0
    return renewed


def renewed_immune_message(half: MessageExt, properties: dict[str, str]) -> InnerMessage:
    """Builds the copy of a half message within its CHECK_IMMUNITY_TIME_IN_SECONDS. It names the queue offset
    of the first copy, by which its producer ends it (renewImmunityHalfMessageInner)."""
    renewed = renewed_half_message(half, properties)
    properties.setdefault(const.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, str(half.queue_offset))
    renewed.rendered = None
    return renewed


def discarded_message(half: MessageExt, properties: dict[str, str]) -> InnerMessage:
    """Builds the copy of a half message for the discard topic."""
    return _copy_of_half(half, DISCARD_TOPIC, 0, properties)


def resumed_message(record: MessageExt) -> InnerMessage:
    """Builds the half message that starts anew with the checks of a discarded one
    (RESUME_CHECK_HALF_MESSAGE)."""
    properties = records.parse_properties(record.properties)
    properties[const.PROPERTY_TRANSACTION_CHECK_TIMES] = "0"
    return _copy_of_half(record, HALF_TOPIC, 0, properties)


def _copy_of_half(half: MessageExt, topic: str, queue_id: int, properties: dict[str, str]) -> InnerMessage:
    """A copy that waits for no replica. As in RocketMQ, its stored properties do not say so."""
    rendered = records.format_properties(properties)
    properties[const.PROPERTY_WAIT_STORE_MSG_OK] = "false"
    return copy_of_record(half, topic, queue_id, properties, rendered)


def op_message(queue_id: int, body: bytes, store_host: bytes, now_ms: int) -> InnerMessage:
    """Builds an op message for ended half messages of the half queue `queue_id`. `body` lists their queue
    offsets."""
    return InnerMessage(
        topic=OP_TOPIC,
        queue_id=queue_id,
        body=body,
        properties={const.PROPERTY_WAIT_STORE_MSG_OK: "false", const.PROPERTY_TAGS: REMOVE_TAG},
        rendered=_OP_PROPERTIES,
        born_timestamp=now_ms,
        born_host=store_host,
        store_host=store_host,
    )


def ended_offsets(op: MessageExt) -> Sequence[int]:
    """The queue offsets of half messages that an op message names; none if it has another tag. An offset that
    is no number counts as -1, as in RocketMQ."""
    if records.parse_properties(op.properties).get(const.PROPERTY_TAGS) != REMOVE_TAG:
        return ()
    parts = op.body.decode("utf-8", "replace").rstrip(SEPARATOR).split(SEPARATOR)
    return [_long(part, -1) for part in parts]


def check_request(
    half: MessageExt, properties: dict[str, str], queue_offset: int, physical_offset: int, broker_name: str
) -> Command:
    """Builds the CHECK_TRANSACTION_STATE request for a half message whose copy was stored at these offsets
    (sendCheckMessage). Raises KeyError or ValueError if the half message does not name its topic and queue.
    """
    uniq_key = properties.get(const.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    header = CheckTransactionStateRequestHeader(
        topic=half.topic,
        tran_state_table_offset=queue_offset,
        commit_log_offset=physical_offset,
        msg_id=uniq_key,
        transaction_id=uniq_key,
        offset_msg_id=records.message_id(half.store_host, physical_offset),
        bname=broker_name,
    )
    message = MessageExt(
        properties[const.PROPERTY_REAL_TOPIC],
        half.body,
        records.format_properties(properties),
        int(properties[const.PROPERTY_REAL_QUEUE_ID]),
        half.flag,
        queue_offset,
        physical_offset,
        half.sys_flag,
        half.born_timestamp,
        half.born_host,
        half.store_timestamp,
        half.store_host,
        half.reconsume_times,
        half.prepared_transaction_offset,
    )
    return request(RequestCode.CHECK_TRANSACTION_STATE, header, records.encode_record(message))


def check_times(properties: dict[str, str]) -> int | None:
    """How often a half message was checked; None if never."""
    text = properties.get(const.PROPERTY_TRANSACTION_CHECK_TIMES)
    return None if text is None else _long(text, -1)


def prepared_queue_offset(properties: dict[str, str]) -> int | None:
    """The queue offset of the first copy of a half message with an immunity time; None if this is the first
    copy, -1 if the property is no number."""
    text = properties.get(const.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET)
    return None if text is None else _long(text, -1)


def immunity_ms(properties: dict[str, str], transaction_timeout_ms: int) -> int | None:
    """How long after its birth a half message is not checked, by its CHECK_IMMUNITY_TIME_IN_SECONDS; None
    without this property (TransactionalMessageServiceImpl.getImmunityTime)."""
    text = properties.get(const.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS)
    if text is None:
        return None
    seconds = _long(text, -1)
    return transaction_timeout_ms if seconds == -1 else seconds * 1000


def is_too_late(properties: dict[str, str], age_ms: int, transaction_timeout_ms: int) -> bool:
    """Whether the end of a transaction comes after its immunity time, when the broker asks for the state
    itself (rejectCommitOrRollback, TransactionalMessageUtil.getImmunityTime)."""
    text = properties.get(const.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS)
    if not text:
        return False
    return age_ms > max(_long(text, 0) * 1000, transaction_timeout_ms)


def _long(text: str, default: int) -> int:
    """The number if it is a Java long, else the default."""
    if len(text) < LONG_CHARS_MAX - 1 and text.isascii() and text.isdigit():
        return int(text)
    number = parse_int(text) if len(text) <= LONG_CHARS_MAX else None
    return default if number is None or not LONG_MIN <= number <= LONG_MAX else number
