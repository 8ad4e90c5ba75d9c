"""The parts of transactions on one broker."""

from __future__ import annotations

from epochmq_broker.clients import ClientRegistry
from epochmq_broker.cold_reads import ColdReadPool
from epochmq_broker.config import LiveConfig
from epochmq_broker.consumer_offsets import ConsumerOffsetTable
from epochmq_broker.message_writer import MessageWriter
from epochmq_broker.stats import BrokerStats
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.topics import TopicTable
from epochmq_broker.transactions.check_service import TransactionalMessageCheckService
from epochmq_broker.transactions.half_queue import TransactionDependencies
from epochmq_broker.transactions.op_writer import OpMessageWriter
from epochmq_broker.transactions.transaction_metrics import TransactionMetrics


class TransactionService:
    """Half messages, their ends and their checks. The master services are `ops` and `checks`, in this
    order."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        writer: MessageWriter,
        topics: TopicTable,
        clients: ClientRegistry,
        stats: BrokerStats,
        offsets: ConsumerOffsetTable,
        cold_reads: ColdReadPool,
        store_host: bytes,
    ) -> None:
        self.metrics = TransactionMetrics(live.current.config_dir)
        self.ops = OpMessageWriter(live, writer, stats, store_host)
        self.checks = TransactionalMessageCheckService(
            TransactionDependencies(live, store, writer, topics, clients, stats, cold_reads, self.metrics),
            offsets,
            self.ops,
        )
        self.committed = 0
        """Transactions that were committed here, since the start."""
        self.rolled_back = 0
        """Transactions that were rolled back here, since the start."""
