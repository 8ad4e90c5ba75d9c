"""Declares the headers of client commands, with the fields of RocketMQ 5.3.3.

These are send, pull, pop, offsets, heartbeats, transactions, and the requests that a broker sends to its
clients. A field's name on the wire is its attribute's name in camel case (`queue_id`: `queueId`), unless
`name=` gives another. `Int` and `Long` are integers within the bounds of Java's types. The base classes of
requests add the ext fields that RocketMQ's base classes add (`headers_base`).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from epochmq_protocol.codes import RequestCode
from epochmq_protocol.headers_base import (
    Header,
    RpcRequestHeader,
    TopicQueueRequestHeader,
    TopicRequestHeader,
    request_of,
    response_to,
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


@request_of(RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
class SendMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
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


@response_to(
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
class SendMessageResponseHeader(Header, kw_only=True):
    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


@request_of(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
class PullMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """The spelling `proxyFrowardClientId` is RocketMQ's."""

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


@response_to(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
class PullMessageResponseHeader(Header, kw_only=True):
    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None
    forbidden_type: Int | None = None


@request_of(RequestCode.QUERY_MESSAGE)
class QueryMessageRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long


@response_to(RequestCode.QUERY_MESSAGE)
class QueryMessageResponseHeader(Header, kw_only=True):
    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@request_of(RequestCode.QUERY_CONSUMER_OFFSET)
class QueryConsumerOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


@response_to(RequestCode.QUERY_CONSUMER_OFFSET)
class QueryConsumerOffsetResponseHeader(Header, kw_only=True):
    offset: Long


@request_of(RequestCode.UPDATE_CONSUMER_OFFSET)
class UpdateConsumerOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


@response_to(RequestCode.UPDATE_CONSUMER_OFFSET)
class UpdateConsumerOffsetResponseHeader(Header):
    """Has no fields."""


@request_of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
class SearchOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: BoundaryType | None = None


@response_to(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
class SearchOffsetResponseHeader(Header, kw_only=True):
    offset: Long


@request_of(RequestCode.GET_MAX_OFFSET)
class GetMaxOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    topic: str
    queue_id: Int
    committed: bool = True


@response_to(RequestCode.GET_MAX_OFFSET)
class GetMaxOffsetResponseHeader(Header, kw_only=True):
    offset: Long


@request_of(RequestCode.GET_MIN_OFFSET)
class GetMinOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    topic: str
    queue_id: Int


@response_to(RequestCode.GET_MIN_OFFSET)
class GetMinOffsetResponseHeader(Header, kw_only=True):
    offset: Long


@request_of(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestMsgStoretimeRequestHeader(TopicQueueRequestHeader, kw_only=True):
    topic: str
    queue_id: Int


@response_to(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestMsgStoretimeResponseHeader(Header, kw_only=True):
    timestamp: Long


@request_of(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessageRequestHeader(Header, kw_only=True):
    topic: str | None = None
    offset: Long


@response_to(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessageResponseHeader(Header):
    """Has no fields."""


@request_of(RequestCode.HEART_BEAT)
class HeartbeatRequestHeader(RpcRequestHeader):
    """Has no fields."""


@request_of(RequestCode.UNREGISTER_CLIENT)
class UnregisterClientRequestHeader(RpcRequestHeader, kw_only=True):
    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@response_to(RequestCode.UNREGISTER_CLIENT)
class UnregisterClientResponseHeader(Header):
    """Has no fields."""


@request_of(RequestCode.CONSUMER_SEND_MSG_BACK)
class ConsumerSendMsgBackRequestHeader(RpcRequestHeader, kw_only=True):
    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


@request_of(RequestCode.END_TRANSACTION)
class EndTransactionRequestHeader(RpcRequestHeader, kw_only=True):
    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


@response_to(RequestCode.END_TRANSACTION)
class EndTransactionResponseHeader(Header):
    """Has no fields."""


@request_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
class GetConsumerListByGroupRequestHeader(RpcRequestHeader, kw_only=True):
    consumer_group: str


@response_to(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
class GetConsumerListByGroupResponseHeader(Header):
    """Has no fields."""


@request_of(RequestCode.CHECK_TRANSACTION_STATE)
class CheckTransactionStateRequestHeader(RpcRequestHeader, kw_only=True):
    topic: str | None = None
    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


@response_to(RequestCode.CHECK_TRANSACTION_STATE)
class CheckTransactionStateResponseHeader(Header, kw_only=True):
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int


@request_of(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
class NotifyConsumerIdsChangedRequestHeader(RpcRequestHeader, kw_only=True):
    consumer_group: str


@request_of(RequestCode.LOCK_BATCH_MQ)
class LockBatchMqRequestHeader(RpcRequestHeader):
    """Has no fields."""


@request_of(RequestCode.UNLOCK_BATCH_MQ)
class UnlockBatchMqRequestHeader(RpcRequestHeader):
    """Has no fields."""


@request_of(RequestCode.POP_MESSAGE)
class PopMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
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


@response_to(RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE)
class PopMessageResponseHeader(Header, kw_only=True):
    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@request_of(RequestCode.ACK_MESSAGE)
class AckMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long


@request_of(RequestCode.PEEK_MESSAGE)
class PeekMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
    topic: str
    queue_id: Int
    max_msg_nums: Int
    consumer_group: str


@request_of(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
class ChangeInvisibleTimeRequestHeader(TopicQueueRequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long


@response_to(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
class ChangeInvisibleTimeResponseHeader(Header, kw_only=True):
    pop_time: Long
    invisible_time: Long
    revive_qid: Int


@request_of(RequestCode.NOTIFICATION)
class NotificationRequestHeader(TopicQueueRequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None


@response_to(RequestCode.NOTIFICATION)
class NotificationResponseHeader(Header, kw_only=True):
    has_msg: bool = False
    polling_full: bool = False


@request_of(RequestCode.POLLING_INFO)
class PollingInfoRequestHeader(TopicQueueRequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int


@response_to(RequestCode.POLLING_INFO)
class PollingInfoResponseHeader(Header, kw_only=True):
    polling_num: Int


@request_of(RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
class SendMessageRequestHeaderV2(TopicQueueRequestHeader, kw_only=True):
    """On the wire the fields have names of one letter, which keep the request short; the attributes are those
    of SendMessageRequestHeader."""

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


@request_of(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
class ReplyMessageRequestHeader(TopicQueueRequestHeader, kw_only=True):
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


@request_of(RequestCode.RECALL_MESSAGE)
class RecallMessageRequestHeader(TopicRequestHeader, kw_only=True):
    producer_group: str | None = None
    topic: str
    recall_handle: str


@response_to(RequestCode.RECALL_MESSAGE)
class RecallMessageResponseHeader(Header, kw_only=True):
    msg_id: str
