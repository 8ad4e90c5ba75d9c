"""All of administration under one name."""

from __future__ import annotations

from epochmq_broker.processors.admin_broker import AdminBroker
from epochmq_broker.processors.admin_clients import AdminClients
from epochmq_broker.processors.admin_groups import AdminGroups
from epochmq_broker.processors.admin_offsets import AdminOffsets
from epochmq_broker.processors.admin_parts import AdminParts
from epochmq_broker.processors.admin_store import AdminStore
from epochmq_broker.processors.admin_topics import AdminTopics
from epochmq_protocol.transport.connection import RequestHandler


def admin_handlers(parts: AdminParts) -> dict[int, RequestHandler]:
    """Request code → handler of every administration request (RocketMQ's AdminBrokerProcessor). Codes that
    are not in it are answered REQUEST_CODE_NOT_SUPPORTED by the server."""
    return {
        code: handler
        for processor in (AdminTopics, AdminGroups, AdminOffsets, AdminClients, AdminStore, AdminBroker)
        for code, handler in processor(parts).handlers().items()
    }
