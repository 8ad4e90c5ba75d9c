"""Declares the bodies between clients and brokers: heartbeats, connections, queue locks, assignments, offset
resets."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from msgspec import field

from epochmq_protocol.bodies_base import Body, MessageQueue
from epochmq_protocol.codes import LanguageCode
from epochmq_protocol.integers import Int, Long


class ConsumeType(StrEnum):
    """How a group receives messages: pull consumer, push consumer, pop."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether every consumer of a group receives each message, or one of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without offsets starts. The second to fourth are deprecated."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageRequestMode(StrEnum):
    """Who assigns queues to consumers: the client (pull) or the broker (pop)."""

    PULL = "PULL"
    POP = "POP"


class CMResult(StrEnum):
    """The result of a consumer's listener for one message."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class SubscriptionData(Body, forbid_unknown_fields=True):
    """A group's subscription to one topic; `code_set` are the hashes of `tags_set`, `sub_version` epoch
    ms."""

    topic: str = ""
    sub_string: str = ""
    expression_type: str | None = "TAG"
    tags_set: set[str] = field(default_factory=set)
    code_set: set[Int] = field(default_factory=set)
    sub_version: Long = 0
    class_filter_mode: bool = False


class ProducerData(Body, forbid_unknown_fields=True):
    """A producer group in a heartbeat."""

    group_name: str = ""


class ConsumerData(Body, forbid_unknown_fields=True):
    """A consumer group in a heartbeat."""

    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class HeartbeatData(Body, forbid_unknown_fields=True):
    """Request of HEART_BEAT, the largest body that clients send often. Java's clients write these names and
    types and no others. The fast parser takes only such a body, so that no name in another spelling is
    ignored."""

    STRICT_FIRST: ClassVar[bool] = True
    client_id: str = field(name="clientID", default="")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: Int = 0
    without_sub: bool = False


class CheckClientRequestBody(Body):
    """Request of CHECK_CLIENT_CONFIG."""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


class GetConsumerListByGroupResponseBody(Body):
    """Response to GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: list[str] = field(default_factory=list)


class LockBatchRequestBody(Body, forbid_unknown_fields=True):
    """Request of LOCK_BATCH_MQ."""

    STRICT_FIRST: ClassVar[bool] = True
    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: set[MessageQueue] = field(default_factory=set)


class LockBatchResponseBody(Body):
    """Response to LOCK_BATCH_MQ: the queues that this client holds the lock of now."""

    lock_ok_mq_set: set[MessageQueue] = field(name="lockOKMQSet", default_factory=set)


class UnlockBatchRequestBody(LockBatchRequestBody):
    """Request of UNLOCK_BATCH_MQ."""


class QueryAssignmentRequestBody(Body):
    """Request of QUERY_ASSIGNMENT; `strategy_name` as `AVG` or `AVG_BY_CIRCLE`."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class MessageQueueAssignment(Body):
    """One queue assigned to a client."""

    message_queue: MessageQueue | None = None
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(Body):
    """Response to QUERY_ASSIGNMENT."""

    message_queue_assignments: list[MessageQueueAssignment] = field(default_factory=list)


class SetMessageRequestModeRequestBody(Body):
    """Request of SET_MESSAGE_REQUEST_MODE."""

    topic: str = ""
    consumer_group: str = ""
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: Int = 0


class MessageRequestModeSerializeWrapper(Body):
    """messageRequestMode.json: topic to group to mode."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = field(
        default_factory=dict
    )


class BatchAck(Body):
    """Acknowledgements of one queue: bit i of `bit_set` (bit 0 is the lowest bit of the first byte)
    acknowledges start_offset + i."""

    consumer_group: str = field(name="c", default="")
    topic: str = field(name="t", default="")
    retry: str = field(name="r", default="0")
    start_offset: Long = field(name="so", default=0)
    queue_id: Int = field(name="q", default=0)
    revive_queue_id: Int = field(name="rq", default=0)
    pop_time: Long = field(name="pt", default=0)
    invisible_time: Long = field(name="it", default=0)
    bit_set: bytes = field(name="b", default=b"")

    def offsets(self) -> list[int]:
        """The acknowledged offsets, ascending."""
        return [
            self.start_offset + at * 8 + bit
            for at, byte in enumerate(self.bit_set)
            if byte
            for bit in range(8)
            if byte >> bit & 1
        ]


