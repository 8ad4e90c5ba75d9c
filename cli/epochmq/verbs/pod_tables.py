"""Pods as a table for people."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from epochmq_operator.local.readiness import Readiness
from epochmq_operator.local.state_directory import PodPhase, PodRecord
from epochmq_operator.local.status import (
    BrokerGroupStatus,
    ControllerGroupStatus,
    ObservedLocalPod,
    PodStatus,
    ReplicaStatus,
    StatusReport,
)
from epochmq_operator.pod_rendering import (
    BROKER_PORT,
    CONTROLLER_PORT,
    MASTER_BROKER_ID,
    NAMESERVER_PORT,
    Component,
)
from epochmq_operator.resources import Resources

REMOTING_PORTS = {
    Component.NAMESERVER: NAMESERVER_PORT,
    Component.CONTROLLER: CONTROLLER_PORT,
    Component.BROKER: BROKER_PORT,
}
STATE_DEFAULT = Path(".epochmq")
WIDTH_WITH_FIGURES = 120
WIDTH_WITH_AGE = 92
WIDTH_ELSEWHERE = 160
"""Of a table that does not go to a terminal: it is read by programs, or by people with less."""
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
    """One pod."""

    pod: str
    component: Component
    address: str
    pid: int | None
    phase: PodPhase
    reason: str
    restarts: int
    since_ms: int
    readiness: Readiness


def row_of(observed: ObservedLocalPod) -> PodRow:
    """A row of `epochmq status`."""
    record, pod = observed.record, observed.pod
    process = record.process if record and observed.alive else None
    return PodRow(
        pod.name,
        pod.component,
        pod.port("remoting"),
        process.pid if process else None,
        observed.phase,
        (record.reason if record and record.reason else observed.readiness.reason),
        record.restarts if record else 0,
        record.since_ms if record else 0,
        observed.readiness,
    )


def row_of_status(pod: PodStatus, component: Component, readiness: Readiness) -> PodRow:
    """A row of `epochmq status` on a cluster."""
    return PodRow(pod.pod, component, pod.address, pod.pid, pod.phase, pod.reason, pod.restarts, 0, readiness)


def print_groups(console: Console, report: StatusReport) -> None:
    """The tables of quorums and groups, those that have rows."""
    tables = (
        controllers_table(report.controller_groups),
        replica_groups_table(report.controller_groups),
        broker_groups_table(report.broker_groups),
    )
    for made in tables:
        if made.row_count:
            console.print("", made)


def remoting_address(record: PodRecord) -> str:
    """host:port of a pod's clients' port."""
    return f"{record.address}:{REMOTING_PORTS[record.component]}"


def row_of_record(record: PodRecord, readiness: Readiness) -> PodRow:
    """A row of the live table."""
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
        readiness,
    )


def table(rows: Sequence[PodRow], width: int, now_ms: int | None = None) -> Table:
    """The table, for so many columns. The rates and totals, shown where there is room for them, are the
    broker's own: of the last ten seconds, and of today."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    has_figures, has_age = width >= WIDTH_WITH_FIGURES, width >= WIDTH_WITH_AGE
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("POD", "ROLE", "ADDRESS"):
        made.add_column(title, no_wrap=True)
    made.add_column("PID", justify="right", no_wrap=True)
    made.add_column("STATE", overflow="fold", min_width=8)
    ages, figures = ("FOR",) if has_age else (), ("IN/S", "OUT/S", "IN", "OUT") if has_figures else ()
    for title in (*ages, "RESTARTS", *figures):
        made.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        phase = Text(row.phase, style=STYLES[row.phase])
        if row.reason and row.phase is not PodPhase.READY:
            phase.append(f" ({row.reason})", style="dim")
        made.add_row(
            row.pod,
            _role(row),
            row.address,
            str(row.pid) if row.pid else "-",
            phase,
            *([duration(now_ms - row.since_ms) if row.since_ms else "-"] if has_age else []),
            str(row.restarts),
            *(_figures(row.readiness.runtime_info) if has_figures else ()),
        )
    return made


def controllers_table(quorums: Sequence[ControllerGroupStatus]) -> Table:
    """A row for each quorum of controllers."""
    made = _plain_table("CONTROLLERS", "LEADER", "TERM", "COMMITTED", "GROUPS")
    for quorum in quorums:
        count = None if quorum.replica_groups is None else len(quorum.replica_groups)
        figures = (quorum.term, quorum.committed_index, count)
        made.add_row(quorum.name, quorum.leader or "none", *("-" if n is None else str(n) for n in figures))
    return made


def replica_groups_table(quorums: Sequence[ControllerGroupStatus]) -> Table:
    """A row for each replica group that controllers keep."""
    made = _plain_table("GROUP", "MASTER", "ADDRESS", "EPOCH", "IN SYNC", "NOT IN SYNC", "DEAD")
    for group in (group for quorum in quorums for group in quorum.replica_groups or ()):
        outside = [r.broker_id for r in group.replicas if not r.in_sync]
        dead = [r.broker_id for r in group.replicas if not r.alive]
        made.add_row(
            group.broker_name,
            "none" if group.master_id is None else str(group.master_id),
            group.master_address or "-",
            str(group.master_epoch),
            *(" ".join(map(str, ids)) or "-" for ids in (group.sync_state_set, outside, dead)),
        )
    return made


