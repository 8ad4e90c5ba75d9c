# pure: whom to elect
"""Whom to elect (`DefaultElectPolicy`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LiveInfo:
    """What a replica's heartbeats say of it."""

    epoch: int = -1
    max_offset: int = -1
    election_priority: int | None = None


Liveness = Callable[[str, str, int], LiveInfo | None]
"""(cluster, broker name, broker id) -> what its heartbeats say, None for a replica that is not alive."""

PRIORITY_LOWEST = (1 << 31) - 1
"""What a replica without an `electionPriority` counts as; smaller is better (`BrokerLiveInfo`)."""


def elect(
    cluster: str,
    name: str,
    candidates: Iterable[int],
    fallback: Iterable[int] | None,
    old_master: int | None,
    preferred: int | None,
    alive: Liveness,
) -> int | None:
    """The next master: the old one if it lives and nobody else is wanted; the preferred one if it lives; else
    the newest by epoch, then by offset, then by priority, then by id (Java leaves that last tie to chance).
    `candidates` is the SyncStateSet; `fallback`, for unclean elections only, all replicas."""
    chosen = _try(cluster, name, candidates, old_master, preferred, alive)
    if chosen is None and fallback is not None:
        chosen = _try(cluster, name, fallback, old_master, preferred, alive)
    return chosen


def _try(
    cluster: str,
    name: str,
    candidates: Iterable[int],
    old_master: int | None,
    preferred: int | None,
    alive: Liveness,
) -> int | None:
    living = {one: info for one in candidates if (info := alive(cluster, name, one)) is not None}
    if not living:
        return None
    if old_master in living and preferred in (None, old_master):
        return old_master
    if preferred is not None:
        return preferred if preferred in living else None

    def rank(one: int) -> tuple[int, int, int, int]:
        info = living[one]
        priority = PRIORITY_LOWEST if info.election_priority is None else info.election_priority
        return (-info.epoch, -info.max_offset, priority, one)

    return min(living, key=rank)
