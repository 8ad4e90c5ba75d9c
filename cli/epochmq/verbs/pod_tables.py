"""Formats pods, controllers and replicas as tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from epochmq_operator.local.readiness import Readiness
from epochmq_operator.local.state_directory import PodRecord
from epochmq_operator.local.status import ObservedLocalPod
from epochmq_operator.pod_rendering import (
    BROKER_PORT,
    CONTROLLER_PORT,
    MASTER_BROKER_ID,
    NAMESERVER_PORT,
)
from epochmq_operator.pods import Component
from epochmq_operator.resources import GroupMode, MemberMode
from epochmq_operator.status_model import (
    BrokerGroupStatus,
    ControllerGroupStatus,
    ControllerStatus,
    GroupPhase,
    PodPhase,
    PodStatus,
    ReplicaStatus,
    StatusReport,
)

REMOTING_PORTS = {
    Component.NAMESERVER: NAMESERVER_PORT,
    Component.CONTROLLER: CONTROLLER_PORT,
    Component.BROKER: BROKER_PORT,
}
REPLICA_PLACEHOLDER = "GROUP/REPLICA"
"""What brokers write for their own name in a command (`epochmq_broker.config.refusals`)."""
WIDTH_WITH_STATISTICS = 120
WIDTH_WITH_AGE = 92
WIDTH_WITHOUT_TERMINAL = 160
"""The width of a table when the output is no terminal: programs read it, or people in a pager."""
STYLES = {
    PodPhase.READY: "green",
    PodPhase.STARTING: "yellow",
    PodPhase.WAITING: "yellow",
    PodPhase.UNREADY: "red",
    PodPhase.BACK_OFF: "red",
    PodPhase.STOPPING: "yellow",
    PodPhase.STOPPED: "dim",
}


@dataclass(frozen=True, slots=True)
class PodRow:
    """A row of the pod table. `since_ms`: milliseconds since 1970, 0 while unknown. `statistics` are those of
    a broker's runtime information (RocketMQ's runtimeInfo), empty without any."""

    pod: str
    component: Component
    address: str
    pid: int | None
    phase: PodPhase
    reason: str
    restarts: int
    since_ms: int
    role: str
    statistics: Mapping[str, str]


def row_of(observed: ObservedLocalPod) -> PodRow:
    """The row of a pod on this machine, for `epochmq status`."""
    record, pod = observed.record, observed.pod
    process = record.process if record and observed.alive else None
    return PodRow(
        pod.name,
        pod.component,
        pod.port("remoting"),
        process.pid if process else None,
        observed.phase,
        _short_reason(observed),
        record.restarts if record else 0,
        record.since_ms if record else 0,
        _probed_role(pod.component, pod.port("remoting"), observed.readiness),
        observed.readiness.runtime_info,
    )


def _short_reason(observed: ObservedLocalPod) -> str:
    """The reason for the table: of a broker that refuses messages only its state, as `print_refusals` prints
    the rest."""
    if observed.reason and observed.reason == observed.readiness.refuses:
        return observed.readiness.runtime_info.get("refusalState", observed.reason)
    return observed.reason


def refusals_of(pods: Iterable[ObservedLocalPod]) -> list[str]:
    """A line for each broker that refuses messages. The broker does not know its group and pod, so its words
    have a placeholder for the two, which is filled in here."""
    return [
        f"{o.pod.name}: {o.readiness.refuses.replace(REPLICA_PLACEHOLDER, f'{o.pod.group}/{o.pod.name}')}"
        for o in pods
        if o.alive and o.readiness.refuses
    ]


def print_refusals(console: Console, pods: Iterable[ObservedLocalPod]) -> None:
    """Prints a line for each broker that refuses messages: why, and the next command. They are the words with
    which the broker rejects a send."""
    lines = refusals_of(pods)
    for line in ["", *lines] if lines else []:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def row_of_status(pod: PodStatus, component: Component) -> PodRow:
    """The row of a pod on a cluster, for `epochmq status`."""
    role = _reported_role(pod, component)
    return PodRow(pod.pod, component, pod.address, pod.pid, pod.phase, pod.reason, pod.restarts, 0, role, {})


def print_groups(console: Console, report: StatusReport) -> None:
    """Prints the tables of controllers and groups that have rows, which groups hibernate, and which take
    members without a proof."""
    tables = (
        controllers_table(report.controller_groups),
        replica_groups_table(report.controller_groups),
        broker_groups_table(report.broker_groups),
        master_slave_table(report.broker_groups),
        dledger_table(report.broker_groups),
    )
    for table in tables:
        if table.row_count:
            console.print("", table)
    for group in report.broker_groups:
        if group.phase is GroupPhase.HIBERNATED:
            console.print(f"{group.name}: {group.phase}: its replicas are stopped, their volumes stay")
    modes = {one.name: one.member_authentication for one in report.controller_groups}
    modes |= {one.name: one.member_authentication for one in report.broker_groups}
    for name, mode in modes.items():
        if mode not in (None, MemberMode.REQUIRE):
            words = f"{name}: members without a proof are accepted (memberAuthentication: {mode})"
            console.print(words, soft_wrap=True, markup=False, highlight=False)


def remoting_address(record: PodRecord) -> str:
    """The host:port of a pod for clients."""
    return f"{record.address}:{REMOTING_PORTS[record.component]}"


def row_of_record(record: PodRecord, readiness: Readiness) -> PodRow:
    """The row of a pod record, for the live table of `epochmq up`."""
    process = record.process
    return PodRow(
        record.pod,
        record.component,
        remoting_address(record),
        process.pid if process else None,
        record.phase,
        record.reason,
        record.restarts,
        record.since_ms,
        _probed_role(record.component, remoting_address(record), readiness),
        readiness.runtime_info,
    )


def pod_table(rows: Sequence[PodRow], width: int, now_ms: int | None = None) -> Table:
    """The table of pods, for a terminal of `width` columns. If there is room it shows the broker's own
    statistics: rates of the last ten seconds, and totals of today."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    has_statistics, has_age = width >= WIDTH_WITH_STATISTICS, width >= WIDTH_WITH_AGE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("POD", "ROLE", "ADDRESS"):
        table.add_column(title, no_wrap=True)
    table.add_column("PID", justify="right", no_wrap=True)
    table.add_column("STATE", overflow="fold", min_width=8)
    ages, statistics = ("FOR",) if has_age else (), ("IN/S", "OUT/S", "IN", "OUT") if has_statistics else ()
    for title in (*ages, "RESTARTS", *statistics):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        phase = Text(row.phase, style=STYLES[row.phase])
        if row.reason and row.phase is not PodPhase.READY:
            phase.append(f" ({row.reason})", style="dim")
        table.add_row(
            row.pod,
            row.role,
            row.address,
            str(row.pid) if row.pid else "-",
            phase,
            *([duration(now_ms - row.since_ms) if row.since_ms else "-"] if has_age else []),
            str(row.restarts),
            *(_statistics(row.statistics) if has_statistics else ()),
        )
    return table


