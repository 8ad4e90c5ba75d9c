# pure: a state as Prometheus text
"""Formats the metrics of one process as Prometheus text (0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from epochmq_protocol.admin_api.results import (
    BrokerState,
    ControllerState,
    DLedgerState,
    MetricValues,
    NameserverState,
)

PREFIX = "epochmq_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

HELP: dict[str, str] = {
    "up": "Whether the process responds at its admin socket.",
    "ready": "Whether the process is ready.",
    "port_rejections_total": "Connections that the ports rejected or aborted because of a limit.",
    "member_rejections_total": "Requests and HA connections that were rejected: no proof of membership.",
    "member_unproven_requests_total": "Requests and HA connections accepted without a proof of membership.",
    "port_unfinished_frame_bytes": "Bytes that the process holds of frames that are not complete.",
    "broker_role": "1 for the broker's present role.",
    "broker_master_epoch": "The master epoch of its latest role.",
    "broker_sync_state_set_size": "The number of members of the SyncStateSet, as this broker knows it.",
    "broker_sync_state_set_epoch": "The epoch of the SyncStateSet.",
    "broker_confirm_offset": "The confirm offset.",
    "broker_max_offset": "The max offset of the log.",
    "broker_min_offset": "The min offset of the log.",
    "broker_lag_bytes": "The bytes of its master's log that a replica lacks.",
    "broker_lag_seconds": "The time since a replica last lacked no byte.",
    "broker_lease_remaining_seconds": "The time until a master's lease expires.",
    "broker_promised_seconds": "How long every possible successor has promised not to become master.",
    "broker_fenced": "Whether the broker is fenced.",
    "broker_drained": "Whether the broker is drained.",
    "broker_may_lack_acknowledged": "Whether its log may lack acknowledged messages.",
    "broker_acting": "Whether the broker acts for its group's master, which is down.",
    "broker_takes_messages": "Whether the broker would accept a message now.",
    "broker_messages_put_total": "Messages stored since the start, system topics left out.",
    "broker_messages_got_total": "Messages fetched since the start, system topics left out.",
    "broker_bytes_put_total": "Bytes of messages stored since the start.",
    "broker_put_failures_total": "Messages that could not be stored.",
    "broker_transactions_committed_total": "Transactions committed since the start.",
    "broker_transactions_rolled_back_total": "Transactions rolled back since the start.",
    "broker_transactions_discarded_total": (
        "Half messages moved to TRANS_CHECK_MAX_TIME_TOPIC since the start."
    ),
    "broker_transaction_checks_total": "Half messages whose producer was asked since the start.",
    "broker_transaction_checks_unreachable_total": (
        "Checks of half messages whose producer group had no connection, since the start."
    ),
    "broker_half_messages_ahead": "Half messages that the checks have not passed yet, ended ones included.",
    "broker_timer_pending": "Messages in the timer wheel.",
    "broker_timer_read_behind_seconds": "How long ago the oldest undelivered timer messages were due.",
    "broker_timer_offset_behind": "Timer messages that are not in the wheel yet.",
    "broker_timer_taken_total": "Timer messages that entered the wheel since the start.",
    "broker_timer_delivered_total": "Timer messages delivered, or stored again, since the start.",
    "broker_pop_revived_total": "Popped messages handed out again since the start.",
    "broker_pop_pending_checkpoints": (
        "Checkpoints of POPs whose messages may become visible again any moment."
    ),
    "broker_pop_buffered_checkpoints": "Checkpoints of POPs that are in memory only.",
    "broker_escape_waiting": (
        "Messages on their way to other groups, because this broker acts for its group's master."
    ),
    "broker_escaped_total": "Messages that another group has stored since the start.",
    "broker_escape_failures_total": "Failed attempts to send a message to another group, since the start.",
    "broker_quarantined_total": "Records that a service could not handle and set aside, since the start.",
    "broker_read_failures_total": "Reads that the disk could not serve since the start.",
    "broker_scrubbed_bytes_total": "Bytes of old log files that the scrub has read since the start.",
    "broker_damaged_ranges_found_total": "Damaged ranges that the scrub has found since the start.",
    "broker_log_diverged": (
        "1 while a replica follows no master, or its DLedger log differs from its leader's, until a person "
        "decides which log is right."
    ),
    "broker_damaged_ranges_repaired_total": "Damaged ranges repaired from other replicas since the start.",
    "broker_queue_units_repaired_total": (
        "Units of consume queues that differed from the log and were rewritten, since the start."
    ),
    "broker_damaged_bytes": "Bytes of the log that are known to be damaged now.",
    "broker_scrub_age_seconds": "Time since the scrub has read all old files, or since the start.",
    "broker_unauthenticated_requests_total": "Requests rejected because their sender is not known.",
    "broker_unauthorized_requests_total": (
        "Requests that access control rejected because their sender has no permission."
    ),
    "broker_put_rate": "Messages stored per second, over ten seconds.",
    "broker_get_rate": "Messages fetched per second, over ten seconds.",
    "broker_start_time_seconds": "When the broker started, in seconds since 1970.",
    "broker_unflushed_bytes": "Bytes in the log that are not flushed.",
    "broker_dispatch_behind_bytes": "Bytes in the log that are not yet in consume queues.",
    "broker_disk_used_ratio": "The used share of the log's disk, 0 to 1; of several, of the least used.",
    "broker_log_path_used_ratio": (
        "The used share of the disk of each directory of a log that has several; -1 for a missing one."
    ),
    "broker_epochs": "The number of epochs of the log.",
    "broker_dledger_role": "1 for the present role of the broker in its DLedger group.",
    "broker_dledger_has_leader": "Whether the broker knows a leader of its DLedger group.",
    "broker_dledger_committed_index": "The committed index of the DLedger log.",
    "broker_dledger_end_index": "The index of the last entry of the DLedger log.",
    "broker_dledger_behind_entries": "Entries that the leader has committed, and this broker not yet.",
    "broker_dledger_messages_rejected_total": "Messages that no correct peer of the DLedger group sends.",
    "broker_connected_replicas": "Replicas connected to this master.",
    "broker_held_requests": "Requests that wait for a switchover.",
    "broker_relayed_requests_total": "Requests forwarded to the present master.",
    "broker_lease_lapses_total": "How often this master lost the right to write, since the start.",
    "controller_role": "1 for the controller's present role.",
    "controller_term": "The Raft term.",
    "controller_has_leader": "Whether it knows a leader.",
    "controller_leads": "Whether it leads and has applied all that was committed.",
    "controller_members": "The number of controllers that vote.",
    "controller_committed_index": "The committed index of the Raft log.",
    "controller_applied_index": "The applied index of the Raft log.",
    "controller_messages_rejected_total": "Raft messages that no correct controller sends.",
    "group_has_master": "Whether the replica group has a master, as this controller knows.",
    "group_master_epoch": "The group's master epoch.",
    "group_sync_state_set_size": "Members of the group's SyncStateSet.",
    "group_replicas": "Registered replicas.",
    "group_replicas_alive": "Replicas whose heartbeats reach this controller.",
    "group_replicas_in_doubt": "Living replicas whose log may lack acknowledged messages.",
    "group_waits": (
        "Whether the group waits for missing replicas, because the others may lack acknowledged messages."
    ),
    "nameserver_brokers": "Registered brokers.",
    "nameserver_broker_names": "Registered broker names.",
    "nameserver_topics": "Known topics.",
    "tls_certificate_expiry_time_seconds": (
        "When the certificate of the port for clients expires, in seconds since 1970."
    ),
    "tls_files_rejected": (
        "Whether the present certificate files cannot be used, so that the former ones stay in use."
    ),
}
"""Metric, without `PREFIX` → its description."""


ROCKETMQ_PREFIX = "rocketmq_"
ROCKETMQ_HELP: dict[str, str] = {
    "broker_permission": "Broker permission",
    "topic_number": "Active topic number",
    "consumer_group_number": "Active subscription group number",
    "messages_in_total": "Total number of incoming messages",
    "messages_out_total": "Total number of outgoing messages",
    "throughput_in_total": "Total traffic of incoming messages",
    "throughput_out_total": "Total traffic of outgoing messages",
    "producer_connections": "Producer connections",
    "consumer_connections": "Consumer connections",
    "consumer_lag_messages": "Consumer lag messages",
    "consumer_lag_latency_milliseconds": "Consumer lag time",
    "consumer_inflight_messages": "Consumer inflight messages",
    "consumer_queueing_latency_milliseconds": "Consumer queueing time",
    "consumer_ready_messages": "Consumer ready messages",
    "send_to_dlq_messages_total": "Consumer send to DLQ messages",
    "storage_size_bytes": "Broker storage size",
    "storage_flush_behind_bytes": "Broker flush behind bytes",
    "storage_dispatch_behind_bytes": "Broker dispatch behind bytes",
    "storage_message_reserve_time_milliseconds": "Broker message reserve time",
    "half_messages": "Half messages of all topics",
    "commit_messages_total": "Total number of commit messages",
    "rollback_messages_total": "Total number of rollback messages",
    "pop_offset_buffer_size": "Time number of buffered offset",
    "pop_checkpoint_buffer_size": "The number of buffered checkpoint",
    "pop_revive_lag_milliseconds": "The processing lag of revive topic",
    "pop_revive_latency_milliseconds": "The processing latency of revive topic",
    "timer_enqueue_lag": "Timer enqueue messages lag",
    "timer_enqueue_latency_milliseconds": "Timer enqueue latency",
    "timer_dequeue_lag": "Timer dequeue messages lag",
    "timer_dequeue_latency_milliseconds": "Timer dequeue latency",
    "timing_messages": "Current message number in timing",
    "timer_enqueue_total": "Total number of timer enqueue",
    "timer_dequeue_total": "Total number of timer dequeue",
    "timer_message_snapshot": "Timer message distribution snapshot, only count timing messages in 24h.",
    "pop_revive_in_message_total": "Total number of put message to revive topic",
    "pop_revive_out_message_total": "Total number of get message from revive topic",
    "pop_revive_retry_messages_total": "Total number of put message to pop retry topic",
    "processor_watermark": "Request processor watermark",
}
"""RocketMQ's metric, without `ROCKETMQ_PREFIX` → its description."""

