"""Declares the headers of client commands, with the fields of RocketMQ 5.3.3.

These are send, pull, pop, offsets, heartbeats, transactions, and the requests that a broker sends to its
clients. A field's name on the wire is its attribute's name in camel case (`queue_id`: `queueId`), unless
`name=` gives another. `Int` and `Long` are integers within the bounds of Java's types. The base classes of
requests add the ext fields that RocketMQ's base classes add (`headers_base`).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from epochmq_protocol.headers_base import (
    Header,
    RpcRequestHeader,
    TopicQueueRequestHeader,
    TopicRequestHeader,
)
from epochmq_protocol.integers import Int, Long


class BoundaryType(StrEnum):
    """Which of several messages with the requested time to return."""

    LOWER = "LOWER"
    UPPER = "UPPER"

    @classmethod
    def parse(cls, text: str) -> BoundaryType:
        """`upper` in any case is UPPER, everything else LOWER."""
        return cls.UPPER if text.lower() == "upper" else cls.LOWER


class SendMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of SEND_MESSAGE (10), SEND_REPLY_MESSAGE (324)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int | None = None


class SendMessageResponseHeader(Header, kw_only=True):
    """Response to SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE
    (324), SEND_REPLY_MESSAGE_V2 (325)."""

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class PullMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of PULL_MESSAGE (11), LITE_PULL_MESSAGE (361). The spelling
    `proxyFrowardClientId` is RocketMQ's."""

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    subscription: str | None = None
    sub_version: Long
    expression_type: str | None = None
    max_msg_bytes: Int | None = None
    request_source: Int | None = None
    proxy_froward_client_id: str | None = None


class PullMessageResponseHeader(Header, kw_only=True):
    """Response to PULL_MESSAGE (11), LITE_PULL_MESSAGE (361)."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None
    forbidden_type: Int | None = None


class QueryMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of QUERY_MESSAGE (12)."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long


class QueryMessageResponseHeader(Header, kw_only=True):
    """Response to QUERY_MESSAGE (12)."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


class QueryConsumerOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponseHeader(Header, kw_only=True):
    """Response to QUERY_CONSUMER_OFFSET (14)."""

    offset: Long


class UpdateConsumerOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


class UpdateConsumerOffsetResponseHeader(Header):
    """Response to UPDATE_CONSUMER_OFFSET (15)."""


class SearchOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: BoundaryType | None = None


class SearchOffsetResponseHeader(Header, kw_only=True):
    """Response to SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    offset: Long


class GetMaxOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: Int
    committed: bool = True


class GetMaxOffsetResponseHeader(Header, kw_only=True):
    """Response to GET_MAX_OFFSET (30)."""

    offset: Long


class GetMinOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: Int


class GetMinOffsetResponseHeader(Header, kw_only=True):
    """Response to GET_MIN_OFFSET (31)."""

    offset: Long


class GetEarliestMsgStoretimeRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int


class GetEarliestMsgStoretimeResponseHeader(Header, kw_only=True):
    """Response to GET_EARLIEST_MSG_STORETIME (32)."""

    timestamp: Long


class ViewMessageRequestHeader(Header, kw_only=True):
    """Request of VIEW_MESSAGE_BY_ID (33)."""

    topic: str | None = None
    offset: Long


class ViewMessageResponseHeader(Header):
    """Response to VIEW_MESSAGE_BY_ID (33)."""


class HeartbeatRequestHeader(RpcRequestHeader):
    """Request of HEART_BEAT (34)."""


class UnregisterClientRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of UNREGISTER_CLIENT (35)."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class UnregisterClientResponseHeader(Header):
    """Response to UNREGISTER_CLIENT (35)."""


class ConsumerSendMsgBackRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of CONSUMER_SEND_MSG_BACK (36)."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


class EndTransactionRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of END_TRANSACTION (37)."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class EndTransactionResponseHeader(Header):
    """Response to END_TRANSACTION (37)."""


class GetConsumerListByGroupRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


class GetConsumerListByGroupResponseHeader(Header):
    """Response to GET_CONSUMER_LIST_BY_GROUP (38)."""


class CheckTransactionStateRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of CHECK_TRANSACTION_STATE (39)."""

    topic: str | None = None
    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class CheckTransactionStateResponseHeader(Header, kw_only=True):
    """Response to CHECK_TRANSACTION_STATE (39)."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int


class NotifyConsumerIdsChangedRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumer_group: str


class LockBatchMqRequestHeader(RpcRequestHeader):
    """Request of LOCK_BATCH_MQ (41)."""


class UnlockBatchMqRequestHeader(RpcRequestHeader):
    """Request of UNLOCK_BATCH_MQ (42)."""


class PopMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of POP_MESSAGE (200050)."""

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: Int
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageResponseHeader(Header, kw_only=True):
    """Response to POP_MESSAGE (200050), PEEK_MESSAGE (200052)."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of ACK_MESSAGE (200051)."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long


class PeekMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of PEEK_MESSAGE (200052)."""

    topic: str
    queue_id: Int
    max_msg_nums: Int
    consumer_group: str


class ChangeInvisibleTimeRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long


class ChangeInvisibleTimeResponseHeader(Header, kw_only=True):
    """Response to CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int


class NotificationRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of NOTIFICATION (200054)."""

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None


class NotificationResponseHeader(Header, kw_only=True):
    """Response to NOTIFICATION (200054)."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfoRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int


class PollingInfoResponseHeader(Header, kw_only=True):
    """Response to POLLING_INFO (200055)."""

    polling_num: Int


class SendMessageRequestHeaderV2(TopicQueueRequestHeader, kw_only=True):
    """Request of SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325). On the
    wire the fields have names of one letter, which keep the request short; the attributes are those of
    SendMessageRequestHeader."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: Int = field(name="d")
    queue_id: Int = field(name="e")
    sys_flag: Int = field(name="f")
    born_timestamp: Long = field(name="g")
    flag: Int = field(name="h")
    properties: str | None = field(name="i", default=None)
    reconsume_times: Int | None = field(name="j", default=None)
    unit_mode: bool | None = field(name="k", default=None)
    max_reconsume_times: Int | None = field(name="l", default=None)
    batch: bool | None = field(name="m", default=None)
    broker_name: str | None = field(name="n", default=None)


class ReplyMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Long


class RecallMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of RECALL_MESSAGE (370)."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponseHeader(Header, kw_only=True):
    """Response to RECALL_MESSAGE (370)."""

    msg_id: str
