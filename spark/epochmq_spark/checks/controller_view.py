# pure: the controllers' view against epoch files
"""Compares what the controllers know of a group with the files of its replicas.

The view is an entry of `controllerGroups[].replicaGroups` in the output of `epochmq status -o json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epochmq_spark.checks.epoch_history import ReplicaHistory
from epochmq_spark.findings import finding

Row = dict[str, Any]
ControllerView = Mapping[str, Any]


def parse_views(metadata: Any) -> dict[str, ControllerView]:
    """The replica groups of a status, by brokerName. Accepts a single entry, or a list of them, too. Raises
    ValueError for anything else."""
    views: dict[str, ControllerView] = {}
    for entry in _entries(metadata):
        name, epoch, members = entry.get("brokerName"), entry.get("masterEpoch"), entry.get("syncStateSet")
        if not isinstance(name, str) or not isinstance(epoch, int) or not isinstance(members, list):
            raise ValueError(
                f"replica group {entry!r:.200}: expected brokerName, masterEpoch and syncStateSet"
            )
        views[name] = entry
    return views


def _entries(metadata: Any) -> Iterator[ControllerView]:
    if isinstance(metadata, list):
        for one in metadata:
            yield from _entries(one)
    elif isinstance(metadata, dict) and "controllerGroups" in metadata:
        for group in metadata["controllerGroups"]:
            yield from group.get("replicaGroups") or []
    elif isinstance(metadata, dict):
        yield metadata
    else:
        raise ValueError(f"{type(metadata).__name__}: expected the output of epochmq status -o json")


def compare_with_view(
    group: str,
    histories: Sequence[ReplicaHistory],
    ids: Mapping[str, int | None],
    view: ControllerView,
    confirmed: int,
) -> list[Row]:
    """Findings for one group. `ids` are the known broker ids, by replica name; `confirmed` is the highest
    confirm offset in any replica's checkpoint."""
    findings: list[Row] = []
    known_ids = {replica["brokerId"] for replica in view.get("replicas") or []}
    members, epoch = set(view["syncStateSet"]), view["masterEpoch"]
    for history in histories:
        broker_id = ids.get(history.name)
        findings += [
            finding(
                group,
                history.name,
                "epoch.ahead-of-controller",
                epoch=own,
                start_offset=start,
                detail=f"the controller's epoch is {epoch}",
            )
            for own, start in history.entries
            if own > epoch
        ]
        if broker_id is None:
            continue
        if known_ids and broker_id not in known_ids:
            detail = f"its broker id is {broker_id}"
            findings.append(finding(group, history.name, "controller.unknown-replica", detail=detail))
        if broker_id in members and history.possible_end < confirmed:
            detail = f"the confirm offset is {confirmed}"
            findings.append(
                finding(
                    group, history.name, "controller.not-in-sync", start_offset=history.end, detail=detail
                )
            )
        if broker_id == view.get("masterId") and history.entries:
            last, start = history.entries[-1]
            # An epoch without a byte may have no entry. Then the log ends at the start of the last entry.
            if last < epoch and start < history.end and not history.stopped:
                detail = f"the controller's epoch is {epoch}"
                findings.append(
                    finding(group, history.name, "epoch.behind-controller", epoch=last, detail=detail)
                )
    return findings


def find_replicas_not_supplied(
    group: str, ids: Mapping[str, int | None], view: ControllerView | None
) -> list[Row]:
    """Findings for replicas that the controllers list and the audit has not. `ids` are the broker ids of the
    audited replicas, by name. A directory without an identity may be any of them, so there are findings only
    if more replicas are absent than directories have no identity."""
    if view is None:
        return []
    listed = {replica["brokerId"] for replica in view.get("replicas") or []} | set(view["syncStateSet"])
    absent = sorted(listed - set(ids.values()))
    if len(absent) <= sum(broker_id is None for broker_id in ids.values()):
        return []
    return [
        finding(group, "", "controller.not-supplied", detail=f"brokerId {broker_id}") for broker_id in absent
    ]
