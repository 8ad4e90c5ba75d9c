"""Checks the names of topics that an administrator creates or changes."""

from __future__ import annotations

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.tables.topics import TopicTable
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.topics import validate_topic


def check_topic_name(config: BrokerConfig, topics: TopicTable, topic: str) -> None:
    """Raises RequestError if the name is invalid or that of a system topic."""
    fault = validate_topic(topic)
    if fault is not None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, fault)
    check_not_system_topic(config, topics, topic)


def check_not_system_topic(config: BrokerConfig, topics: TopicTable, topic: str) -> None:
    """Raises RequestError if the name is that of a system topic."""
    if config.validate_system_topic_when_update_topic and topics.is_system_topic(topic):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic."
        )
