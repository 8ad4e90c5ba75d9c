# pure: which masters give way to others
"""Finds masters that cannot reach enough replicas, while another replica may.

A master whose SyncStateSet is too small acknowledges nothing. It may have lost its links to the replicas and
not those to the controllers, so that it keeps its mastership. After `PATIENCE_MS` an eligible member takes
its place, if as many other replicas live as a set needs. The eligible member has every acknowledged message.
Nobody knows whether it reaches the others; if it does not, the next one gets its turn, after twice the time.
"""

from __future__ import annotations

from typing import Final

import msgspec

from epochmq_controller.replica_groups.election_policy import LiveInfoLookup
from epochmq_controller.replica_groups.replicated_state import ReplicaGroup, ReplicaGroups

PATIENCE_MS: Final = 10_000
"""How long a set may be too small before its master gives way. A replica that restarts joins again sooner."""
PATIENCE_MAX_MS: Final = 300_000


class ShortSet(msgspec.Struct):
    """A set that is too small, since when another replica could take over, and how long to wait then."""

    since_ms: int
    patience_ms: int = PATIENCE_MS


def successors(group: ReplicaGroup, alive: LiveInfoLookup) -> frozenset[int]:
    """The live eligible members with a trusted log, if they and the other live replicas are enough for a set
    without the master."""
    cluster, name = group.cluster_name, group.broker_name
    living = {one: alive(cluster, name, one) for one in group.replicas if one != group.master_id}
    if sum(info is not None for info in living.values()) < group.min_in_sync_replicas:
        return frozenset()
    return frozenset(
        one
        for one in group.eligible_members
        if one != group.master_id and (info := living.get(one)) is not None and info.has_trusted_log
    )


class ShortSets:
    """The sets that are too small, by group. Times are milliseconds of one monotonic clock."""

    def __init__(self) -> None:
        self._known: dict[str, ShortSet] = {}

    def clear(self) -> None:
        """Forgets all of them: this controller does not lead any more."""
        self._known.clear()

    def masters_to_replace(self, groups: ReplicaGroups, alive: LiveInfoLookup, now_ms: int) -> list[str]:
        """The groups whose master gives way now. To be called at every scan. O(groups)."""
        due: list[str] = []
        for name, group in groups.groups.items():
            if not group.eligible_members:
                self._known.pop(name, None)
                continue
            known = self._known.setdefault(name, ShortSet(now_ms))
            if group.master_id is None or not successors(group, alive):
                known.since_ms = now_ms
            elif now_ms - known.since_ms >= known.patience_ms:
                known.since_ms = now_ms
                known.patience_ms = min(2 * known.patience_ms, PATIENCE_MAX_MS)
                due.append(name)
        for name in self._known.keys() - groups.groups.keys():
            del self._known[name]
        return due
