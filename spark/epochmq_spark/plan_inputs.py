"""Gives the plan of repair what an audit knows: the kinds of findings of each replica, with the files that
they name, and the replicas with their directories."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochmq_spark import files
from epochmq_spark.audit_state import AuditState, ReplicaKey
from epochmq_spark.fix_plan import FILES_MAX, FoundKind, LocalGroup, PlannedReplica, make_plan


@dataclass(frozen=True, slots=True)
class StoreOrigin:
    """Where the stores of frozen replicas are on this machine, by replica, and the group of `epochmq up` to
    which they belong."""

    local: LocalGroup
    directories: Mapping[str, str] = field(default_factory=dict)


def plan_of(
    state: AuditState,
    found: Iterable[Mapping[str, Any]],
    started: float,
    origin: StoreOrigin | None = None,
) -> list[dict[str, Any]]:
    """The steps of the plan as JSON. The rows of `found` have group, replica, kind, count and files, a list.
    `started` is the time of the audit, in seconds since 1970."""
    directories = {key: directory_of(state, key, origin) for key in state.replicas}
    kinds = [
        FoundKind(
            row["group"],
            row["replica"] or "",
            row["kind"],
            row["count"],
            tuple(
                _local_file(state, directories, (row["group"], row["replica"]), file)
                for file in sorted(row["files"])[:FILES_MAX]
            ),
        )
        for row in found
    ]
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(started))
    steps = make_plan(
        kinds, planned_replicas(state, directories), stamp, None if origin is None else origin.local
    )
    return [step.document() for step in steps]


def directory_of(state: AuditState, key: ReplicaKey, origin: StoreOrigin | None) -> str | None:
    """The directory of a replica on this machine; None if it is elsewhere."""
    if origin is not None and key[1] in origin.directories:
        return origin.directories[key[1]]
    path = files.local_path(state.replicas[key].location)
    return None if path is None else str(path.absolute())


def planned_replicas(state: AuditState, directories: Mapping[ReplicaKey, str | None]) -> list[PlannedReplica]:
    """The replicas as the plan needs them."""
    histories = {(group, one.name): one for group, members in state.histories.items() for one in members}
    planned = []
    for key, contents in state.contents.items():
        history, extent = histories.get(key), state.extents.get(key)
        planned.append(
            PlannedReplica(
                key[0],
                key[1],
                directories[key],
                contents.names | {f"config/{name}" for name in contents.config},
                None if extent is None else extent.start,
                None if extent is None else extent.end,
                0 if history is None else history.confirmed,
                is_killed=contents.aborted,
                has_epochs=history is not None and (bool(history.entries) or history.peer is not None),
            )
        )
    return planned


def _local_file(
    state: AuditState, directories: Mapping[ReplicaKey, str | None], key: ReplicaKey, file: str
) -> str:
    """The path of a file that a finding names, in the directory of its replica on this machine."""
    replica, directory = state.replicas.get(key), directories.get(key)
    if replica is None or directory is None or not file.startswith(replica.location):
        return file
    return directory + file.removeprefix(replica.location)
