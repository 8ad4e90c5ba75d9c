# pure: the controller's view against epoch files
"""What the controllers know of a group against what its replicas' files say.

The view is that of `epochmq status -o json`: an entry of `controllerGroups[].replicaGroups`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epochmq_spark.checks.epoch_history import ReplicaHistory
from epochmq_spark.findings import finding

Row = dict[str, Any]
View = Mapping[str, Any]


def views(metadata: Any) -> dict[str, View]:
    """The replica groups of a status, by brokerName; also of a bare entry, or a list of them. ValueError for
    something else."""
    found: dict[str, View] = {}
    for one in _entries(metadata):
        name, epoch, members = one.get("brokerName"), one.get("masterEpoch"), one.get("syncStateSet")
        if not isinstance(name, str) or not isinstance(epoch, int) or not isinstance(members, list):
            raise ValueError(f"replica group {one!r:.200}: expected brokerName, masterEpoch and syncStateSet")
        found[name] = one
    return found


def _entries(metadata: Any) -> Iterator[View]:
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


def compare(
    group: str, histories: Sequence[ReplicaHistory], ids: Mapping[str, int | None], view: View, confirmed: int
) -> list[Row]:
    """Findings for one group. `ids` are the replicas' broker ids by name, as far as they are known;
    `confirmed` is the highest offset that any of them knows to be confirmed."""
    found: list[Row] = []
    known = {one["brokerId"] for one in view.get("replicas") or []}
    members, epoch = set(view["syncStateSet"]), view["masterEpoch"]
    for one in histories:
        number = ids.get(one.name)
        for own, start in one.entries:
            if own > epoch:
                said = f"the controller's epoch is {epoch}"
                found.append(
                    finding(
                        group,
                        one.name,
                        "epoch.ahead-of-controller",
                        epoch=own,
                        start_offset=start,
                        detail=said,
                    )
                )
        if number is None:
            continue
        if known and number not in known:
            found.append(finding(group, one.name, "controller.unknown-replica", detail=f"its id is {number}"))
        if number in members and one.possible_end < confirmed:
            said = f"{confirmed} is confirmed"
            found.append(
                finding(group, one.name, "controller.not-in-sync", start_offset=one.end, detail=said)
            )
        if number == view.get("masterId") and one.entries:
            last, start = one.entries[-1]
            # An epoch of which nothing was written may have no entry: nothing lies behind the last one then.
            if last < epoch and start < one.end and not one.stopped:
                said = f"the controller's epoch is {epoch}"
                found.append(finding(group, one.name, "epoch.behind-controller", epoch=last, detail=said))
    return found
