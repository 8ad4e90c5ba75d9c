"""Collects the handlers of all requests of mqadmin."""

from __future__ import annotations

from epochmq_broker.requests.processors.mqadmin_broker import MqadminBrokerProcessor
from epochmq_broker.requests.processors.mqadmin_clients import MqadminClientProcessor
from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.requests.processors.mqadmin_groups import MqadminGroupProcessor
from epochmq_broker.requests.processors.mqadmin_offsets import MqadminOffsetProcessor
from epochmq_broker.requests.processors.mqadmin_store import MqadminStoreProcessor
from epochmq_broker.requests.processors.mqadmin_topics import MqadminTopicProcessor
from epochmq_protocol.transport.connection import RequestHandler


def mqadmin_handlers(components: MqadminDependencies) -> dict[int, RequestHandler]:
    """Request code → handler of every mqadmin request (RocketMQ's AdminBrokerProcessor). The server responds
    to other codes with REQUEST_CODE_NOT_SUPPORTED."""
    return {
        code: handler
        for processor in (
            MqadminTopicProcessor,
            MqadminGroupProcessor,
            MqadminOffsetProcessor,
            MqadminClientProcessor,
            MqadminStoreProcessor,
            MqadminBrokerProcessor,
        )
        for code, handler in processor(components).handlers().items()
    }
