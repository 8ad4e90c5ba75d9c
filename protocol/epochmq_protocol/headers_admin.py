"""Declares the headers of a broker's administration commands, with the fields of RocketMQ 5.3.3."""

from __future__ import annotations

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


@request_of(RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)
class CreateTopicRequestHeader(TopicRequestHeader, kw_only=True):
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


@request_of(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
class CreateTopicListRequestHeader(RpcRequestHeader):
    """Has no fields."""


@response_to(RequestCode.GET_ALL_TOPIC_CONFIG)
class GetAllTopicConfigResponseHeader(Header):
    """Has no fields."""


@response_to(RequestCode.GET_BROKER_CONFIG)
class GetBrokerConfigResponseHeader(Header, kw_only=True):
    version: str


@request_of(RequestCode.GET_TOPIC_STATS_INFO)
class GetTopicStatsInfoRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


@request_of(RequestCode.GET_CONSUMER_CONNECTION_LIST)
class GetConsumerConnectionListRequestHeader(RpcRequestHeader, kw_only=True):
    consumer_group: str


@request_of(RequestCode.GET_PRODUCER_CONNECTION_LIST)
class GetProducerConnectionListRequestHeader(RpcRequestHeader, kw_only=True):
    producer_group: str


@request_of(RequestCode.DELETE_SUBSCRIPTIONGROUP)
class DeleteSubscriptionGroupRequestHeader(RpcRequestHeader, kw_only=True):
    group_name: str
    clean_offset: bool = False


@request_of(RequestCode.GET_CONSUME_STATS)
class GetConsumeStatsRequestHeader(TopicRequestHeader, kw_only=True):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@request_of(RequestCode.DELETE_TOPIC_IN_BROKER)
class DeleteTopicRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


@request_of(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
class ResetOffsetRequestHeader(TopicQueueRequestHeader, kw_only=True):
    group: str
    topic: str
    queue_id: Int = -1
    offset: Long | None = None
    timestamp: Long
    is_force: bool


@request_of(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
class GetConsumerStatusRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str
    group: str
    client_addr: str | None = None


@request_of(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
class QueryTopicConsumeByWhoRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


@request_of(RequestCode.QUERY_TOPICS_BY_CONSUMER)
class QueryTopicsByConsumerRequestHeader(RpcRequestHeader, kw_only=True):
    group: str


@request_of(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
class QuerySubscriptionByConsumerRequestHeader(TopicRequestHeader, kw_only=True):
    group: str
    topic: str | None = None


@request_of(RequestCode.QUERY_CONSUME_TIME_SPAN)
class QueryConsumeTimeSpanRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str
    group: str


@request_of(RequestCode.GET_CONSUMER_RUNNING_INFO)
class GetConsumerRunningInfoRequestHeader(RpcRequestHeader, kw_only=True):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@request_of(RequestCode.QUERY_CORRECTION_OFFSET)
class QueryCorrectionOffsetHeader(TopicRequestHeader, kw_only=True):
    filter_groups: str | None = None
    compare_group: str
    topic: str


@request_of(RequestCode.CONSUME_MESSAGE_DIRECTLY)
class ConsumeMessageDirectlyResultRequestHeader(TopicRequestHeader, kw_only=True):
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


@request_of(RequestCode.CLONE_GROUP_OFFSET)
class CloneGroupOffsetRequestHeader(RpcRequestHeader, kw_only=True):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@request_of(RequestCode.VIEW_BROKER_STATS_DATA)
class ViewBrokerStatsDataRequestHeader(Header, kw_only=True):
    stats_name: str
    stats_key: str


@request_of(RequestCode.GET_BROKER_CONSUME_STATS)
class GetConsumeStatsInBrokerHeader(Header, kw_only=True):
    is_order: bool


@request_of(RequestCode.QUERY_CONSUME_QUEUE)
class QueryConsumeQueueRequestHeader(TopicQueueRequestHeader, kw_only=True):
    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


@request_of(RequestCode.RESUME_CHECK_HALF_MESSAGE)
class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True):
    topic: str | None = None
    msg_id: str | None = None


@request_of(RequestCode.GET_ALL_PRODUCER_INFO)
class GetAllProducerInfoRequestHeader(Header):
    """Has no fields."""


@request_of(RequestCode.GET_TOPIC_CONFIG)
class GetTopicConfigRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


@request_of(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
class GetSubscriptionGroupConfigRequestHeader(RpcRequestHeader, kw_only=True):
    group: str


@request_of(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
class UpdateGroupForbiddenRequestHeader(TopicRequestHeader, kw_only=True):
    group: str
    topic: str
    readable: bool | None = None


@request_of(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS)
class CheckRocksdbCqWriteProgressRequestHeader(Header, kw_only=True):
    topic: str
    check_store_time: Long = 0


@request_of(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON)
class ExportRocksDBConfigToJsonRequestHeader(Header, kw_only=True):
    config_type: str


@request_of(RequestCode.ADD_BROKER)
class AddBrokerRequestHeader(Header, kw_only=True):
    config_path: str | None = None


@request_of(RequestCode.REMOVE_BROKER)
class RemoveBrokerRequestHeader(Header, kw_only=True):
    broker_name: str
    broker_cluster_name: str
    broker_id: Long


@request_of(RequestCode.AUTH_CREATE_USER)
class CreateUserRequestHeader(Header, kw_only=True):
    username: str | None = None


@request_of(RequestCode.AUTH_UPDATE_USER)
class UpdateUserRequestHeader(Header, kw_only=True):
    username: str | None = None


@request_of(RequestCode.AUTH_DELETE_USER)
class DeleteUserRequestHeader(Header, kw_only=True):
    username: str | None = None


@request_of(RequestCode.AUTH_GET_USER)
class GetUserRequestHeader(Header, kw_only=True):
    username: str | None = None


@request_of(RequestCode.AUTH_LIST_USER)
class ListUsersRequestHeader(Header, kw_only=True):
    filter: str | None = None


@request_of(RequestCode.AUTH_CREATE_ACL)
class CreateAclRequestHeader(Header, kw_only=True):
    subject: str | None = None


@request_of(RequestCode.AUTH_UPDATE_ACL)
class UpdateAclRequestHeader(Header, kw_only=True):
    subject: str | None = None


@request_of(RequestCode.AUTH_DELETE_ACL)
class DeleteAclRequestHeader(Header, kw_only=True):
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


@request_of(RequestCode.AUTH_GET_ACL)
class GetAclRequestHeader(Header, kw_only=True):
    subject: str | None = None


@request_of(RequestCode.AUTH_LIST_ACL)
class ListAclsRequestHeader(Header, kw_only=True):
    subject_filter: str | None = None
    resource_filter: str | None = None
