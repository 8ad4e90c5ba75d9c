"""Requests that are known to keep an event loop longer than the budget, and why."""

from __future__ import annotations

from typing import Final

from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.dledger import DLedgerRequestCode

COPIES: Final = "the bytes are copied several times; into the log, the system adds a page for each 4 KiB"
SETTINGS: Final = "the changed settings are checked and put in force at once"
JOINS: Final = "the response, of many megabytes, is joined at once"
STEPS: Final = "each of its turns also writes the whole tables of topics or groups"
REGISTERS: Final = "the topics enter the routes at once; members only, with a secret"
PUSHES: Final = "all entries of a push are decoded at once; members only, with a secret"

ONCE: Final = "in one round only, into which periodic work or a garbage collection fell"

KNOWN: Final[dict[str, dict[int, str]]] = {
    "brokers": {
        Code.GET_BROKER_CONSUME_STATS: JOINS,
        Code.GET_CONSUME_STATS: JOINS,
        Code.QUERY_MESSAGE: COPIES,
        Code.SEND_MESSAGE: COPIES,
        Code.SEND_MESSAGE_V2: COPIES,
        Code.SEND_REPLY_MESSAGE: COPIES,
        Code.SEND_REPLY_MESSAGE_V2: COPIES,
        Code.UPDATE_BROKER_CONFIG: SETTINGS,
        Code.HEART_BEAT: STEPS,
        Code.UPDATE_AND_CREATE_TOPIC_LIST: STEPS,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: STEPS,
        Code.DELETE_TOPIC_IN_BROKER: STEPS,
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "the clients' reports are encoded at once",
        Code.UPDATE_AND_CREATE_STATIC_TOPIC: "the mapping is decoded and written at once",
        Code.BATCH_ACK_MESSAGE: "a step of the timer falls into a turn",
    },
    "nameservers": {Code.REGISTER_BROKER: REGISTERS},
    "controllers": {DLedgerRequestCode.PUSH: PUSHES},
}
"""Process → request code → why its largest request takes longer, at least sometimes."""
