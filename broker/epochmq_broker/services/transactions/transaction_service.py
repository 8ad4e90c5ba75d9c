"""The parts of transactions on one broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.services.transactions.check_service import TransactionalMessageCheckService
from epochmq_broker.services.transactions.half_queue import MayPublish
from epochmq_broker.services.transactions.op_writer import OpMessageWriter
from epochmq_broker.services.transactions.transaction_metrics import TransactionMetrics
from epochmq_broker.tables.metric_tables import Histogram
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_broker.writing.message_writer import MessageWriter

COMMIT_AGE_BOUNDS = (5, 60, 600, 3600, 12 * 3600, 24 * 3600)
"""Upper bounds of the ages of committed half messages, in seconds (BrokerMetricsManager)."""


@dataclass(slots=True)
class EndedTransactions:
    """The transactions of one topic that were ended here, since the start."""

    committed: int = 0
    rolled_back: int = 0
    ages_s: Histogram = field(default_factory=lambda: Histogram(COMMIT_AGE_BOUNDS))
    """The time from the birth of a half message to its commit."""


class TransactionService:
    """Half messages, their ends and their checks. The master services are `ops` and `checks`, in this
    order."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        writer: MessageWriter,
        sink: MessageSink,
        may_publish: MayPublish,
    ) -> None:
        """`writer` stores op messages. The checks put half messages into `sink`, and ask only producers that
        may publish to the topic."""
        self.metrics = TransactionMetrics(context.live.current.config_dir, context.write_file)
        self.ops = OpMessageWriter(context, writer=writer)
        self.checks = TransactionalMessageCheckService(
            context, sink=sink, metrics=self.metrics, ops=self.ops, may_publish=may_publish
        )
        self.committed = 0
        """Transactions that were committed here, since the start."""
        self.rolled_back = 0
        """Transactions that were rolled back here, since the start."""
        self.ended: dict[str, EndedTransactions] = {}
        """The same by topic."""

    def count_commit(self, topic: str, age_ms: int) -> None:
        """Counts the commit of a transaction. `age_ms`: how old its half message is."""
        self.committed += 1
        ended = self._ended(topic)
        ended.committed += 1
        if age_ms >= 0:
            ended.ages_s.record(age_ms // 1000)

    def count_rollback(self, topic: str) -> None:
        """Counts the rollback of a transaction."""
        self.rolled_back += 1
        self._ended(topic).rolled_back += 1

    def _ended(self, topic: str) -> EndedTransactions:
        ended = self.ended.get(topic)
        if ended is None:
            ended = self.ended[topic] = EndedTransactions()
        return ended
