# pure: a state as Prometheus text
"""The metrics of one process, in the text format of Prometheus (0.0.4)."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_protocol.admin_api.results import BrokerState, ControllerState, MetricValues, NameserverState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

HELP: dict[str, str] = {
    "up": "Whether the process answers at its local socket.",
    "ready": "Whether the process is ready.",
    "broker_role": "1 for the role that the broker has.",
    "broker_master_epoch": "The epoch of its latest role.",
    "broker_sync_state_set_size": "Members of the SyncStateSet, as this broker knows it.",
    "broker_sync_state_set_epoch": "The epoch of the SyncStateSet.",
    "broker_confirm_offset": "Up to where the log is confirmed.",
    "broker_max_offset": "Where the log ends.",
    "broker_min_offset": "Where the log begins.",
    "broker_lag_bytes": "What a replica lacks of its master's log.",
    "broker_lag_seconds": "How long ago a replica lacked nothing.",
    "broker_lease_remaining_seconds": "How long a master may still write.",
    "broker_fenced": "Whether it was fenced.",
    "broker_drained": "Whether it was drained.",
    "broker_may_lack_acknowledged": "Whether its log may lack acknowledged messages.",
    "broker_takes_messages": "Whether a message would be taken now.",
    "broker_messages_put_total": "Messages stored since the start, system topics left out.",
    "broker_messages_got_total": "Messages fetched since the start, system topics left out.",
    "broker_bytes_put_total": "Bytes of messages stored since the start.",
    "broker_put_failures_total": "Messages that could not be stored.",
    "broker_read_failures_total": "Reads that the disk could not serve since the start.",
    "broker_put_rate": "Messages stored a second, over ten seconds.",
    "broker_get_rate": "Messages fetched a second, over ten seconds.",
    "broker_start_time_seconds": "When the broker started, in seconds of the epoch.",
    "broker_unflushed_bytes": "What is in the log and not yet synced.",
    "broker_dispatch_behind_bytes": "What is in the log and not yet in queues.",
    "broker_disk_used_ratio": "How full the disk of the log is, 0 to 1.",
    "broker_epochs": "Epochs of the log.",
    "broker_connected_replicas": "Replicas connected to this master.",
    "broker_held_requests": "Requests that wait for a switch of the master.",
    "broker_relayed_requests_total": "Requests passed on to the present master.",
    "controller_role": "1 for the role that the controller has.",
    "controller_term": "The Raft term.",
    "controller_has_leader": "Whether it knows a leader.",
    "controller_leads": "Whether it leads and has applied all that was committed.",
    "controller_members": "Controllers that vote.",
    "controller_committed_index": "How far it knows the log to be committed.",
    "controller_applied_index": "How far it has applied the log.",
    "group_has_master": "Whether the replica group has a master, as this controller knows.",
    "group_master_epoch": "The group's master epoch.",
    "group_sync_state_set_size": "Members of the group's SyncStateSet.",
    "group_replicas": "Replicas that are registered.",
    "group_replicas_alive": "Replicas whose heartbeats reach this controller.",
    "group_replicas_in_doubt": "Living replicas that may lack acknowledged messages.",
    "group_waits": "Whether the group waits for missing replicas, because the living may lack messages.",
    "nameserver_brokers": "Brokers that are registered.",
    "nameserver_broker_names": "Broker names that are registered.",
    "nameserver_topics": "Topics that are known.",
}
"""Every metric, without `epochmq_`."""


class _Text:
    """Samples, gathered by metric."""

    def __init__(self) -> None:
        self._samples: dict[str, list[str]] = {}

    def add(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        """None: there is nothing to say."""
        if value is None:
            return
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        braces = f"{{{inner}}}" if inner else ""
        shown = repr(float(value)) if isinstance(value, float) else str(int(value))
        self._samples.setdefault(name, []).append(f"epochmq_{name}{braces} {shown}")

    def text(self) -> str:
        """All of them."""
        lines = []
        for name, samples in self._samples.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP epochmq_{name} {HELP[name]}", f"# TYPE epochmq_{name} {kind}", *samples]
        return "".join(line + "\n" for line in lines)


def silent(why: str) -> str:
    """The metrics of a process that does not answer."""
    text = _Text()
    text.add("up", 0, {})
    return text.text() + "".join(f"# {line}\n" for line in why.splitlines())


def exposition(found: MetricValues) -> str:
    """The metrics of a process that answers."""
    text, state = _Text(), found.state
    text.add("up", 1, {})
    if isinstance(state, BrokerState):
        _broker(text, state, found.values)
    elif isinstance(state, ControllerState):
        _controller(text, state)
    else:
        _nameserver(text, state)
    return text.text()


def _broker(text: _Text, state: BrokerState, figures: Mapping[str, float]) -> None:
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
        "broker_fenced": state.fenced,
        "broker_drained": state.drained,
        "broker_may_lack_acknowledged": state.may_lack_acknowledged,
        "broker_takes_messages": state.takes_messages,
        **{name: value for name, value in figures.items() if name in HELP},
    }
    for role in ("master", "replica", "none"):
        text.add("broker_role", state.role == role, {**labels, "role": role})
    for name, value in values.items():
        text.add(name, value, labels)


def _controller(text: _Text, state: ControllerState) -> None:
    labels = {"group": state.group, "id": state.id}
    for role in ("leader", "follower", "candidate"):
        text.add("controller_role", state.role == role, {**labels, "role": role})
    values = {
        "ready": state.ready,
        "controller_term": state.term,
        "controller_has_leader": state.leader is not None,
        "controller_leads": state.leads,
        "controller_members": len(state.peers),
        "controller_committed_index": state.committed_index,
        "controller_applied_index": state.applied_index,
    }
    for name, value in values.items():
        text.add(name, value, labels)
    for group in state.groups:
        of = {"cluster": group.cluster, "broker_name": group.broker_name}
        text.add("group_has_master", group.master_broker_id is not None, of)
        text.add("group_master_epoch", group.master_epoch, of)
        text.add("group_sync_state_set_size", len(group.sync_state_set), of)
        text.add("group_replicas", len(group.replicas), of)
        text.add("group_replicas_alive", sum(replica.alive for replica in group.replicas), of)
        text.add("group_replicas_in_doubt", sum(replica.in_doubt for replica in group.replicas), of)
        text.add("group_waits", group.waits is not None, of)
    if state.nameserver is not None:
        part = state.nameserver
        _routes(text, part.address, part.brokers, part.broker_names, part.topics)


def _nameserver(text: _Text, state: NameserverState) -> None:
    text.add("ready", state.ready, {"address": state.address})
    _routes(text, state.address, state.brokers, state.broker_names, state.topics)


def _routes(text: _Text, address: str, brokers: int, broker_names: int, topics: int) -> None:
    labels = {"address": address}
    text.add("nameserver_brokers", brokers, labels)
    text.add("nameserver_broker_names", broker_names, labels)
    text.add("nameserver_topics", topics, labels)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