ROCKETMQ_HISTOGRAMS: dict[str, str] = {
    "message_size": "Incoming messages size",
    "rpc_latency_milliseconds": "Rpc latency",
    "topic_create_execution_time_milliseconds": "The distribution of create topic time",
    "consumer_group_create_execution_time_milliseconds": "The distribution of create subscription time",
    "finish_message_latency_milliseconds": "Transaction finish latency",
    "delay_message_latency_seconds": "Timer message set latency distribution",
    "pop_buffer_scan_time_consume_milliseconds": "Time consuming of pop buffer scan",
}
"""The same for histograms. Their samples have the ends `_bucket`, `_count` and `_sum`."""


class _Samples(Collector):
    """Samples of one scrape, by metric."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def add(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        """Adds a sample of `epochmq_<name>`; none if the value is unknown (None)."""
        if value is not None:
            self._add(f"{PREFIX}{name}", HELP[name], value, labels)

    def add_rocketmq(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Adds a sample of `rocketmq_<name>`, unless this sidecar does not know the metric."""
        metric, _, part = name.rpartition("_")
        if name in ROCKETMQ_HELP:
            self._add(f"{ROCKETMQ_PREFIX}{name}", ROCKETMQ_HELP[name], value, labels)
        elif part in ("bucket", "count", "sum") and metric in ROCKETMQ_HISTOGRAMS:
            full_name = f"{ROCKETMQ_PREFIX}{metric}"
            family = self._families.get(full_name)
            if family is None:
                family = HistogramMetricFamily(full_name, ROCKETMQ_HISTOGRAMS[metric])
                self._families[full_name] = family
            family.add_sample(f"{full_name}_{part}", dict(labels), float(value))

    def _add(self, full_name: str, description: str, value: float, labels: Mapping[str, str]) -> None:
        family = self._families.get(full_name)
        if family is None:
            kind = CounterMetricFamily if full_name.endswith("_total") else GaugeMetricFamily
            family = self._families[full_name] = kind(full_name, description)
        family.add_sample(full_name, dict(labels), float(value))

    def collect(self) -> Iterable[Metric]:
        """The metrics, in the order of their first samples."""
        return self._families.values()

    def text(self) -> str:
        """The samples in the text format."""
        return generate_latest(self).decode()


