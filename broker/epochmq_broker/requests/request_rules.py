"""The table of request codes: what the gates of the pipeline, fast failure and metrics know about each code.

`processor` is the processor of RocketMQ's broker that serves the code (BrokerController.registerProcessor),
by its label in metrics (BrokerMetricsManager.initStatsMetrics). Each has a thread pool and a queue of its
own, a limit for the wait in that queue, and a gauge of its requests. `admin` serves all codes without a row.
The permissions that a request needs are in `auth.access_rules`.
"""
# pure: values only

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from epochmq_broker.membership.controlled.handover import Handover
from epochmq_protocol.codes import RequestCode

ADMIN: Final = "admin"
PROCESSORS: Final = (
    "send",
    "pull",
    "ack",
    "query_message",
    "client_manager",
    "heartbeat",
    "lite_pull",
    "transaction",
    "consumer_manager",
    "reply",
)
"""The processors but for `admin`, in the order of RocketMQ's metrics."""


class RequestRule(Struct, frozen=True, kw_only=True):
    """What is particular about the requests of one code."""

    processor: str = ADMIN
    name_field: str = ""
    """The ext field with the name of the broker that is meant; empty if the request names none."""
    handover: Handover = Handover.SERVED
    """What happens to the request during a switchover, and after it, on the former master."""
    isolated: bool = False
    """Whether only a master that serves may serve it, so that an isolated one rejects it."""
    changes_tables: bool = False
    """Whether it changes topics, groups or their offsets for an administrator, which only a master may: the
    next copy of the master's tables would undo the change on a slave. (The handler of
    INVOKE_BROKER_TO_RESET_OFFSET rejects it itself, as RocketMQ's does.)"""
    reads_cold_itself: bool = False
    """Whether its handler waits itself for bytes that are not in memory (`cold_reads`)."""


_PLAIN: Final = RequestRule()
REQUEST_RULES: Final[dict[int, RequestRule]] = {
    # messages
    RequestCode.SEND_MESSAGE: RequestRule(
        processor="send", name_field="bname", handover=Handover.HELD, isolated=True
    ),
    RequestCode.SEND_MESSAGE_V2: RequestRule(
        processor="send", name_field="n", handover=Handover.HELD, isolated=True
    ),
    RequestCode.SEND_BATCH_MESSAGE: RequestRule(
        processor="send", name_field="n", handover=Handover.HELD, isolated=True
    ),
    RequestCode.CONSUMER_SEND_MSG_BACK: RequestRule(
        processor="send", name_field="bname", handover=Handover.HELD, isolated=True
    ),
    RequestCode.RECALL_MESSAGE: RequestRule(
        processor="send", name_field="bname", handover=Handover.HELD, isolated=True
    ),
    RequestCode.END_TRANSACTION: RequestRule(
        processor="transaction", name_field="bname", handover=Handover.HELD, isolated=True
    ),
    RequestCode.SEND_REPLY_MESSAGE: RequestRule(processor="reply", isolated=True),
    RequestCode.SEND_REPLY_MESSAGE_V2: RequestRule(processor="reply", isolated=True),
    # pulls and POPs
    RequestCode.PULL_MESSAGE: RequestRule(
        processor="pull", name_field="bname", isolated=True, reads_cold_itself=True
    ),
    RequestCode.LITE_PULL_MESSAGE: RequestRule(
        processor="lite_pull", name_field="bname", isolated=True, reads_cold_itself=True
    ),
    RequestCode.PEEK_MESSAGE: RequestRule(processor="pull", name_field="bname", isolated=True),
    RequestCode.POP_MESSAGE: RequestRule(
        processor="pull",
        name_field="bname",
        handover=Handover.HELD_ONLY,
        isolated=True,
        reads_cold_itself=True,
    ),
    RequestCode.NOTIFICATION: RequestRule(processor="pull", name_field="bname", isolated=True),
    RequestCode.POLLING_INFO: RequestRule(processor="pull", name_field="bname"),
    RequestCode.ACK_MESSAGE: RequestRule(
        processor="ack", name_field="bname", handover=Handover.HELD, isolated=True
    ),
    RequestCode.BATCH_ACK_MESSAGE: RequestRule(processor="ack", handover=Handover.HELD, isolated=True),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: RequestRule(
        processor="ack", name_field="bname", handover=Handover.HELD, isolated=True
    ),
    # groups, their offsets and locks
    RequestCode.HEART_BEAT: RequestRule(processor="heartbeat"),
    RequestCode.UNREGISTER_CLIENT: RequestRule(processor="client_manager"),
    RequestCode.CHECK_CLIENT_CONFIG: RequestRule(processor="client_manager"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: RequestRule(processor="consumer_manager"),
    RequestCode.QUERY_CONSUMER_OFFSET: RequestRule(
        processor="consumer_manager", name_field="bname", handover=Handover.RELAYED, isolated=True
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: RequestRule(
        processor="consumer_manager", name_field="bname", handover=Handover.RELAYED, isolated=True
    ),
    RequestCode.QUERY_ASSIGNMENT: RequestRule(processor="consumer_manager"),
    RequestCode.SET_MESSAGE_REQUEST_MODE: RequestRule(processor="consumer_manager"),
    RequestCode.LOCK_BATCH_MQ: RequestRule(handover=Handover.RELAYED, isolated=True),
    RequestCode.UNLOCK_BATCH_MQ: RequestRule(handover=Handover.RELAYED, isolated=True),
    # queues and topics
    RequestCode.QUERY_MESSAGE: RequestRule(processor="query_message"),
    RequestCode.VIEW_MESSAGE_BY_ID: RequestRule(processor="query_message"),
    RequestCode.GET_MAX_OFFSET: RequestRule(name_field="bname"),
    RequestCode.GET_MIN_OFFSET: RequestRule(name_field="bname"),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: RequestRule(name_field="bname"),
    RequestCode.GET_EARLIEST_MSG_STORETIME: RequestRule(name_field="bname"),
    RequestCode.GET_TOPIC_CONFIG: RequestRule(name_field="bname"),
    RequestCode.UPDATE_AND_CREATE_TOPIC: RequestRule(name_field="bname", changes_tables=True),
    RequestCode.DELETE_TOPIC_IN_BROKER: RequestRule(name_field="bname", changes_tables=True),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: RequestRule(changes_tables=True),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: RequestRule(changes_tables=True),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: RequestRule(changes_tables=True),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: RequestRule(changes_tables=True),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: RequestRule(changes_tables=True),
    RequestCode.CLONE_GROUP_OFFSET: RequestRule(changes_tables=True),
}
"""Request code → rule. A code without a row has the defaults."""


def rule_of(code: int) -> RequestRule:
    """The rule for a request code."""
    return REQUEST_RULES.get(code, _PLAIN)


def codes_where(condition: Callable[[RequestRule], object]) -> frozenset[int]:
    """The codes whose rule satisfies the condition."""
    return frozenset(code for code, rule in REQUEST_RULES.items() if condition(rule))


def processor_codes(processor: str) -> frozenset[int]:
    """The codes that this processor of RocketMQ's serves; of `admin`, only those with a row."""
    return codes_where(lambda rule: rule.processor == processor)
