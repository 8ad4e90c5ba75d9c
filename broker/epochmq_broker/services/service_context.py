"""What the services of a broker have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.services.cold_reads import ColdReadPool
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.writing.quarantine import Quarantine
from epochmq_store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """The settings, the store and the tables that a service works on. Every service takes one, and by name
    what it needs besides."""

    live: LiveConfig
    store: MessageStore
    tables: BrokerTables
    cold_reads: ColdReadPool
    store_host: bytes
    """This broker's encoded address and port; new records contain it."""
    write_file: Callable[[Path, bytes], None]
    """Replaces the content of a state file durably, in a broker soon and on another thread."""
    quarantine: Quarantine
    """Takes the records that a service cannot handle."""
