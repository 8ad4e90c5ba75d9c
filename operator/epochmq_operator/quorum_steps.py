"""Decides the next step of a change of the number of controllers, or of brokers of a DLedger group. The rules
are the same; the text says controller.

Controllers have the ids n0, n1, … after their pods' ordinals, and the members of the quorum are those whose
pods run. A change goes one controller at a time, in an order in which a controller that is killed or started
at any moment has the members from the Raft log, or no vote:

    grow:    the number of pods rises by one ──> the new controller gets the log and becomes a member ──> …
    shrink:  the last controller is removed from the members ──> its pod stops ──> …

A step starts only while all members that stay are ready, so that the new majority works at once. Each step
follows from what is observed: a driver that was killed after any write is followed by one that continues.

The configuration of a controller names members, too. It counts only while the log names none
(`voters_of_configuration`)."""

# pure: data in, steps out.

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObservedMembers:
    """A quorum of controllers. `running` is the number of its pods, `wanted` the number in the spec.
    `members` are the ids of the members as the leader knows them, `ready` those of the ready pods, and
    `responding` those of the pods whose controller responds."""

    running: int
    wanted: int
    members: frozenset[str]
    ready: frozenset[str]
    responding: frozenset[str]

    @property
    def complete(self) -> bool:
        """Whether exactly those controllers are members whose pods run."""
        return self.members == frozenset(member_id(ordinal) for ordinal in range(self.running))


@dataclass(frozen=True, slots=True)
class Founders:
    """The number of founders of a quorum (`voters_of_configuration`). `complete`: the applied configuration
    has a file for each controller that is to run. An earlier release wrote none for controllers that join."""

    number: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class StartMember:
    """The number of pods rises to `running`."""

    running: int


@dataclass(frozen=True, slots=True)
class AddMember:
    """The controller whose pod has this ordinal becomes a member."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """The controller of this ordinal is removed from the members. If its pod is the last one, it then stops.
    The removal is requested even of a controller that is not a member: the request fails while the leader is
    still adding it."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done now."""

    reason: str


QuorumStep = StartMember | AddMember | RemoveMember | Wait


def next_quorum_step(quorum: ObservedMembers) -> QuorumStep | None:
    """The next step; None if the members are as wanted."""
    ordinals = {ordinal_of(member): member for member in sorted(quorum.members)}
    if None in ordinals:
        return Wait(f"the member {ordinals[None]} was added by others; remove it")
    stray = [ordinal for ordinal in ordinals if ordinal is not None and ordinal >= quorum.running]
    if stray:
        return _unless_unready(quorum, RemoveMember(max(stray)), member_id(max(stray)))
    if quorum.running > quorum.wanted:
        last = quorum.running - 1
        return _unless_unready(quorum, RemoveMember(last), member_id(last))
    missing = [n for n in range(quorum.running) if member_id(n) not in quorum.members]
    if missing:
        if member_id(missing[0]) not in quorum.responding:
            return Wait(f"waits until {member_id(missing[0])} responds")
        return _unless_unready(quorum, AddMember(missing[0]))
    if quorum.running < quorum.wanted:
        return _unless_unready(quorum, StartMember(quorum.running + 1))
    return None


def _unless_unready(quorum: ObservedMembers, step: QuorumStep, leaving: str = "") -> QuorumStep:
    """The step, if all members but the one that leaves are ready."""
    unready = sorted(quorum.members - quorum.ready - {leaving})
    return Wait(f"waits until {', '.join(unready)} is ready") if unready else step


def member_id(ordinal: int) -> str:
    """The id of the controller whose pod has this ordinal."""
    return f"n{ordinal}"


def ordinal_of(member: str) -> int | None:
    """The ordinal of the pod of a controller with this id; None if no pod can have it."""
    number = member.removeprefix("n")
    return int(number) if number.isdecimal() and member_id(int(number)) == member else None


def founders_of(founders: int, members: frozenset[str]) -> int:
    """The number of founders after a step, when the log may name these members. As long as the founders are
    the members, their configuration is right, with and without the log. Otherwise the log names the members:
    there are no founders any more."""
    return founders if members == frozenset(member_id(n) for n in range(founders)) else 0


def voters_of_configuration(ordinal: int, running: int, founders: int) -> tuple[int, bool]:
    """(number of controllers, whether it joins) in the configuration of a controller: the controllers 0 to
    number-1. The founders are the controllers with which the group began. They name each other until the log
    names the members; from then on there are none (0). All others join: they have no vote until the log
    names them, so that a controller that lost its directory never forms a quorum of former members."""
    return (founders, False) if ordinal < founders else (max(running, ordinal + 1), True)
