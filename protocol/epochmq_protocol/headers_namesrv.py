"""Declares the headers of the nameserver's commands, with the fields of RocketMQ 5.3.3."""

from __future__ import annotations

from epochmq_protocol.codes import RequestCode
from epochmq_protocol.headers_base import Header, TopicRequestHeader, request_of, response_to
from epochmq_protocol.integers import Int, Long


@request_of(RequestCode.PUT_KV_CONFIG)
class PutKVConfigRequestHeader(Header, kw_only=True):
    namespace: str
    key: str
    value: str


@request_of(RequestCode.GET_KV_CONFIG)
class GetKVConfigRequestHeader(Header, kw_only=True):
    namespace: str
    key: str


@response_to(RequestCode.GET_KV_CONFIG)
class GetKVConfigResponseHeader(Header, kw_only=True):
    value: str | None = None


@request_of(RequestCode.DELETE_KV_CONFIG)
class DeleteKVConfigRequestHeader(Header, kw_only=True):
    namespace: str
    key: str


@request_of(RequestCode.REGISTER_BROKER)
class RegisterBrokerRequestHeader(Header, kw_only=True):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int = 0


@response_to(RequestCode.REGISTER_BROKER)
class RegisterBrokerResponseHeader(Header, kw_only=True):
    ha_server_addr: str | None = None
    master_addr: str | None = None


@request_of(RequestCode.UNREGISTER_BROKER)
class UnRegisterBrokerRequestHeader(Header, kw_only=True):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@request_of(RequestCode.GET_ROUTEINFO_BY_TOPIC)
class GetRouteInfoRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str
    accept_standard_json_only: bool | None = None


@request_of(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermOfBrokerRequestHeader(Header, kw_only=True):
    broker_name: str


@response_to(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermOfBrokerResponseHeader(Header, kw_only=True):
    wipe_topic_count: Int


@request_of(RequestCode.DELETE_TOPIC_IN_NAMESRV)
class DeleteTopicFromNamesrvRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str
    cluster_name: str | None = None


@request_of(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
class RegisterTopicRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


@request_of(RequestCode.GET_KVLIST_BY_NAMESPACE)
class GetKVListByNamespaceRequestHeader(Header, kw_only=True):
    namespace: str


@request_of(RequestCode.GET_TOPICS_BY_CLUSTER)
class GetTopicsByClusterRequestHeader(Header, kw_only=True):
    cluster: str


@request_of(RequestCode.QUERY_DATA_VERSION)
class QueryDataVersionRequestHeader(Header, kw_only=True):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@response_to(RequestCode.QUERY_DATA_VERSION)
class QueryDataVersionResponseHeader(Header, kw_only=True):
    changed: bool


@request_of(RequestCode.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermOfBrokerRequestHeader(Header, kw_only=True):
    broker_name: str


@response_to(RequestCode.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermOfBrokerResponseHeader(Header, kw_only=True):
    add_topic_count: Int


@request_of(RequestCode.GET_BROKER_MEMBER_GROUP)
class GetBrokerMemberGroupRequestHeader(Header, kw_only=True):
    cluster_name: str
    broker_name: str


@request_of(RequestCode.BROKER_HEARTBEAT)
class BrokerHeartbeatRequestHeader(Header, kw_only=True):
    """Nameservers read the first three fields, controllers all."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None
