"""Checks what transactions, timer messages, POP, filters, static topics, topics of type BatchCQ and
compaction topics leave in one replica's store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from epochmq_spark.drill_down import AuditedLog
from epochmq_spark.features.batch_queues import check_batch_queues
from epochmq_spark.features.compacted_queues import check_compacted_queues
from epochmq_spark.features.extensions import check_extensions
from epochmq_spark.features.pop_records import check_pop
from epochmq_spark.features.replica_reader import ReplicaReader
from epochmq_spark.features.state_files import check_state_files
from epochmq_spark.features.timer_units import check_timer
from epochmq_spark.features.transactions import check_transactions

FEATURES: Final[Mapping[str, Callable[[ReplicaReader], None]]] = {
    "batch queues": check_batch_queues,
    "compacted queues": check_compacted_queues,
    "extensions": check_extensions,
    "pop": check_pop,
    "state files": check_state_files,
    "timer": check_timer,
    "transactions": check_transactions,
}
"""The check of each feature."""


def check_feature(name: str, log: AuditedLog, group: Sequence[AuditedLog] = ()) -> list[dict[str, Any]]:
    """The findings of one feature in one replica. `group` are the logs of its group. Raises OSError if a file
    cannot be read."""
    reader = ReplicaReader(log, [one for one in group if one.replica != log.replica])
    FEATURES[name](reader)
    return reader.all_findings()
