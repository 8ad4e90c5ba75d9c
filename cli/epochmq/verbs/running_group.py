"""Makes the cut of a broker group that runs in a state directory, from its status and epoch files.

`local_readers` freezes the replicas at this cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochmq_operator.audits.cut import GroupCut, cut_of, dledger_cut_of
from epochmq_operator.local import status
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.local.status import LocalObservation
from epochmq_operator.named_replica import ReplicaControlError
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedControllerState,
    ReportedReplica,
    ReportedReplicaGroup,
    ReportedState,
)
from epochmq_operator.resources import GroupMode
from epochmq_operator.status_model import BrokerGroupStatus, ReplicaStatus

CUT_WAIT_S = 30.0
"""How long a cut may wait for a master."""
RETRY_S = 0.5
EPOCH_FILE = "epochFileCheckpoint"
CONTROLLERS = "controllers"  # their entry among the reported states


@dataclass(frozen=True, slots=True)
class RunningGroupCut:
    """A cut, and the directories of the replicas by pod. `alive` are the pods that have a process."""

    broker_name: str
    cluster: str
    cut: GroupCut
    directories: Mapping[str, Path]
    alive: frozenset[str]


def group_names(state: Path) -> list[str]:
    """The broker groups of a state directory; none if it is not one. Raises StateError."""
    directory = StateDirectory(state)
    return [one.name for one in directory.resources().broker_groups] if directory.exists() else []


def make_cut(state: Path, name: str) -> RunningGroupCut:
    """Makes the cut as the operator does on Kubernetes: it reads the states of the replicas, copies their
    epoch files, and reads the states again. Raises ReplicaControlError if the group has no master for a
    while, or, in the mode DLedger, a replica does not respond."""
    return asyncio.run(_make_cut(StateDirectory(state), name))


async def _make_cut(state: StateDirectory, name: str) -> RunningGroupCut:
    deadline = time.monotonic() + CUT_WAIT_S
    while True:
        seen, group = await _observe(state, name)
        directories = {one.pod: Path(one.data_dir) for one in group.replicas}
        copies = await asyncio.to_thread(_copy_epoch_files, directories)
        later_seen, later = await _observe(state, name)
        if group.mode is GroupMode.DLEDGER:
            cut = dledger_cut(group, later)
        else:
            states, again = reported_states(group, seen), reported_states(later, later_seen)
            cut = cut_of(tuple(directories), states, copies, again, group.broker_name)
        if isinstance(cut, GroupCut):
            alive = frozenset(one.pod for one in later.replicas if one.pid is not None)
            return RunningGroupCut(group.broker_name, group.cluster, cut, directories, alive)
        if time.monotonic() > deadline:
            raise ReplicaControlError(f"there is no consistent cut of group {name}: {cut}")
        await asyncio.sleep(RETRY_S)


async def _observe(state: StateDirectory, name: str) -> tuple[LocalObservation, BrokerGroupStatus]:
    seen = await status.observe(state)
    group = next((one for one in status.report(state, seen).broker_groups if one.name == name), None)
    if group is None:
        raise ReplicaControlError(f"broker group {name} does not run in {state.path}")
    return seen, group


def dledger_cut(group: BrokerGroupStatus, later: BrokerGroupStatus) -> GroupCut | str:
    """The cut of a group in the mode DLedger, by its status and a later one, or why there is none. The files
    of a replica without a process do not change, and count as a whole."""
    masters = [one for one in group.replicas if one.role == "master"]
    master = max(masters, key=lambda one: one.epoch or 0, default=None)
    committed = None if master is None else master.confirm_offset
    ends = {one.pod: one.confirm_offset if one.pid is not None else committed for one in later.replicas}
    return dledger_cut_of(
        None if master is None else master.pod, None if master is None else master.epoch, committed, ends
    )


def _copy_epoch_files(directories: Mapping[str, Path]) -> dict[str, bytes]:
    copies = {}
    for pod, directory in directories.items():
        try:
            copies[pod] = (directory / EPOCH_FILE).read_bytes()
        except FileNotFoundError:
            continue
    return copies


def reported_states(group: BrokerGroupStatus, seen: LocalObservation) -> dict[str, ReportedState]:
    """The states of a group as its sidecars would report them. Replicas that do not respond are left out."""
    states: dict[str, ReportedState] = {
        one.pod: _broker_state(group, one, confirmed_by_all=_confirmed_by_all(seen, one.pod))
        for one in group.replicas
        if one.max_offset is not None
    }
    listed = next(
        (
            one
            for one in seen.replica_groups.get(group.controller_group or "", [])
            if one.broker_name == group.broker_name
        ),
        None,
    )
    if listed is not None:
        kept = ReportedReplicaGroup(
            broker_name=listed.broker_name,
            master_broker_id=listed.master_id,
            master_epoch=listed.master_epoch,
            sync_state_set=listed.sync_state_set,
            replicas=[ReportedReplica(broker_id=one.broker_id) for one in listed.replicas],
        )
        states[CONTROLLERS] = ReportedControllerState(role="leader", term=0, groups=[kept])
    return states


def _broker_state(
    group: BrokerGroupStatus, replica: ReplicaStatus, *, confirmed_by_all: bool
) -> ReportedBrokerState:
    leads: Any = "master" if replica.role == "master" else "replica"
    return ReportedBrokerState(
        cluster=group.cluster,
        broker_name=group.broker_name,
        broker_id=replica.broker_id,
        role=leads,
        master_epoch=group.master_epoch if leads == "master" else None,
        sync_state_set=group.sync_state_set,
        confirm_offset=replica.confirm_offset,
        confirmed_by_all=confirmed_by_all,
        max_offset=replica.max_offset,
    )


def _confirmed_by_all(seen: LocalObservation, pod: str) -> bool:
    """Whether the broker was started with `allAckInSyncStateSet`."""
    files = next((o.pod.config_files for o in seen.pods if o.pod.name == pod), ())
    return any(
        line.replace(" ", "").lower() == "allackinsyncstateset=true"
        for file in files
        for line in file.text.splitlines()
    )
