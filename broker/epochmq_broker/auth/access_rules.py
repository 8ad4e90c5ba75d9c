# pure: a table
"""Lists which resources and actions a request asks for, where its header alone says it: the annotations of
RocketMQ's request headers (@RocketMQAction, @RocketMQResource).

The ext fields of a rule are in RocketMQ's order, because the first denied resource determines the remark. A
rule `of_cluster` is about the whole cluster where the request has none of the fields. RocketMQ needs no
permission for requests without a rule, such as UPDATE_BROKER_CONFIG and UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
every user who is authenticated may send them. The requests of replica control are EpochMQ's own; they need
the permissions that RocketMQ's requests between brokers need.
"""

from __future__ import annotations

from typing import Final

import msgspec

from epochmq_broker.auth.acls import Action, ResourceType
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.replica_control import ReplicaControlCode


class ResourceField(msgspec.Struct, frozen=True):
    """An ext field that names a resource, or several with a separator between them."""

    type: ResourceType
    name: str
    separator: str = ""


class AccessRule(msgspec.Struct, frozen=True):
    """What the requests of one code ask for."""

    actions: tuple[Action, ...]
    fields: tuple[ResourceField, ...]
    of_cluster: bool


def _cluster(name: str) -> ResourceField:
    return ResourceField(ResourceType.CLUSTER, name)


def _group(name: str, separator: str = "") -> ResourceField:
    return ResourceField(ResourceType.GROUP, name, separator)


def _topic(name: str, separator: str = "") -> ResourceField:
    return ResourceField(ResourceType.TOPIC, name, separator)


def _rule(actions: tuple[Action, ...], *fields: ResourceField, of_cluster: bool = False) -> AccessRule:
    return AccessRule(actions, fields, of_cluster)