def unresponsive(reason: str) -> str:
    """The metrics of a process that does not respond; the reason is in comments."""
    samples = _Samples()
    samples.add("up", 0, {})
    return samples.text() + "".join(f"# {line}\n" for line in reason.splitlines())


def exposition(found: MetricValues) -> str:
    """The metrics of a process that responds."""
    samples, state = _Samples(), found.state
    samples.add("up", 1, {})
    if isinstance(state, BrokerState):
        _broker(samples, state, found.values)
        for sample in found.rocketmq:
            samples.add_rocketmq(sample.name, sample.value, found.rocketmq_labels | sample.labels)
    elif isinstance(state, ControllerState):
        _controller(samples, state)
        _figures(samples, found.values, {"group": state.group, "id": state.id})
    else:
        _nameserver(samples, state)
        _figures(samples, found.values, {"address": state.address})
    return samples.text()


def _broker(samples: _Samples, state: BrokerState, figures: Mapping[str, float]) -> None:
    labels = {"cluster": state.cluster, "broker_name": state.broker_name}
    if state.broker_id is not None:
        labels["broker_id"] = str(state.broker_id)
    lease = state.lease
    values: dict[str, float | None] = {
        "ready": state.ready,
        "broker_master_epoch": state.master_epoch,
        "broker_sync_state_set_size": len(state.sync_state_set),
        "broker_sync_state_set_epoch": state.sync_state_set_epoch,
        "broker_confirm_offset": state.confirm_offset,
        "broker_max_offset": state.max_offset,
        "broker_lag_bytes": state.lag_bytes,
        "broker_lag_seconds": state.lag_ms / 1000 if state.lag_ms is not None else None,
        "broker_lease_remaining_seconds": lease.remaining_ms / 1000 if lease is not None else None,
        "broker_promised_seconds": lease.promised_ms / 1000 if lease is not None else None,
        "broker_fenced": state.fenced,
        "broker_drained": state.drained,
        "broker_may_lack_acknowledged": state.may_lack_acknowledged,
        "broker_takes_messages": state.takes_messages,
        "broker_acting": None if state.group is None else state.group.role == "acting",
    }
    for role in ("master", "replica", "none"):
        samples.add("broker_role", state.role == role, {**labels, "role": role})
    if state.dledger is not None:
        values |= _dledger(samples, state.dledger, labels)
    for name, value in values.items():
        samples.add(name, value, labels)
    _figures(samples, figures, labels)


