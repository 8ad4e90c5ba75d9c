# pure: values only
"""Lists the requests that only members of a cluster send to each other: a process that demands proofs of
membership serves them to members only, and sends the others to members only."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from epochmq_protocol.codes import RequestCode
from epochmq_protocol.dledger import DLedgerRequestCode
from epochmq_protocol.replica_control import ReplicaControlCode


class MemberCode(IntEnum):
    """Request codes of the proof of membership, at the start of a connection. Java's processes and those
    without a secret respond REQUEST_CODE_NOT_SUPPORTED (3) to them."""

    HELLO = 20_017
    """Has the nonce of the side that opened the connection; the response has the other's, and the ids of its
    secrets."""
    PROVE = 20_018
    """Has the proof of the opening side; the response has the other's. Then both directions are sealed."""


_RAFT: Final = frozenset(map(int, DLedgerRequestCode))
_BROKERS_AT_CONTROLLERS: Final = frozenset(
    {
        int(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET),
        int(RequestCode.CONTROLLER_ELECT_MASTER),
        int(RequestCode.CONTROLLER_REGISTER_BROKER),
        int(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID),
        int(RequestCode.CONTROLLER_APPLY_BROKER_ID),
    }
)
_CHANGES_AT_CONTROLLERS: Final = frozenset(
    {
        int(RequestCode.BROKER_HEARTBEAT),
        int(RequestCode.UPDATE_CONTROLLER_CONFIG),
        int(RequestCode.CLEAN_BROKER_DATA),
        int(ReplicaControlCode.ADOPT_GROUP),
    }
)
_READS_AT_CONTROLLERS: Final = frozenset(
    {
        int(RequestCode.CONTROLLER_GET_REPLICA_INFO),
        int(RequestCode.CONTROLLER_GET_METADATA_INFO),
        int(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA),
    }
)
_BROKERS: Final = frozenset(map(int, ReplicaControlCode)) - {int(ReplicaControlCode.ADOPT_GROUP)}
_COPIES_OF_TABLES: Final = frozenset(
    {
        int(RequestCode.GET_ALL_TOPIC_CONFIG),
        int(RequestCode.GET_ALL_CONSUMER_OFFSET),
        int(RequestCode.GET_ALL_DELAY_OFFSET),
        int(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
        int(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
        int(RequestCode.GET_TIMER_CHECK_POINT),
        int(RequestCode.GET_TIMER_METRICS),
    }
)
_NOTIFICATIONS: Final = frozenset(
    {
        int(RequestCode.NOTIFY_BROKER_ROLE_CHANGED),
        int(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE),
        int(RequestCode.EXCHANGE_BROKER_HA_INFO),
    }
)

CONTROLLER_REQUESTS: Final = _RAFT | _BROKERS_AT_CONTROLLERS | _CHANGES_AT_CONTROLLERS
"""What a controller serves to members only. Reads stay open to mqadmin."""
RAFT_REQUESTS: Final = _RAFT
"""What a peer of a DLedger group serves to members only."""
BROKER_REQUESTS: Final = _BROKERS | _NOTIFICATIONS
"""What a broker serves to members only, at its ports for clients."""
NAMESERVER_REQUESTS: Final = frozenset(
    {
        int(RequestCode.REGISTER_BROKER),
        int(RequestCode.UNREGISTER_BROKER),
        int(RequestCode.BROKER_HEARTBEAT),
    }
)
"""What a nameserver serves to members only."""
SENT_TO_MEMBERS: Final = (
    _RAFT
    | _BROKERS_AT_CONTROLLERS
    | _READS_AT_CONTROLLERS
    | _BROKERS
    | _COPIES_OF_TABLES
    | {int(RequestCode.EXCHANGE_BROKER_HA_INFO), int(ReplicaControlCode.ADOPT_GROUP)}
)
"""What members send to members only: their responses decide about leaders, masters, leases and content."""