def controllers_table(quorums: Sequence[ControllerGroupStatus]) -> Table:
    """The table of controller groups."""
    table = _plain_table("CONTROLLERS", "LEADER", "TERM", "COMMITTED", "GROUPS")
    for quorum in quorums:
        count = None if quorum.replica_groups is None else len(quorum.replica_groups)
        statistics = (quorum.term, quorum.committed_index, count)
        table.add_row(
            quorum.name, quorum.leader or "none", *("-" if n is None else str(n) for n in statistics)
        )
    return table


def replica_groups_table(quorums: Sequence[ControllerGroupStatus]) -> Table:
    """The table of replica groups under controllers."""
    table = _plain_table("GROUP", "MASTER", "ADDRESS", "EPOCH", "IN SYNC", "NOT IN SYNC", "DEAD")
    for group in (group for quorum in quorums for group in quorum.replica_groups or ()):
        outside = [r.broker_id for r in group.replicas if not r.in_sync]
        dead = [r.broker_id for r in group.replicas if not r.alive]
        table.add_row(
            group.broker_name,
            "none" if group.master_id is None else str(group.master_id),
            group.master_address or "-",
            str(group.master_epoch),
            *(" ".join(map(str, ids)) or "-" for ids in (group.sync_state_set, outside, dead)),
        )
    return table


def _plain_table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _statistics(statistics: Mapping[str, str]) -> list[str]:
    rates = [_rate(statistics.get(key)) for key in ("putTps", "getTransferredTps")]
    return rates + [_today(statistics, kind) for kind in ("Put", "Get")]


def broker_groups_table(groups: Sequence[BrokerGroupStatus]) -> Table:
    """The table of replicas of groups under controllers."""
    return _log_table(
        (group for group in groups if group.controller_group is not None),
        ("REPLICA", "ID", "ROLE", "EPOCH", "IN SYNC"),
        ("END OF LOG", "CONFIRMED", "BEHIND"),
    )


