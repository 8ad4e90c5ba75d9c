"""Names in the records of the revive topic, which POP writes (PopAckConstants, PopCheckPoint, AckMsg)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from epochmq_protocol.topics import SYSTEM_TOPIC_PREFIX

REVIVE_TOPIC_PREFIX: Final = f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_"
"""The revive topic of a cluster has this prefix before the cluster's name."""
CK_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
"""The tags of checkpoints and of acknowledgements of one and of several messages."""
SHORT_NAMES: Final[Mapping[str, str]] = {
    "ackOffset": "ao",
    "startOffset": "so",
    "consumerGroup": "c",
    "topic": "t",
    "queueId": "q",
    "popTime": "pt",
    "brokerName": "bn",
    "ackOffsetList": "aol",
}
"""Long name of a field, as RocketMQ also reads it (JSONField.alternateNames) → the name that is written."""
