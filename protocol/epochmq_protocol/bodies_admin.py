"""Declares the bodies of administration requests: lists, statistics, offsets, cluster and stored state."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import field

from epochmq_protocol.bodies_base import Body, MessageQueue
from epochmq_protocol.bodies_client import SubscriptionData
from epochmq_protocol.integers import Int, Long
from epochmq_protocol.route import BrokerData
from epochmq_protocol.topics import DataVersion


class KVTable(Body):
    """Names and values, as in runtime information and ORDER_TOPIC_CONFIG."""

    table: dict[str, str] = field(default_factory=dict)


class TopicList(Body):
    """Names of topics. Only some commands set `broker_addr`."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class GroupList(Body):
    """Names of groups."""

    group_list: list[str] = field(default_factory=list)


class ClusterInfo(Body):
    """Response to GET_BROKER_CLUSTER_INFO: broker name to members, cluster to broker names."""

    STRICT_FIRST: ClassVar[bool] = True

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class TopicOffset(Body):
    """The minimum and maximum offset of one queue; time in epoch ms."""

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_timestamp: Long = 0


class TopicStatsTable(Body):
    """Response to GET_TOPIC_STATS_INFO."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class OffsetWrapper(Body):
    """The offsets of a group in one queue; time in epoch ms."""

    broker_offset: Long = 0
    consumer_offset: Long = 0
    pull_offset: Long = 0
    last_timestamp: Long = 0


class ConsumeStats(Body):
    """Response to GET_CONSUME_STATS."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


class ConsumeStatsList(Body):
    """Response to GET_BROKER_CONSUME_STATS: a list of one-entry maps of group to statistics by topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: Long = 0
    total_inflight_diff: Long = 0


class QueueTimeSpan(Body):
    """Oldest, newest and last consumed message of a queue; epoch ms, delay in ms."""

    message_queue: MessageQueue | None = None
    min_time_stamp: Long = 0
    max_time_stamp: Long = 0
    consume_time_stamp: Long = 0
    delay_time: Long = 0


class QueryConsumeTimeSpanBody(Body):
    """Response to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class QueryCorrectionOffsetBody(Body):
    """Response to QUERY_CORRECTION_OFFSET: queue id to offset."""

    correction_offsets: dict[Int, Long] = field(default_factory=dict)


class QuerySubscriptionResponseBody(Body):
    """Response to QUERY_SUBSCRIPTION_BY_CONSUMER."""

    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


class ConsumeQueueData(Body):
    """One consume queue unit in readable form."""

    physic_offset: Long = 0
    physic_size: Int = 0
    tags_code: Long = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body):
    """Response to QUERY_CONSUME_QUEUE."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] | None = None
    max_queue_index: Long = 0
    min_queue_index: Long = 0


class BrokerStatsItem(Body):
    """Sum, rate per second and average over one period."""

    sum: Long = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    """Response to VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


class ConsumerOffsetSerializeWrapper(Body):
    """consumerOffset.json: `topic@group` to queue id to offset."""

    offset_table: dict[str, dict[Int, Long]] = field(default_factory=dict)
    data_version: DataVersion | None = None


class DelayOffsetSerializeWrapper(Body):
    """delayOffset.json: delay level to offset."""

    offset_table: dict[Int, Long] = field(default_factory=dict)
    data_version: DataVersion | None = None


class TimerMetricsEntry(Body):
    """Timer messages of one topic."""

    count: Long = 0
    time_stamp: Long = 0


class TimerMetricsSerializeWrapper(Body):
    """Response to GET_TIMER_METRICS."""

    timing_count: dict[str, TimerMetricsEntry] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class OffsetMovedEvent(Body):
    """Body of the messages in OFFSET_MOVED_EVENT."""

    consumer_group: str = ""
    message_queue: MessageQueue | None = None
    offset_request: Long = 0
    offset_new: Long = 0


class UserInfo(Body):
    """A user of the access control (AUTH_… commands)."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(Body, forbid_unknown_fields=True):
    """One rule of an access policy."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body, forbid_unknown_fields=True):
    """Rules of one kind."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body, forbid_unknown_fields=True):
    """The permissions of a subject (AUTH_… commands). `mqadmin` writes these names and types, no others."""

    STRICT_FIRST: ClassVar[bool] = True

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


class KVConfigSerializeWrapper(Body):
    """kvConfig.json of a nameserver: namespace to names and values."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class ConsumerOrderInfoWrapper(Body):
    """consumerOrderInfo.json: `topic@group` to queue id to the state of orderly POP consumption, kept as
    it is."""

    table: dict[str, dict[Int, Any]] = field(default_factory=dict)


__all__ = [
    "AclInfo",
    "BrokerStatsData",
    "BrokerStatsItem",
    "ClusterInfo",
    "ConsumeQueueData",
    "ConsumeStats",
    "ConsumeStatsList",
    "ConsumerOffsetSerializeWrapper",
    "ConsumerOrderInfoWrapper",
    "DelayOffsetSerializeWrapper",
    "GroupList",
    "KVConfigSerializeWrapper",
    "KVTable",
    "OffsetMovedEvent",
    "OffsetWrapper",
    "PolicyEntryInfo",
    "PolicyInfo",
    "QueryConsumeQueueResponseBody",
    "QueryConsumeTimeSpanBody",
    "QueryCorrectionOffsetBody",
    "QuerySubscriptionResponseBody",
    "QueueTimeSpan",
    "TimerMetricsEntry",
    "TimerMetricsSerializeWrapper",
    "TopicList",
    "TopicOffset",
    "TopicStatsTable",
    "UserInfo",
]
