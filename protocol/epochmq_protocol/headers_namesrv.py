"""Declares the headers of the nameserver's commands, with the fields of RocketMQ 5.3.3."""

from __future__ import annotations

from epochmq_protocol.headers_base import Header, TopicRequestHeader
from epochmq_protocol.integers import Int, Long


class PutKVConfigRequestHeader(Header, kw_only=True):
    """Request of PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(Header, kw_only=True):
    """Request of GET_KV_CONFIG (101)."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header, kw_only=True):
    """Response to GET_KV_CONFIG (101)."""

    value: str | None = None


class DeleteKVConfigRequestHeader(Header, kw_only=True):
    """Request of DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class RegisterBrokerRequestHeader(Header, kw_only=True):
    """Request of REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int = 0


class RegisterBrokerResponseHeader(Header, kw_only=True):
    """Response to REGISTER_BROKER (103)."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Header, kw_only=True):
    """Request of UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class GetRouteInfoRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class WipeWritePermOfBrokerRequestHeader(Header, kw_only=True):
    """Request of WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header, kw_only=True):
    """Response to WIPE_WRITE_PERM_OF_BROKER (205)."""

    wipe_topic_count: Int


class DeleteTopicFromNamesrvRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequestHeader(TopicRequestHeader, kw_only=True):
    """Request of REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


class GetKVListByNamespaceRequestHeader(Header, kw_only=True):
    """Request of GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class GetTopicsByClusterRequestHeader(Header, kw_only=True):
    """Request of GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class QueryDataVersionRequestHeader(Header, kw_only=True):
    """Request of QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class QueryDataVersionResponseHeader(Header, kw_only=True):
    """Response to QUERY_DATA_VERSION (322)."""

    changed: bool


class AddWritePermOfBrokerRequestHeader(Header, kw_only=True):
    """Request of ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header, kw_only=True):
    """Response to ADD_WRITE_PERM_OF_BROKER (327)."""

    add_topic_count: Int


class GetBrokerMemberGroupRequestHeader(Header, kw_only=True):
    """Request of GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeatRequestHeader(Header, kw_only=True):
    """Request of BROKER_HEARTBEAT (904). Nameservers read the first three fields, controllers all."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None