ACCESS_RULES: Final[dict[int, AccessRule]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: _rule((Action.CREATE,), _topic("topic")),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _rule((Action.GET,), _topic("topic")),
    RequestCode.GET_MAX_OFFSET: _rule((Action.GET,), _topic("topic")),
    RequestCode.GET_MIN_OFFSET: _rule((Action.GET,), _topic("topic")),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _rule((Action.GET,), _topic("topic")),
    RequestCode.VIEW_MESSAGE_BY_ID: _rule((Action.GET,), _topic("topic")),
    RequestCode.CHECK_TRANSACTION_STATE: _rule((Action.PUB,), _topic("topic")),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _rule((Action.SUB,), _group("consumerGroup")),
    RequestCode.PUT_KV_CONFIG: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.GET_KV_CONFIG: _rule((Action.GET,), of_cluster=True),
    RequestCode.DELETE_KV_CONFIG: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.REGISTER_BROKER: _rule((Action.UPDATE,), _cluster("clusterName"), of_cluster=True),
    RequestCode.UNREGISTER_BROKER: _rule((Action.UPDATE,), _cluster("clusterName"), of_cluster=True),
    RequestCode.GET_TOPIC_STATS_INFO: _rule((Action.GET,), _topic("topic")),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _rule((Action.GET,), _group("consumerGroup")),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _rule((Action.GET,), of_cluster=True),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _rule((Action.DELETE,), _group("groupName")),
    RequestCode.GET_CONSUME_STATS: _rule(
        (Action.GET,), _group("consumerGroup"), _topic("topic"), _topic("topicList", ";")
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: _rule((Action.DELETE,), _topic("topic")),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _rule((Action.UPDATE,), _cluster("clusterName"), of_cluster=True),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.GET_KVLIST_BY_NAMESPACE: _rule((Action.GET,), of_cluster=True),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _rule((Action.UPDATE,), _group("group"), _topic("topic")),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _rule((Action.GET,), _topic("topic"), _group("group")),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _rule((Action.GET,), _topic("topic")),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _rule((Action.GET,), _topic("topic"), _group("group")),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _rule((Action.GET,), _group("consumerGroup")),
    RequestCode.QUERY_CORRECTION_OFFSET: _rule(
        (Action.GET,), _group("filterGroups", ","), _group("compareGroup"), _topic("topic")
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _rule((Action.SUB,), _group("consumerGroup"), _topic("topic")),
    RequestCode.CLONE_GROUP_OFFSET: _rule((Action.UPDATE,), _group("destGroup"), _topic("topic")),
    RequestCode.VIEW_BROKER_STATS_DATA: _rule((Action.GET,), of_cluster=True),
    RequestCode.GET_BROKER_CONSUME_STATS: _rule((Action.GET,), of_cluster=True),
    RequestCode.QUERY_CONSUME_QUEUE: _rule((Action.GET,), _topic("topic"), _group("consumerGroup")),
    RequestCode.QUERY_DATA_VERSION: _rule((Action.GET,), _cluster("clusterName"), of_cluster=True),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _rule((Action.UPDATE,), _topic("topic")),
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: _rule((Action.SUB,), _group("producerGroup"), _topic("topic")),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.GET_ALL_PRODUCER_INFO: _rule((Action.GET,), of_cluster=True),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _rule((Action.GET,), _group("group")),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _rule((Action.GET,), _group("group"), _topic("topic")),
    RequestCode.GET_TOPIC_CONFIG: _rule((Action.GET,), _topic("topic")),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _rule((Action.GET,), _group("group")),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _rule((Action.UPDATE,), _group("group"), _topic("topic")),
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _rule((Action.GET,), _topic("topic")),
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _rule((Action.GET,), of_cluster=True),
    RequestCode.GET_BROKER_MEMBER_GROUP: _rule((Action.GET,), _cluster("clusterName")),
    RequestCode.ADD_BROKER: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.REMOVE_BROKER: _rule((Action.UPDATE,), _cluster("brokerClusterName"), of_cluster=True),
    RequestCode.BROKER_HEARTBEAT: _rule((Action.UPDATE,), _cluster("clusterName"), of_cluster=True),
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.EXCHANGE_BROKER_HA_INFO: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.CONTROLLER_ELECT_MASTER: _rule((Action.UPDATE,), _cluster("clusterName"), of_cluster=True),
    RequestCode.CONTROLLER_REGISTER_BROKER: _rule((Action.UPDATE,), _cluster("clusterName"), of_cluster=True),
    RequestCode.CONTROLLER_GET_REPLICA_INFO: _rule((Action.GET,), of_cluster=True),
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.CLEAN_BROKER_DATA: _rule((Action.UPDATE,), _cluster("clusterName"), of_cluster=True),
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: _rule((Action.GET,), _cluster("clusterName"), of_cluster=True),
    RequestCode.CONTROLLER_APPLY_BROKER_ID: _rule((Action.UPDATE,), _cluster("clusterName"), of_cluster=True),
    RequestCode.AUTH_CREATE_USER: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.AUTH_UPDATE_USER: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.AUTH_DELETE_USER: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.AUTH_GET_USER: _rule((Action.GET,), of_cluster=True),
    RequestCode.AUTH_LIST_USER: _rule((Action.GET,), of_cluster=True),
    RequestCode.AUTH_CREATE_ACL: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.AUTH_UPDATE_ACL: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.AUTH_DELETE_ACL: _rule((Action.UPDATE,), of_cluster=True),
    RequestCode.AUTH_GET_ACL: _rule((Action.GET,), of_cluster=True),
    RequestCode.AUTH_LIST_ACL: _rule((Action.GET,), of_cluster=True),
    RequestCode.POP_MESSAGE: _rule((Action.SUB,), _group("consumerGroup"), _topic("topic")),
    RequestCode.ACK_MESSAGE: _rule((Action.SUB,), _group("consumerGroup"), _topic("topic")),
    RequestCode.PEEK_MESSAGE: _rule((Action.SUB,), _topic("topic"), _group("consumerGroup")),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _rule((Action.SUB,), _group("consumerGroup"), _topic("topic")),
    RequestCode.NOTIFICATION: _rule((Action.SUB,), _group("consumerGroup"), _topic("topic")),
    RequestCode.POLLING_INFO: _rule((Action.GET,), _group("consumerGroup"), _topic("topic")),
    ReplicaControlCode.SWITCHOVER: _rule((Action.UPDATE,), of_cluster=True),
    ReplicaControlCode.SET_CONTROL_STATE: _rule((Action.UPDATE,), of_cluster=True),
    ReplicaControlCode.SETTLE_STORE: _rule((Action.UPDATE,), of_cluster=True),
    ReplicaControlCode.COPY_TABLES: _rule((Action.UPDATE,), of_cluster=True),
    ReplicaControlCode.GET_MASTER_LOG_STATE: _rule((Action.GET,), of_cluster=True),
    ReplicaControlCode.LOG_CHECKSUMS: _rule((Action.GET,), of_cluster=True),
    ReplicaControlCode.WRITE_PROMISE: _rule((Action.UPDATE,), of_cluster=True),
    ReplicaControlCode.SCRUB_CHECKSUMS: _rule((Action.GET,), of_cluster=True),
    ReplicaControlCode.SCRUB_BYTES: _rule((Action.GET,), of_cluster=True),
    ReplicaControlCode.GET_ALL_USERS_AND_ACLS: _rule((Action.GET,), of_cluster=True),
}
