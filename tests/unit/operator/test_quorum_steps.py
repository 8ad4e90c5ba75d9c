"""Tests changes of the number of controllers against a quorum in memory, with a driver that is killed after
every write."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from epochmq_operator.quorum_steps import (
    AddMember,
    ObservedMembers,
    QuorumStep,
    RemoveMember,
    StartMember,
    Wait,
    founders_of,
    member_id,
    next_quorum_step,
    ordinal_of,
    voters_of_configuration,
)

STEPS_MAX = 40


class KilledError(Exception):
    """The driver was killed."""


@dataclass
class Quorum:
    """A quorum whose pods run at once. `members` is None while the log names none: then each controller has
    the members of its configuration. `writes_left`: the driver is killed before a further write."""

    running: int
    founders: int
    members: frozenset[int] | None = None
    writes_left: int = 1000
    history: list[tuple[int, ...]] = field(default_factory=list)

    def voters(self) -> frozenset[int]:
        """The members that the leader counts."""
        return self.members if self.members is not None else frozenset(range(self.founders))

    def observed(self, wanted: int) -> ObservedMembers:
        pods = frozenset(member_id(n) for n in range(self.running))
        members = frozenset(member_id(n) for n in self.voters())
        return ObservedMembers(self.running, wanted, members, pods & members, pods)

    def take(self, step: QuorumStep) -> None:
        """Takes a step as the drivers do: each write may be the last one."""
        match step:
            case StartMember(running):
                self._write(running=running)
            case AddMember(ordinal):
                self._change(self.voters() | {ordinal})
                self._write(founders=self._founders_after())
            case RemoveMember(ordinal):
                self._change(self.voters() - {ordinal})
                self._write(running=min(self.running, ordinal), founders=self._founders_after())
            case Wait(reason):
                raise AssertionError(reason)

    def _founders_after(self) -> int:
        return founders_of(self.founders, frozenset(member_id(n) for n in self.voters()))

    def _change(self, members: frozenset[int]) -> None:
        self._count_write()
        before = self.voters()
        assert len(before ^ members) <= 1, "one controller at a time"
        if members != before:
            self.members = members
        self.check()

    def _write(self, **values: int) -> None:
        self._count_write()
        for name, value in values.items():
            setattr(self, name, value)
        self.check()

    def _count_write(self) -> None:
        if self.writes_left == 0:
            raise KilledError
        self.writes_left -= 1

    def check(self) -> None:
        """No controller counts wrongly at this moment, with its log or with an empty directory."""
        voters = self.voters()
        self.history.append(tuple(sorted(voters)))
        running = frozenset(range(self.running))
        assert len(voters & running) * 2 > len(voters), "a majority of the members runs"
        for ordinal in running:
            number, joins = voters_of_configuration(ordinal, self.running, self.founders)
            if not joins and self.members is None:
                assert frozenset(range(number)) == voters, f"n{ordinal} counts {number} members"
            if joins:
                assert number > ordinal
                assert self.members is not None or ordinal not in voters, f"n{ordinal} never leads"


def drive(quorum: Quorum, wanted: int) -> None:
    """Takes steps until none is left."""
    for _ in range(STEPS_MAX):
        step = next_quorum_step(quorum.observed(wanted))
        if step is None:
            return
        quorum.take(step)
    raise AssertionError(f"no end after {STEPS_MAX} steps")


@pytest.mark.parametrize(("before", "after"), [(1, 3), (1, 5), (3, 5), (5, 3), (5, 1), (3, 1)])
def test_a_driver_that_is_killed_after_any_write_is_followed_by_one_that_completes_the_change(
    before: int, after: int
) -> None:
    whole = Quorum(before, before)
    drive(whole, after)
    assert whole.history[-1] == tuple(range(after))
    sizes = [len(members) for members in whole.history]
    assert sizes == sorted(sizes, reverse=after < before)
    for writes in range(1000 - whole.writes_left):
        for then in (after, before):  # the spec may have changed meanwhile
            quorum = Quorum(before, before, writes_left=writes)
            with pytest.raises(KilledError):
                drive(quorum, after)
            quorum.writes_left = 1000
            drive(quorum, then)
            assert (quorum.running, quorum.voters()) == (then, frozenset(range(then)))


def test_a_change_waits_while_a_member_that_stays_is_not_ready() -> None:
    three = Quorum(3, 3).observed(5)
    one_down = replace(three, ready=frozenset({"n0", "n2"}))
    assert next_quorum_step(three) == StartMember(4)
    assert next_quorum_step(one_down) == Wait("waits until n1 is ready")
    assert next_quorum_step(replace(one_down, running=4, responding=frozenset({"n3"}))) == Wait(
        "waits until n1 is ready"
    )
    assert next_quorum_step(replace(three, running=4, responding=frozenset())) == Wait(
        "waits until n3 responds"
    )
    # The controller that is removed may be down; no other may.
    shrinking = replace(three, wanted=1)
    assert next_quorum_step(replace(shrinking, ready=frozenset({"n0", "n1"}))) == RemoveMember(2)
    assert next_quorum_step(replace(shrinking, ready=frozenset({"n0", "n2"}))) == Wait(
        "waits until n1 is ready"
    )


def test_members_without_a_pod_are_removed_and_those_of_others_are_reported() -> None:
    three = frozenset({"n0", "n1", "n2"})
    stray = ObservedMembers(3, 3, three | {"n3"}, three, frozenset())
    assert next_quorum_step(stray) == RemoveMember(3)
    foreign = replace(stray, members=three | {"x"})
    assert next_quorum_step(foreign) == Wait("the member x was added by others; remove it")
    assert [ordinal_of(name) for name in ("n0", "n12", "n01", "n", "x1")] == [0, 12, None, None, None]
