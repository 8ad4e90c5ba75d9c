"""Declares the headers of a broker's administration commands, with the fields of RocketMQ 5.3.3."""

from __future__ import annotations

from epochmq_protocol.headers_base import (
    Header,
    RpcRequestHeader,
    TopicQueueRequestHeader,
    TopicRequestHeader,
)
from epochmq_protocol.integers import Int, Long


class CreateTopicRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of UPDATE_AND_CREATE_TOPIC (17), UPDATE_AND_CREATE_STATIC_TOPIC (513)."""

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


class CreateTopicListRequestHeader(RpcRequestHeader):
    """Request of UPDATE_AND_CREATE_TOPIC_LIST (18)."""


class GetAllTopicConfigResponseHeader(Header):
    """Response to GET_ALL_TOPIC_CONFIG (21)."""


class GetBrokerConfigResponseHeader(Header, kw_only=True):
    """Response to GET_BROKER_CONFIG (26)."""

    version: str


class GetTopicStatsInfoRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of GET_TOPIC_STATS_INFO (202)."""

    topic: str


class GetConsumerConnectionListRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class DeleteSubscriptionGroupRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool = False


class GetConsumeStatsRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class DeleteTopicRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


class ResetOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of RESET_CONSUMER_CLIENT_OFFSET (220), INVOKE_BROKER_TO_RESET_OFFSET (222)."""

    group: str
    topic: str
    queue_id: Int = -1
    offset: Long | None = None
    timestamp: Long
    is_force: bool


class GetConsumerStatusRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of GET_CONSUMER_STATUS_FROM_CLIENT (221), INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223)."""

    topic: str
    group: str
    client_addr: str | None = None


class QueryTopicConsumeByWhoRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


class QueryTopicsByConsumerRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None


class QueryConsumeTimeSpanRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class GetConsumerRunningInfoRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class QueryCorrectionOffsetHeader(TopicRequestHeader, kw_only=True):
    """Request of QUERY_CORRECTION_OFFSET (308)."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class ConsumeMessageDirectlyResultRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


class CloneGroupOffsetRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewBrokerStatsDataRequestHeader(Header, kw_only=True):
    """Request of VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class GetConsumeStatsInBrokerHeader(Header, kw_only=True):
    """Request of GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool


class QueryConsumeQueueRequestHeader(TopicQueueRequestHeader, kw_only=True):
    """Request of QUERY_CONSUME_QUEUE (321)."""

    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True):
    """Request of RESUME_CHECK_HALF_MESSAGE (323)."""

    topic: str | None = None
    msg_id: str | None = None


class GetAllProducerInfoRequestHeader(Header):
    """Request of GET_ALL_PRODUCER_INFO (328)."""


class GetTopicConfigRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of GET_TOPIC_CONFIG (351)."""

    topic: str


class GetSubscriptionGroupConfigRequestHeader(RpcRequestHeader, kw_only=True):
    """Request of GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class UpdateGroupForbiddenRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool | None = None


class CheckRocksdbCqWriteProgressRequestHeader(Header, kw_only=True):
    """Request of CHECK_ROCKSDB_CQ_WRITE_PROGRESS (354)."""

    topic: str
    check_store_time: Long = 0


class ExportRocksDBConfigToJsonRequestHeader(Header, kw_only=True):
    """Request of EXPORT_ROCKSDB_CONFIG_TO_JSON (355)."""

    config_type: str


class AddBrokerRequestHeader(Header, kw_only=True):
    """Request of ADD_BROKER (902)."""

    config_path: str | None = None


class RemoveBrokerRequestHeader(Header, kw_only=True):
    """Request of REMOVE_BROKER (903)."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Long


class CreateUserRequestHeader(Header, kw_only=True):
    """Request of AUTH_CREATE_USER (3001)."""

    username: str | None = None


class UpdateUserRequestHeader(Header, kw_only=True):
    """Request of AUTH_UPDATE_USER (3002)."""

    username: str | None = None


class DeleteUserRequestHeader(Header, kw_only=True):
    """Request of AUTH_DELETE_USER (3003)."""

    username: str | None = None


class GetUserRequestHeader(Header, kw_only=True):
    """Request of AUTH_GET_USER (3004)."""

    username: str | None = None


class ListUsersRequestHeader(Header, kw_only=True):
    """Request of AUTH_LIST_USER (3005)."""

    filter: str | None = None


class CreateAclRequestHeader(Header, kw_only=True):
    """Request of AUTH_CREATE_ACL (3006)."""

    subject: str | None = None


class UpdateAclRequestHeader(Header, kw_only=True):
    """Request of AUTH_UPDATE_ACL (3007)."""

    subject: str | None = None


class DeleteAclRequestHeader(Header, kw_only=True):
    """Request of AUTH_DELETE_ACL (3008)."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class GetAclRequestHeader(Header, kw_only=True):
    """Request of AUTH_GET_ACL (3009)."""

    subject: str | None = None


class ListAclsRequestHeader(Header, kw_only=True):
    """Request of AUTH_LIST_ACL (3010)."""

    subject_filter: str | None = None
    resource_filter: str | None = None
