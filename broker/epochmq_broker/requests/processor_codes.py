"""Groups request codes by the processors of RocketMQ's broker. Each processor has a thread pool and a queue
of its own, a limit for the wait in that queue, and a gauge of its requests."""
# pure: values only

from __future__ import annotations

from typing import Final

from epochmq_protocol.codes import RequestCode

PROCESSOR_CODES: Final[dict[str, tuple[RequestCode, ...]]] = {
    "send": (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.RECALL_MESSAGE,
    ),
    "pull": (
        RequestCode.PULL_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    ),
    "ack": (
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    ),
    "query_message": (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
    "client_manager": (RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG),
    "heartbeat": (RequestCode.HEART_BEAT,),
    "lite_pull": (RequestCode.LITE_PULL_MESSAGE,),
    "transaction": (RequestCode.END_TRANSACTION,),
    "consumer_manager": (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    ),
    "reply": (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
}
"""Processor, by its label in metrics (BrokerMetricsManager.initStatsMetrics) → its request codes
(BrokerController.registerProcessor). The processor `admin` serves all other codes."""
