# pure: values only
"""Lists who may make which request at the ports of a nameserver and of a controller.

These ports have no users: RocketMQ's clients and `mqadmin` sign requests to brokers only. A request that only
members send is rejected from everybody else where members have a secret (`member_requests`). Other requests
that change the state are for administrators; only the network tells these from others.
"""

from __future__ import annotations

import enum
from typing import Final

from epochmq_protocol.codes import RequestCode
from epochmq_protocol.dledger import DLedgerRequestCode
from epochmq_protocol.member_requests import MemberCode
from epochmq_protocol.replica_control import ReplicaControlCode


class Sender(enum.Enum):
    """Who may make a request."""

    EVERYBODY = "everybody"
    MEMBERS = "members, proven with `memberSecretPath`"
    ADMINISTRATORS = "administrators; the network keeps others away"


_READ, _MEMBER, _CHANGE = Sender.EVERYBODY, Sender.MEMBERS, Sender.ADMINISTRATORS

NAMESERVER_RULES: Final[dict[int, Sender]] = {
    RequestCode.PUT_KV_CONFIG: _CHANGE,
    RequestCode.GET_KV_CONFIG: _READ,
    RequestCode.DELETE_KV_CONFIG: _CHANGE,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _READ,
    RequestCode.REGISTER_BROKER: _MEMBER,
    RequestCode.UNREGISTER_BROKER: _MEMBER,
    RequestCode.BROKER_HEARTBEAT: _MEMBER,
    RequestCode.QUERY_DATA_VERSION: _READ,
    RequestCode.GET_BROKER_MEMBER_GROUP: _READ,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _READ,
    RequestCode.GET_BROKER_CLUSTER_INFO: _READ,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _CHANGE,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _CHANGE,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _READ,
    RequestCode.GET_TOPICS_BY_CLUSTER: _READ,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _READ,
    RequestCode.GET_UNIT_TOPIC_LIST: _READ,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _READ,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _READ,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _CHANGE,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _CHANGE,
    RequestCode.UPDATE_NAMESRV_CONFIG: _CHANGE,
    RequestCode.GET_NAMESRV_CONFIG: _READ,
    MemberCode.HELLO: _READ,
    MemberCode.PROVE: _READ,
}
"""Request code of a nameserver → who may make it. At the external port, only what everybody may is served."""

CONTROLLER_RULES: Final[dict[int, Sender]] = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: _MEMBER,
    RequestCode.CONTROLLER_ELECT_MASTER: _MEMBER,
    RequestCode.CONTROLLER_REGISTER_BROKER: _MEMBER,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: _READ,
    RequestCode.CONTROLLER_GET_METADATA_INFO: _READ,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: _READ,
    RequestCode.BROKER_HEARTBEAT: _MEMBER,
    RequestCode.UPDATE_CONTROLLER_CONFIG: _MEMBER,
    RequestCode.GET_CONTROLLER_CONFIG: _READ,
    RequestCode.CLEAN_BROKER_DATA: _MEMBER,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: _MEMBER,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: _MEMBER,
    ReplicaControlCode.ADOPT_GROUP: _MEMBER,
    **dict.fromkeys(DLedgerRequestCode, _MEMBER),
    MemberCode.HELLO: _READ,
    MemberCode.PROVE: _READ,
}
"""Request code of a controller → who may make it."""
