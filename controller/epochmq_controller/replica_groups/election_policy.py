# pure: which replica to elect
"""Chooses the replica to elect (`DefaultElectPolicy`), or says why none may be elected yet.

The old master is elected again if it lives, otherwise the preferred replica, otherwise the newest log.

A replica that lost power, whose disk failed, or whose volume was restored may lack acknowledged messages: its
log is in doubt, and its heartbeats say so. `electable_members` passes it over while a member of the
SyncStateSet lives whose log is not in doubt. If the logs of all live members are in doubt, a missing member
may hold more messages than they do, and the group waits for it. If no member is missing, the newest log is
the best.

While the SyncStateSet is too small to acknowledge messages, the replicas that leave it keep every
acknowledged message (`ReplicaGroup.eligible_members`). One of them is elected if no member lives whose log is
not in doubt.

An election reduces the SyncStateSet to the new master. If it loses power before a replica has joined it, only
the members of before may have messages that were acknowledged before. So they count, too, if its log is in
doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ReplicaLiveInfo:
    """What the heartbeats of a live replica say (RocketMQ's `BrokerLiveInfo`)."""

    epoch: int = -1
    max_offset: int = -1
    election_priority: int | None = None
    in_doubt: bool = False
    """Its log may lack acknowledged messages."""
    lacks_confirmed: bool = False
    """Its log ends before the offset that every member of its SyncStateSet had
    (`offset_confirmed_by_all`)."""
    address: str = ""
    lineage: str = ""
    """The incarnations of its store (`incarnations`); empty if it names none."""
    confirmed_by_all: int = -1
    """The offset that every member of its SyncStateSet had, as far as it knows; -1 if unknown."""

    @property
    def log_end(self) -> tuple[int, int]:
        """Epoch of the last byte and end offset; the log with the higher pair is newer."""
        return self.epoch, self.max_offset

    @property
    def has_trusted_log(self) -> bool:
        """Whether its log holds all acknowledged messages, as far as is known."""
        return not self.in_doubt and not self.lacks_confirmed


LiveInfoLookup = Callable[[str, str, int], ReplicaLiveInfo | None]
"""(cluster, broker name, broker id) -> what the replica's heartbeats say, None for a dead one."""
LivenessLookup = Callable[[str, str, int], bool]
"""(cluster, broker name, broker id) -> whether the replica has sent a recent heartbeat."""

PRIORITY_LOWEST = (1 << 31) - 1
"""The priority of a replica without an `electionPriority`. Smaller is better (`BrokerLiveInfo`)."""


@dataclass(frozen=True)
class ElectionCandidates:
    """The members that may become master. `wait_reason`: why none may yet."""

    members: frozenset[int]
    wait_reason: str | None = None


def electable_members(
    cluster: str,
    name: str,
    members: Collection[int],
    alive: LiveInfoLookup,
    former: Collection[int] = (),
    eligible: Collection[int] = (),
) -> ElectionCandidates:
    """The members of a SyncStateSet that may be elected: the live ones whose logs are not in doubt. Without
    any of them, the live `eligible` ones whose logs are not in doubt. Without any of those, and if no member
    is missing, all live members.

    `former`: the members before the election of a master that no replica has joined
    (`ReplicaGroup.former_members`). If it says that its log is in doubt, those of them whose logs are newer
    are candidates, too: those not in doubt, or all if none is missing."""
    living = {one: info for one in members if (info := alive(cluster, name, one)) is not None}
    trusted = frozenset(one for one, info in living.items() if info.has_trusted_log)
    if not trusted:
        trusted = frozenset(
            one
            for one in eligible
            if (info := alive(cluster, name, one)) is not None and info.has_trusted_log
        )
    if trusted or not living:
        return ElectionCandidates(trusted)
    if not any(info.in_doubt for info in living.values()):
        former = ()
    witnesses = {one: info for one in former if (info := alive(cluster, name, one)) is not None}
    sound = any(info.has_trusted_log for info in witnesses.values())
    missing = sorted({*members, *former} - {*living, *witnesses})
    if sound or not missing:
        newest = max(info.log_end for info in living.values())
        newer = {one for one, info in witnesses.items() if info.log_end > newest}
        return ElectionCandidates(
            frozenset(living) | {one for one in newer if not sound or witnesses[one].has_trusted_log}
        )
    doubtful = sorted({*living, *witnesses})
    return ElectionCandidates(
        frozenset(),
        f"waits for {_brokers(missing)}: {_brokers(doubtful)} may lack acknowledged messages "
        "(power lost, a failed disk, or a restored volume). Start the missing members; if they are gone for "
        "good, order the election of the newest log: electMaster with its broker id",
    )


def nobody_electable(
    cluster: str,
    name: str,
    electable: Collection[int],
    replicas: Collection[int],
    alive: LiveInfoLookup,
    designated: int | None = None,
) -> str:
    """Why no replica is elected, or not the `designated` one, and what to do. `electable`: the SyncStateSet
    and the eligible members, which have every acknowledged message."""
    if designated is not None and alive(cluster, name, designated) is None:
        return f"broker {designated} sends no heartbeats to the controllers"
    if designated is not None:
        return (
            f"broker {designated} may lack acknowledged messages; {_brokers(sorted(electable))} have all. "
            "If these are gone for good, accept the loss: set enableElectUncleanMaster=true with "
            "updateControllerConfig until a master is elected"
        )
    living = sorted(one for one in replicas if alive(cluster, name, one) is not None)
    others = f"{_brokers(living)} may lack some" if living else "no other broker lives"
    return (
        f"waits for {_brokers(sorted(electable))} with every acknowledged message: {others}. Start the "
        "missing members; if they are gone for good, accept the loss: set enableElectUncleanMaster=true with "
        "updateControllerConfig until a master is elected"
    )


def _brokers(ids: Collection[int]) -> str:
    return ("broker " if len(ids) == 1 else "brokers ") + ", ".join(map(str, ids))


def newest_log(cluster: str, name: str, candidates: Iterable[int], alive: LiveInfoLookup) -> int | None:
    """The live candidate with the newest log: by epoch, then offset, then priority, then id."""
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
    """The next master: the old one if it is alive and no other is preferred; or the preferred one if it is
    alive; or else the candidate with the newest log, as `newest_log` orders them. (In Java chance decides
    between equal priorities.) `candidates` is the SyncStateSet. `fallback`, for unclean elections only, is
    all replicas."""
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