def _plain_table(*titles: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, overflow="fold")
    return made


def _figures(figures: dict[str, str]) -> list[str]:
    rates = [_rate(figures.get(key)) for key in ("putTps", "getTransferredTps")]
    return rates + [_since_morning(figures, kind) for kind in ("Put", "Get")]


def broker_groups_table(groups: Sequence[BrokerGroupStatus]) -> Table:
    """A row for each replica of the groups that controllers keep."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("REPLICA", "ID", "ROLE", "EPOCH", "IN SYNC"):
        made.add_column(title, no_wrap=True)
    for title in ("END OF LOG", "CONFIRMED", "BEHIND"):
        made.add_column(title, justify="right", no_wrap=True)
    for group in (group for group in groups if group.controller_group is not None):
        ends = [r.max_offset for r in group.replicas if r.role == "master" and r.max_offset is not None]
        for replica in group.replicas:
            end = replica.max_offset
            behind = max(ends[0] - end, 0) if ends and end is not None else None
            made.add_row(
                replica.pod,
                _or_dash(replica.broker_id),
                replica.role or "-",
                _or_dash(replica.epoch),
                _in_sync(replica),
                *(_or_dash(n) for n in (end, replica.confirm_offset, behind)),
            )
    return made


def _in_sync(replica: ReplicaStatus) -> str:
    asked = [word for word in ("fenced", "drained") if getattr(replica, word)]
    return ("yes" if replica.in_sync else "no") + (f" ({', '.join(asked)})" if asked else "")


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _role(row: PodRow) -> str:
    readiness = row.readiness
    if readiness.controller is not None:
        return readiness.controller.role
    if row.component is not Component.BROKER or readiness.broker_id is None:
        return str(row.component)
    if readiness.group is not None:
        return "master" if readiness.group.master_address == row.address else "slave"
    return "master" if readiness.broker_id == MASTER_BROKER_ID else "slave"


def _rate(text: str | None) -> str:
    """The first of RocketMQ's three rates: that of the last ten seconds."""
    try:
        return f"{float((text or '').split()[0]):.0f}"
    except (IndexError, ValueError):
        return ""


def _since_morning(figures: dict[str, str], kind: str) -> str:
    try:
        now, morning = (int(figures[f"msg{kind}TotalToday{when}"]) for when in ("Now", "Morning"))
    except (KeyError, ValueError):
        return ""
    return str(now - morning)


def duration(ms: int) -> str:
    """Like 42s, 7m, 3h05m, 2d04h."""
    seconds = max(ms, 0) // 1000
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d{hours % 24:02d}h"
    if hours:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{minutes}m" if minutes else f"{seconds}s"


def nameservers_in(records: Sequence[PodRecord], resources: Resources) -> list[str]:
    """The addresses of the nameservers that the brokers among these resources register with."""
    groups = {group.name for group in resources.broker_groups}
    found = (address for record in records if record.group in groups for address in record.nameservers)
    return list(dict.fromkeys(found))


def next_steps(state: Path, resources: Resources, nameservers: Sequence[str], *, detached: bool) -> str:
    """What to type next, for someone who sees this for the first time."""
    options = "" if state == STATE_DEFAULT else f" --state {shlex.quote(str(state))}"
    command = typed_command()
    stop = f"Stop with: {command} down{options}" if detached else "Ctrl-C stops it; the data stays."
    if not resources.broker_groups:
        where = ":" if detached else " in a second terminal:"
        return f"Now type{where}\n  {command} status{options}\n{stop}"
    name = resources.broker_groups[0].name
    if len(resources.broker_groups) > 1:
        options += f" --broker-group {name}"
    lines = [
        "Now type" + (":" if detached else " in a second terminal:"),
        f"  {command} produce {name} 'hello'{options}",
        f"  {command} consume {name}{options}",
    ]
    if command != "epochmq":
        lines.append(
            f"or, after `source {shlex.quote(str(Path(command).parent / 'activate'))}`: "
            f"epochmq produce {name} 'hello'{options}"
        )
    lines.append(f"RocketMQ's own clients take namesrvAddr {';'.join(nameservers)}.")
    lines.append(stop)
    return "\n".join(lines)


def typed_command() -> str:
    """How this command can be typed again: by its name if the shell finds it so, else by the path used
    now."""
    used = Path(sys.argv[0])
    if used.name == "__main__.py":
        used = Path(sys.executable).with_name("epochmq")
    found = shutil.which("epochmq")
    if found is not None and Path(found).resolve() == used.resolve():
        return "epochmq"
    here = Path.cwd()
    return str(used.relative_to(here)) if used.is_absolute() and used.is_relative_to(here) else str(used)
