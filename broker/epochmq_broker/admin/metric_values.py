"""Collects the values of a broker's metrics that its state does not contain."""

from __future__ import annotations

from epochmq_broker.auth.access_control import AccessControl
from epochmq_broker.config.clock import now_ms
from epochmq_broker.membership.controlled.manager import ReplicasManager
from epochmq_broker.replication.ha.service import HAService
from epochmq_broker.replication.scrub.log_scrub import LogScrub
from epochmq_broker.services.cold_reads import ColdReadPool
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_broker.services.transactions.transaction_service import TransactionService
from epochmq_broker.tables.stats import BrokerStats
from epochmq_broker.writing.escape.bridge import EscapeBridge
from epochmq_broker.writing.quarantine import Quarantine
from epochmq_protocol.transport.server_certificates import ServerCertificates
from epochmq_store.message_store import MessageStore


def metric_values(
    store: MessageStore,
    ha: HAService,
    stats: BrokerStats,
    replicas: ReplicasManager | None,
    cold_reads: ColdReadPool,
    scrub: LogScrub,
    transactions: TransactionService,
    pop: PopService,
    access: AccessControl,
    timer: TimerService | None,
    escape: EscapeBridge,
    quarantine: Quarantine,
    certificates: ServerCertificates,
    *,
    log_diverged: bool,
) -> dict[str, float]:
    """Metric name → value. A name may end in a colon and the value of the label `kind`. Omits a rate without
    enough samples."""
    info = stats.runtime_info(now_ms())
    found = {
        "broker_messages_put_total": float(stats.put_total),
        "broker_messages_got_total": float(stats.get_total),
        "broker_bytes_put_total": float(info["putMessageSizeTotal"]),
        "broker_put_failures_total": float(stats.put_failures),
        "broker_start_time_seconds": stats.started_ms / 1000,
        "broker_min_offset": float(store.min_phy_offset),
        "broker_read_failures_total": float(cold_reads.failures),
        "broker_transactions_committed_total": float(transactions.committed),
        "broker_transactions_rolled_back_total": float(transactions.rolled_back),
        "broker_transactions_discarded_total": float(transactions.checks.discarded),
        "broker_transaction_checks_total": float(transactions.checks.checked),
        "broker_transaction_checks_unreachable_total": float(transactions.checks.unreachable),
        "broker_half_messages_ahead": float(transactions.checks.ahead),
        "broker_pop_revived_total": float(pop.revives.revived),
        "broker_pop_pending_checkpoints": float(pop.revives.pending_checkpoints),
        "broker_pop_buffered_checkpoints": float(pop.buffer.checkpoints),
        "broker_unauthenticated_requests_total": float(access.unauthenticated),
        "broker_unauthorized_requests_total": float(access.unauthorized),
        "broker_unflushed_bytes": float(store.unflushed_bytes),
        "broker_dispatch_behind_bytes": float(store.dispatch_behind_bytes),
        "broker_disk_used_ratio": float(store.disk_used_ratio),
        "broker_epochs": float(len(ha.epochs.epochs.entries)),
        "broker_log_diverged": float(log_diverged),
        "broker_connected_replicas": float(len(ha.sync_state.replicas) if ha.sync_state is not None else 0),
    }
    for metric, key in (("broker_put_rate", "putTps"), ("broker_get_rate", "getTransferredTps")):
        ten_seconds = info[key].partition(" ")[0]
        if ten_seconds:
            found[metric] = float(ten_seconds)
    log_paths = store.log_expiry.use.log_paths
    if len(log_paths) > 1:
        found |= {f"broker_log_path_used_ratio:{path}": used for path, used in log_paths}
    found |= scrub.metric_values() | escape.metric_values()
    found |= quarantine.metric_values() | certificates.metric_values("broker")
    if timer is not None:
        found |= timer.metric_values()
    if replicas is not None:
        found["broker_held_requests"] = float(replicas.gate.held)
        found["broker_relayed_requests_total"] = float(replicas.gate.relayed)
        found["broker_lease_lapses_total"] = float(replicas.lease.lapses)
    return found