def dledger_table(groups: Sequence[BrokerGroupStatus]) -> Table:
    """The table of replicas of groups in the mode DLedger."""
    return _log_table(
        (group for group in groups if group.mode is GroupMode.DLEDGER),
        ("REPLICA", "ID", "ROLE", "TERM", "READY"),
        ("END OF LOG", "COMMITTED", "BEHIND"),
    )


def _log_table(groups: Iterable[BrokerGroupStatus], words: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table of replicas and the ends of their logs. BEHIND: the bytes of the master's log that the replica
    lacks."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in words:
        table.add_column(title, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    for group in groups:
        ends = [r.max_offset for r in group.replicas if r.role == "master" and r.max_offset is not None]
        for replica in group.replicas:
            end = replica.max_offset
            behind = max(ends[0] - end, 0) if ends and end is not None else None
            table.add_row(
                replica.pod,
                _or_dash(replica.broker_id),
                replica.role or "-",
                _or_dash(replica.epoch),
                _in_sync(replica),
                *(_or_dash(n) for n in (end, replica.confirm_offset, behind)),
            )
    return table


def master_slave_table(groups: Sequence[BrokerGroupStatus], now_ms: int | None = None) -> Table:
    """The table of replicas of groups in the mode MasterSlave: which one acts for the master and for how
    long, the messages that other groups took from it, and those that wait to leave."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("REPLICA", "ID", "ROLE"):
        table.add_column(title, no_wrap=True)
    for title in ("ACTING FOR", "ESCAPED", "WAITING", "END OF LOG"):
        table.add_column(title, justify="right", no_wrap=True)
    for group in groups:
        if group.mode is not GroupMode.MASTER_SLAVE:
            continue
        acting = group.acting_master
        for replica in group.replicas:
            since_ms = acting.since_ms if acting is not None and acting.pod == replica.pod else None
            table.add_row(
                replica.pod,
                _or_dash(replica.broker_id),
                replica.role or "-",
                "-" if since_ms is None else duration(now_ms - since_ms),
                *(_or_dash(n) for n in (replica.escaped, replica.escape_waiting, replica.max_offset)),
            )
    return table


def _in_sync(replica: ReplicaStatus) -> str:
    control_states = [word for word in ("fenced", "drained") if getattr(replica, word)]
    return ("yes" if replica.in_sync else "no") + (
        f" ({', '.join(control_states)})" if control_states else ""
    )


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _reported_role(pod: PodStatus, component: Component) -> str:
    """The role of a pod as its status has it; its component while the role is unknown."""
    if not isinstance(pod, ControllerStatus | ReplicaStatus) or pod.role is None:
        return str(component)
    if isinstance(pod, ReplicaStatus) and pod.dledger_address is not None and pod.epoch is not None:
        return f"{pod.role} (term {pod.epoch})"
    return pod.role


def _probed_role(component: Component, address: str, readiness: Readiness) -> str:
    """The role of a pod as a probe of it says."""
    if readiness.controller is not None:
        return readiness.controller.role
    if role := readiness.dledger_role:
        term = readiness.runtime_info.get("dledgerTerm")
        return f"{role} (term {term})" if term else role
    if role := readiness.runtime_info.get("groupRole"):
        return role
    if component is not Component.BROKER or readiness.broker_id is None:
        return str(component)
    if readiness.group is not None:
        return "master" if readiness.group.master_address == address else "slave"
    return "master" if readiness.broker_id == MASTER_BROKER_ID else "slave"


def _rate(text: str | None) -> str:
    """The first of RocketMQ's three rates, which is that of the last ten seconds."""
    try:
        return f"{float((text or '').split()[0]):.0f}"
    except (IndexError, ValueError):
        return ""


def _today(statistics: Mapping[str, str], kind: str) -> str:
    try:
        now, morning = (int(statistics[f"msg{kind}TotalToday{when}"]) for when in ("Now", "Morning"))
    except (KeyError, ValueError):
        return ""
    return str(now - morning)


def duration(ms: int) -> str:
    """A short duration: 42s, 7m, 3h05m, 2d04h."""
    seconds = max(ms, 0) // 1000
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d{hours % 24:02d}h"
    if hours:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{minutes}m" if minutes else f"{seconds}s"
