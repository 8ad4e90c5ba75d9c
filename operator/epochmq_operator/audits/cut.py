"""The cut of an audit: up to where the replicas' logs are compared, and what their epoch files said then.

The master's confirm offset is asked first. What lies below it every replica of its SyncStateSet has, and
nobody writes there again; so each may be looked at later, at its own time. The epoch files are asked after
that: they know every epoch of what is below. A replica that is not in the set (or in one that nothing waits
for, without `allAckInSyncStateSet`) counts as far as it is and has the master's history, by their epoch
files, as in a handshake (RIP-44): what is behind that it is about to cut off, if it has not done so. How far
it is is asked after its epoch file was copied: if that has the newest epoch, the log has been cut by then."""

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
"""Of a copy: some 3,000 elections. A longer file is read from the volume alone."""


@dataclass(frozen=True, slots=True)
class ReplicaCutPoint:
    """`end` is an offset of the log."""

    name: str
    end: int
    epochs: bytes | None

    def document(self) -> dict[str, Any]:
        """For the job."""
        copy = None if self.epochs is None else b64encode(self.epochs).decode()
        return {"name": self.name, "end": self.end, "epochs": copy}


@dataclass(frozen=True, slots=True)
class GroupCut:
    """`view` is the controllers' of the group, in the shape of `epochmq status`; None when none leads."""

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
    """The cut, or why there is none. `words` were said before the `copies` of epoch files were made, `later`
    ones after that."""
    reported = {pod: state for pod in pods if isinstance(state := states.get(pod), ReportedBrokerState)}
    masters = [(state.master_epoch or 0, pod) for pod, state in reported.items() if state.role == "master"]
    if not reported:
        return "no replica answers"
    if not masters:
        return "no replica says that it is the master"
    epoch, master = max(masters)
    leading = reported[master]
    if leading.confirm_offset is None:
        return f"{master} does not say what is confirmed"
    members, confirmed = set(leading.sync_state_set), leading.confirm_offset
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


def _common_end(copy: bytes | None, leading: bytes | None, end: int | None) -> int:
    """Up to where a log that ends there is the leading one's, by copies of their epoch files; all of it when
    they say nothing. A log of which nobody says where it ends has what came before its last epoch."""
    ours, theirs = _entries(copy), _entries(leading)
    known = end if end is not None else ours[-1].start_offset if ours else 0
    common = truncation_point(ours, known, theirs, OFFSET_MAX)
    return known if common is None else min(common, known)


def _entries(copy: bytes | None) -> list[EpochEntry]:
    try:
        return parse_epoch_file((copy or b"").decode())
    except (EpochMQError, ValueError):
        return []  # the audit tells of it


def _view(states: Mapping[str, ReportedState], broker_name: str, members: set[int]) -> dict[str, Any] | None:
    """What the leading controller knows of the group. Of the SyncStateSet what it and the master agree on: a
    change of it may be under way. Which replica is master is left out: its epoch may have nothing confirmed
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
