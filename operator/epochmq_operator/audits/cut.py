"""Determines the cut of an audit: the offset up to which each replica's log is compared, and the epoch files
at that time.

The master's confirm offset is read first. Every replica of its SyncStateSet has the log up to there, and
no broker overwrites that part; so each replica may be read later, at its own time. The epoch files are read
after it, so that they hold every epoch below the cut. A replica outside the set (or in a set that nothing
waits for, without `allAckInSyncStateSet`) is compared up to its own end, as far as its epoch file agrees with
the master's, as in a handshake (RIP-44). The rest it will truncate, if it has not done so. Its end offset is
read after its epoch file was copied: if that file has the newest epoch, the log has been truncated by then.

A group in the mode MasterSlave has no epochs. Its master confirms its whole log, and every slave is compared
up to its own end. While the master is down, the end of the slave that acts for it takes the place of the
confirm offset.

In the mode DLedger what is committed takes the place of what is confirmed: no peer truncates it. Each peer is
compared up to what it has committed itself, because what follows in its log may be of another term than the
committed entries.
"""

# pure: data in, data out.

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochmq_operator.plans.reported_states import ReportedBrokerState, ReportedControllerState, ReportedState
from epochmq_protocol.epoch_entries import OFFSET_MAX, EpochEntry, parse_epoch_file, truncation_point
from epochmq_protocol.errors import EpochMQError

EPOCH_FILE_BYTES_MAX = 64 * 1024
"""The limit for the copy of an epoch file: some 3,000 elections. A longer file is only read from the
volume."""


@dataclass(frozen=True, slots=True)
class ReplicaCutPoint:
    """The cut of one replica. `end` is an offset of the log."""

    name: str
    end: int
    epochs: bytes | None

    def document(self) -> dict[str, Any]:
        """The value for the job."""
        copy = None if self.epochs is None else b64encode(self.epochs).decode()
        return {"name": self.name, "end": self.end, "epochs": copy}


@dataclass(frozen=True, slots=True)
class GroupCut:
    """The cut of a group. `view` is the group as its controllers know it, in the form of `epochmq status`;
    None without a leader."""

    master: str
    epoch: int
    confirmed: int
    replicas: tuple[ReplicaCutPoint, ...]
    view: Mapping[str, Any] | None


def cut_of(
    pods: tuple[str, ...],
    states: Mapping[str, ReportedState],
    copies: Mapping[str, bytes],
    later: Mapping[str, ReportedState],
    broker_name: str,
) -> GroupCut | str:
    """Determines the cut, or says why there is none. `states` were reported before the `copies` of epoch
    files were made, `later` ones after that."""
    reported = {pod: state for pod in pods if isinstance(state := states.get(pod), ReportedBrokerState)}
    masters = [(state.master_epoch or 0, pod) for pod, state in reported.items() if state.role == "master"]
    masters = masters or [(0, pod) for pod, state in reported.items() if _acts(state)]
    if not reported:
        return "no replica responds"
    if not masters:
        return "no replica reports that it is the master"
    epoch, master = max(masters)
    leading = reported[master]
    confirmed = leading.max_offset if _acts(leading) else leading.confirm_offset
    if confirmed is None:
        return f"{master} does not report its confirm offset"
    members = set(leading.sync_state_set)
    have_it_all = members if leading.confirmed_by_all else {leading.broker_id}
    replicas = []
    for pod in pods:
        state, copy = reported.get(pod), copies.get(pod)
        end = confirmed
        if state is not None and state.broker_id not in have_it_all:
            again = later.get(pod)
            now = again.max_offset if isinstance(again, ReportedBrokerState) else None
            end = min(end, _common_end(copy, copies.get(master), now))
        if copy is not None and len(copy) > EPOCH_FILE_BYTES_MAX:
            copy = None
        replicas.append(ReplicaCutPoint(pod, end, copy))
    return GroupCut(master, epoch, confirmed, tuple(replicas), _view(states, broker_name, members))


def reported_dledger_cut(
    pods: tuple[str, ...], states: Mapping[str, ReportedState], later: Mapping[str, ReportedState]
) -> GroupCut | str:
    """Determines the cut of a group in the mode DLedger by the reports of its replicas, or says why there is
    none. `later` states were reported after the `states`. Every replica has to respond."""
    reported = {pod: state for pod in pods if isinstance(state := states.get(pod), ReportedBrokerState)}
    masters = [(state.master_epoch or 0, pod) for pod, state in reported.items() if state.role == "master"]
    term, master = max(masters, default=(None, None))
    committed = reported[master].confirm_offset if master is not None else None
    ends = {
        pod: state.confirm_offset if isinstance(state := later.get(pod), ReportedBrokerState) else None
        for pod in pods
    }
    return dledger_cut_of(master, term, committed, ends)


def dledger_cut_of(
    master: str | None, term: int | None, committed: int | None, later: Mapping[str, int | None]
) -> GroupCut | str:
    """Determines the cut of a group in the mode DLedger, or says why there is none. `committed`: the position
    up to which the master had committed its log; `later`: those of all replicas, read afterwards, None if one
    does not respond."""
    if master is None or committed is None:
        return "no replica reports that it is the master"
    ends = {pod: end for pod, end in later.items() if end is not None}
    silent = [pod for pod in later if pod not in ends]
    if silent:
        return f"{silent[0]} does not report what it has committed"
    replicas = tuple(ReplicaCutPoint(pod, min(committed, end), None) for pod, end in ends.items())
    return GroupCut(master, term or 0, committed, replicas, None)


def _acts(state: ReportedBrokerState) -> bool:
    """Whether a slave acts for its group's master, which is down."""
    return state.group is not None and state.group.role == "acting"


def _common_end(copy: bytes | None, leading: bytes | None, end: int | None) -> int:
    """The offset up to which a log that ends at `end` equals the leading one, by copies of their epoch files;
    all of it if they hold nothing. If `end` is unknown, the log counts up to the start of its last epoch."""
    ours, theirs = _entries(copy), _entries(leading)
    known = end if end is not None else ours[-1].start_offset if ours else 0
    common = truncation_point(ours, known, theirs, OFFSET_MAX)
    return known if common is None else min(common, known)


def _entries(copy: bytes | None) -> list[EpochEntry]:
    try:
        return parse_epoch_file((copy or b"").decode())
    except (EpochMQError, ValueError):
        return []  # the audit reports it


def _view(states: Mapping[str, ReportedState], broker_name: str, members: set[int]) -> dict[str, Any] | None:
    """The group as the leading controller knows it. Of the SyncStateSet only the members on which it and the
    master agree: a change may be in flight. The master is left out: its epoch may have no confirmed message
    yet, and then has no entry below the cut."""
    leading = [
        (state.term or 0, pod, state)
        for pod, state in states.items()
        if isinstance(state, ReportedControllerState) and state.role == "leader"
    ]
    if not leading:
        return None
    *_, state = max(leading, key=lambda one: one[:2])
    kept = next((one for one in state.groups if one.broker_name == broker_name), None)
    if kept is None:
        return None
    return {
        "brokerName": broker_name,
        "masterEpoch": kept.master_epoch,
        "syncStateSet": sorted(set(kept.sync_state_set) & members),
        "replicas": [{"brokerId": one.broker_id} for one in kept.replicas],
    }