class BatchAckMessageRequestBody(Body):
    """Request of BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)


class Connection(Body):
    """One client connection in a response to an administrator."""

    client_id: str = ""
    client_addr: str = ""
    language: LanguageCode = LanguageCode.OTHER
    version: Int = 0


class ConsumerConnection(Body):
    """Response to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


class ProducerConnection(Body):
    """Response to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[Connection] = field(default_factory=list)


class ProducerInfo(Body):
    """One producer of a group; times in epoch ms."""

    client_id: str = ""
    remote_ip: str = field(name="remoteIP", default="")
    language: LanguageCode = LanguageCode.OTHER
    version: Int = 0
    last_update_timestamp: Long = 0


class ProducerTableInfo(Body):
    """Response to GET_ALL_PRODUCER_INFO: group to producers."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class ResetOffsetBody(Body):
    """New offsets of a consumer's queues, as Java clients read them."""

    offset_table: dict[MessageQueue, Long] = field(default_factory=dict)


class MessageQueueForC(Body):
    """One queue and its new offset, as C++ clients read it."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int = 0
    offset: Long = 0


class ResetOffsetBodyForC(Body):
    """The same as ResetOffsetBody for C++ clients."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)


class GetConsumerStatusBody(Body):
    """Response to GET_CONSUMER_STATUS_FROM_CLIENT (first map) and of INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    (second)."""

    message_queue_table: dict[MessageQueue, Long] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Long]] = field(default_factory=dict)


class ProcessQueueInfo(Body):
    """The state that a push consumer keeps for one queue."""

    commit_offset: Long = 0
    cached_msg_min_offset: Long = 0
    cached_msg_max_offset: Long = 0
    cached_msg_count: Int = 0
    cached_msg_size_in_mi_b: Int = field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: Long = 0
    transaction_msg_max_offset: Long = 0
    transaction_msg_count: Int = 0
    locked: bool = False
    try_unlock_times: Long = 0
    last_lock_timestamp: Long = 0
    droped: bool = False
    last_pull_timestamp: Long = 0
    last_consume_timestamp: Long = 0


class PopProcessQueueInfo(Body):
    """The state that a pop consumer keeps for one queue."""

    wait_ack_count: Int = 0
    droped: bool = False
    last_pop_timestamp: Long = 0


class ConsumeStatus(Body):
    """A consumer's own statistics of one topic; times in ms, rates per second."""

    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: Long = 0


class ConsumerRunningInfo(Body):
    """Response to GET_CONSUMER_RUNNING_INFO, from a client."""

    properties: dict[str, Any] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None


class ConsumeMessageDirectlyResult(Body):
    """Response to CONSUME_MESSAGE_DIRECTLY, from a client."""

    order: bool = False
    auto_commit: bool = True
    consume_result: CMResult | None = None
    remark: str | None = None
    spent_time_mills: Long = 0


__all__ = [
    "BatchAck",
    "BatchAckMessageRequestBody",
    "CMResult",
    "CheckClientRequestBody",
    "Connection",
    "ConsumeFromWhere",
    "ConsumeMessageDirectlyResult",
    "ConsumeStatus",
    "ConsumeType",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerRunningInfo",
    "GetConsumerListByGroupResponseBody",
    "GetConsumerStatusBody",
    "HeartbeatData",
    "LockBatchRequestBody",
    "LockBatchResponseBody",
    "MessageModel",
    "MessageQueueAssignment",
    "MessageQueueForC",
    "MessageRequestMode",
    "MessageRequestModeSerializeWrapper",
    "PopProcessQueueInfo",
    "ProcessQueueInfo",
    "ProducerConnection",
    "ProducerData",
    "ProducerInfo",
    "ProducerTableInfo",
    "QueryAssignmentRequestBody",
    "QueryAssignmentResponseBody",
    "ResetOffsetBody",
    "ResetOffsetBodyForC",
    "SetMessageRequestModeRequestBody",
    "SubscriptionData",
    "UnlockBatchRequestBody",
]
