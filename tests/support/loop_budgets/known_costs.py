"""Requests that are known to keep an event loop longer than the budget, and why."""

from __future__ import annotations

from typing import Final

from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.dledger import DLedgerRequestCode
from epochmq_protocol.replica_control import ReplicaControlCode

COPIES: Final = "the bytes are copied several times"
ONE_ACL: Final = "the entries of one user are handled at once; super users only, with access control"
SETTINGS: Final = "all settings are read and checked at once"
MODES: Final = "the table of modes is encoded at once"
SCAN: Final = "the table of offsets is scanned at once"
JOINS: Final = "the response, of many megabytes, is joined at once"
RECORDS: Final = "the messages of a batch are stored at once, as one"
FIRST_STEP: Final = "the lists of the body are found in one step"
SQL: Final = "the expression is compiled at once; needs enablePropertyFilter"
STEPS: Final = "each of its turns also encodes and writes the tables of topics or groups"
COLD: Final = "the table of thresholds is changed, or encoded, at once"
DELETES: Final = "several tables are scanned at once"
REGISTERS: Final = "all topics of a registration are handled at once; members only, with a secret"
PUSHES: Final = "all entries of a push are decoded at once; members only, with a secret"

ONCE: Final = "in one round only, into which periodic work or a garbage collection fell"

KNOWN: Final[dict[str, dict[int, str]]] = {
    "brokers": {
        Code.AUTH_CREATE_USER: "the first change after a start encodes the whole file",
        Code.AUTH_CREATE_ACL: ONE_ACL,
        Code.AUTH_UPDATE_ACL: ONE_ACL,
        Code.AUTH_GET_ACL: ONE_ACL,
        Code.AUTH_LIST_ACL: ONE_ACL,
        Code.AUTH_DELETE_ACL: ONE_ACL,
        ReplicaControlCode.GET_ALL_USERS_AND_ACLS: ONE_ACL,
        Code.SEND_BATCH_MESSAGE: RECORDS,
        Code.GET_BROKER_CONSUME_STATS: JOINS,
        Code.GET_CONSUME_STATS: JOINS,
        Code.QUERY_MESSAGE: COPIES,
        Code.SEND_MESSAGE: COPIES,
        Code.SEND_MESSAGE_V2: COPIES,
        Code.SEND_REPLY_MESSAGE: COPIES,
        Code.SEND_REPLY_MESSAGE_V2: COPIES,
        Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: COLD,
        Code.GET_COLD_DATA_FLOW_CTR_INFO: COLD,
        Code.UPDATE_BROKER_CONFIG: SETTINGS,
        Code.SET_MESSAGE_REQUEST_MODE: MODES,
        Code.GET_ALL_MESSAGE_REQUEST_MODE: MODES,
        Code.HEART_BEAT: STEPS,
        Code.UPDATE_AND_CREATE_TOPIC_LIST: STEPS,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: STEPS,
        Code.LOCK_BATCH_MQ: FIRST_STEP,
        Code.UNLOCK_BATCH_MQ: FIRST_STEP,
        Code.BATCH_ACK_MESSAGE: FIRST_STEP,
        Code.PULL_MESSAGE: SQL,
        Code.QUERY_CORRECTION_OFFSET: SCAN,
        Code.QUERY_TOPICS_BY_CONSUMER: SCAN,
        Code.CLONE_GROUP_OFFSET: SCAN,
        Code.DELETE_TOPIC_IN_BROKER: DELETES,
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "the clients' reports are encoded at once",
        Code.UPDATE_AND_CREATE_STATIC_TOPIC: "the mapping is decoded and written at once",
    },
    "nameservers": {
        Code.REGISTER_BROKER: REGISTERS,
        Code.UPDATE_NAMESRV_CONFIG: SETTINGS,
    },
    "controllers": {
        Code.UPDATE_CONTROLLER_CONFIG: SETTINGS,
        DLedgerRequestCode.PUSH: PUSHES,
    },
}
"""Process → request code → why its largest request takes longer."""