def _figures(samples: _Samples, figures: Mapping[str, float], labels: Mapping[str, str]) -> None:
    """Adds values by name. A name may end in a colon and the value of the label `kind`."""
    for full_name, value in figures.items():
        name, _, kind = full_name.partition(":")
        if name in HELP:
            samples.add(name, value, {**labels, "kind": kind} if kind else labels)


def _dledger(samples: _Samples, state: DLedgerState, labels: Mapping[str, str]) -> dict[str, float | None]:
    """Adds the role of a peer; returns its other values."""
    for role in ("leader", "follower", "candidate"):
        samples.add("broker_dledger_role", state.role == role, {**labels, "role": role})
    return {
        "broker_dledger_has_leader": state.leader is not None,
        "broker_dledger_committed_index": state.committed_index,
        "broker_dledger_end_index": state.end_index,
        "broker_dledger_behind_entries": state.behind,
        "broker_dledger_messages_rejected_total": state.messages_rejected,
    }


def _controller(samples: _Samples, state: ControllerState) -> None:
    labels = {"group": state.group, "id": state.id}
    for role in ("leader", "follower", "candidate"):
        samples.add("controller_role", state.role == role, {**labels, "role": role})
    values = {
        "ready": state.ready,
        "controller_term": state.term,
        "controller_has_leader": state.leader is not None,
        "controller_leads": state.leads,
        "controller_members": len(state.peers),
        "controller_committed_index": state.committed_index,
        "controller_applied_index": state.applied_index,
        "controller_messages_rejected_total": state.messages_rejected,
    }
    for name, value in values.items():
        samples.add(name, value, labels)
    for group in state.groups:
        of = {"cluster": group.cluster, "broker_name": group.broker_name}
        samples.add("group_has_master", group.master_broker_id is not None, of)
        samples.add("group_master_epoch", group.master_epoch, of)
        samples.add("group_sync_state_set_size", len(group.sync_state_set), of)
        samples.add("group_replicas", len(group.replicas), of)
        samples.add("group_replicas_alive", sum(replica.alive for replica in group.replicas), of)
        samples.add("group_replicas_in_doubt", sum(replica.in_doubt for replica in group.replicas), of)
        samples.add("group_waits", group.waits is not None, of)
    if state.nameserver is not None:
        part = state.nameserver
        _routes(samples, part.address, part.brokers, part.broker_names, part.topics)


def _nameserver(samples: _Samples, state: NameserverState) -> None:
    samples.add("ready", state.ready, {"address": state.address})
    _routes(samples, state.address, state.brokers, state.broker_names, state.topics)


def _routes(samples: _Samples, address: str, brokers: int, broker_names: int, topics: int) -> None:
    labels = {"address": address}
    samples.add("nameserver_brokers", brokers, labels)
    samples.add("nameserver_broker_names", broker_names, labels)
    samples.add("nameserver_topics", topics, labels)
