# pure: whom to elect
"""Whom to elect (`DefaultElectPolicy`), and whom not yet.

A replica that lost power, whose disk failed, or whose volume was restored may lack acknowledged messages. It
says so in its heartbeats, and `electable_members` passes it over while a member of the SyncStateSet lives
that lacks none. Where every living member may lack some, a member that is missing may have more than all of
them: the group waits for it. Where nobody is missing there is nothing to wait for, and the newest log is the
best.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ReplicaLiveInfo:
    """What a replica's heartbeats say of it."""

    epoch: int = -1
    max_offset: int = -1
    election_priority: int | None = None
    in_doubt: bool = False
    """It says that it may lack acknowledged messages."""
    lacks_confirmed: bool = False
    """Its log ends in front of what every member of its SyncStateSet had when it was heard last."""

    @property
    def has_trusted_log(self) -> bool:
        """Whether nothing speaks against its log."""
        return not self.in_doubt and not self.lacks_confirmed


LiveInfoLookup = Callable[[str, str, int], ReplicaLiveInfo | None]
"""(cluster, broker name, broker id) -> what its heartbeats say, None for a replica that is not alive."""

PRIORITY_LOWEST = (1 << 31) - 1
"""What a replica without an `electionPriority` counts as; smaller is better (`BrokerLiveInfo`)."""


@dataclass(frozen=True)
class ElectionCandidates:
    """The members from whom the next master is chosen; `waits`: why nobody may be yet."""

    members: frozenset[int]
    wait_reason: str | None = None


def electable_members(
    cluster: str, name: str, members: Collection[int], alive: LiveInfoLookup
) -> ElectionCandidates:
    """Who of a SyncStateSet may be elected: the living that lack nothing; where there is none of these, and
    nobody is missing, all."""
    living = {one: info for one in members if (info := alive(cluster, name, one)) is not None}
    sound = frozenset(one for one, info in living.items() if info.has_trusted_log)
    missing = sorted(set(members) - set(living))
    if sound or not living or not missing:
        return ElectionCandidates(sound or frozenset(living))
    doubtful = sorted(living)
    return ElectionCandidates(
        frozenset(),
        f"waits for {_brokers(missing)}: {_brokers(doubtful)} may lack acknowledged messages "
        "(power lost, a failed disk, or a restored volume). Start the missing members; if they are gone for "
        "good, order the election of the newest log: electMaster with its broker id",
    )


def _brokers(ids: Collection[int]) -> str:
    return ("broker " if len(ids) == 1 else "brokers ") + ", ".join(map(str, ids))


def newest_log(cluster: str, name: str, candidates: Iterable[int], alive: LiveInfoLookup) -> int | None:
    """The living candidate with the newest log by epoch, then by offset, then by priority, then by id."""
    return _choose(cluster, name, candidates, None, None, alive)


def elect(
    cluster: str,
    name: str,
    candidates: Iterable[int],
    fallback: Iterable[int] | None,
    old_master: int | None,
    preferred: int | None,
    alive: LiveInfoLookup,
) -> int | None:
    """The next master: the old one if it lives and nobody else is wanted; the preferred one if it lives; else
    the newest by epoch, then by offset, then by priority, then by id (Java leaves that last tie to chance).
    `candidates` is the SyncStateSet; `fallback`, for unclean elections only, all replicas."""
    chosen = _choose(cluster, name, candidates, old_master, preferred, alive)
    if chosen is None and fallback is not None:
        chosen = _choose(cluster, name, fallback, old_master, preferred, alive)
    return chosen


def _choose(
    cluster: str,
    name: str,
    candidates: Iterable[int],
    old_master: int | None,
    preferred: int | None,
    alive: LiveInfoLookup,
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
