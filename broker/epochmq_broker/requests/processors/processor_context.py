"""What the processors of requests have in common."""

from __future__ import annotations

from dataclasses import dataclass

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.requests.request_latencies import RequestLatencies
from epochmq_broker.services.cold_reads import ColdReadPool
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorContext:
    """The settings, the store and the tables that requests read and change. Every processor takes one, and by
    name what it needs besides."""

    live: LiveConfig
    store: MessageStore
    writer: MessageWriter
    tables: BrokerTables
    cold_reads: ColdReadPool
    store_host: bytes
    """This broker's encoded address and port; new records contain it."""
    latencies: RequestLatencies
