"""Rounds of drawn volume faults under a producer. After each round the remedy that the group names was
followed, the group is whole again, and every acknowledged message is served."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from epochmq_protocol.errors import EpochMQError
from tests.integration.disks.ack_ledger import AckLedger, LossReport
from tests.integration.volumes import faults
from tests.integration.volumes.faults import (
    BIT,
    CLONE,
    CONSUME_QUEUES,
    CONTROLLER,
    OLDER,
    VolumeFault,
    store_of,
)
from tests.integration.volumes.modes import (
    COMMAND,
    COPIED,
    EMPTIED,
    HEAL_S,
    REPAIR_S,
    TABLE,
    VolumeGroup,
    output_since,
    output_size,
)
from tests.integration.volumes.traffic import Traffic, wait_acknowledged
from tests.support.group_processes import Member
from tests.support.process import wait_until

ACKS_MIN, ACKS_MAX = 100, 600
"""A round's fault comes after a random number of new acknowledgements in this range."""
MASTER_SHARE, KILL_SHARE, FAILOVER_SHARE = 0.4, 0.5, 0.5
RESTART_SHARE = 0.7
"""The share of older copies that are of a process before the last one."""
STEPS_MAX = 4
"""How many remedies may follow one another in one round."""


@dataclass
class VolumeRound:
    """One round: the fault, what was done about it, and what was lost."""

    text: str
    steps: list[str] = field(default_factory=list)
    report: LossReport = field(default_factory=LossReport)
    error: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the group was whole again, nothing was lost, and no log differs."""
        return not (self.report.lost or self.report.divergent or self.error)

    def __str__(self) -> str:
        report = self.report
        first = (
            f"{self.text}: {'; '.join(self.steps) or 'no remedy needed'}: {report.acknowledged} "
            f"acknowledged, {len(report.lost)} lost, {self.seconds:.1f} s"
        )
        details = [*map(str, report.lost[:3]), *report.divergent, self.error]
        return "\n  ".join([first, *filter(None, details)])


class VolumeRounds:
    """`with VolumeRounds(group, traffic, seed) as rounds: rounds.run(50)`."""

    def __init__(self, group: VolumeGroup, traffic: Callable[[VolumeGroup], Traffic], seed: int) -> None:
        self.group = group
        self.random = random.Random(seed)
        self.rounds: list[VolumeRound] = []
        self._make_traffic = traffic
        self._traffic: Traffic | None = None
        self._read_from: dict[str, int] = {}
        self._ledger = AckLedger(group.differing)

    def __enter__(self) -> Self:
        self.group.start()
        try:
            self.group.create_topic()
            self._traffic = self._make_traffic(self.group)
            self._traffic.resume()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.group.logs(4000))
        self._end()

    def _end(self) -> None:
        try:
            if self._traffic is not None:
                self._traffic.end()
        finally:
            self.group.kill()

    @property
    def traffic(self) -> Traffic:
        """The producer."""
        assert self._traffic is not None
        return self._traffic

    # Rounds

    def run(self, kinds: Sequence[str]) -> None:
        """One round for each kind, up to the first that fails."""
        for kind in kinds:
            self.one(kind)
            print(self.rounds[-1], flush=True)
            if not self.rounds[-1].passed:
                return

    def draw(self, count: int) -> list[str]:
        """This many kinds, each as often as the others."""
        found: list[str] = []
        while len(found) < count:
            found += self.random.sample(self.group.KINDS, len(self.group.KINDS))
        return found[:count]

    def one(self, kind: str) -> None:
        """One round."""
        began = time.monotonic()
        master = self.group.current_master()
        fault = VolumeFault(kind, self._victim(kind, master), self.random.random() < KILL_SHARE)
        victim = fault.victim
        made = VolumeRound(f"{fault}{' (the master)' if victim is master else ''}")
        self.rounds.append(made)
        try:
            self._fail(fault, made)
            self._follow(made, self.group.whole, timeout_s=HEAL_S, what="the group is whole again")
            self._judge(fault, made)
        except (AssertionError, OSError, EpochMQError) as error:
            made.error = f"{error}\n{self.group.logs(6000)}"
        made.seconds = time.monotonic() - began

    def _victim(self, kind: str, master: Member | None) -> Member:
        if kind.startswith(CONTROLLER):
            return self.random.choice(self.group.controllers)
        is_master = self.random.random() < MASTER_SHARE
        return master if is_master and master is not None else self.random.choice(self.group.brokers)

    def _fail(self, fault: VolumeFault, made: VolumeRound) -> None:
        """Has the fault happen, and starts the process again."""
        victim, chance = fault.victim, self.random
        copy = None
        if fault.what in (OLDER, CLONE):
            others = [one for one in self.group.brokers if one is not victim]
            source = victim if fault.what == OLDER else chance.choice(others)
            copy = faults.copy_of(source, self.group.directory / "copy")
        if fault.what == OLDER and chance.random() < RESTART_SHARE:
            made.text += ", after a restart"
            faults.end(victim, killed=fault.killed)
            victim.start()
            wait_until(self.group.whole, timeout_s=HEAL_S, what="the group is whole after a restart")
        wait_acknowledged(self.traffic, len(self.traffic.acks()) + chance.randint(ACKS_MIN, ACKS_MAX))
        faults.end(victim, killed=fault.killed)
        if fault.what.startswith(BIT):
            made.text += f" ({faults.flip_bit(fault.what, store_of(victim), chance) or 'nothing to flip'})"
        else:
            faults.replace_by(victim, copy)
        if chance.random() < 0.5 and self.group.accepts_without(victim):
            wait_until(self._accepts_again(), timeout_s=HEAL_S, what="the others accept messages")
        self._begin_to_read()
        victim.start()

    def _accepts_again(self) -> Callable[[], bool]:
        before = len(self.traffic.acks())
        return lambda: len(self.traffic.acks()) > before + 20

    # Remedies

    def _follow(self, made: VolumeRound, done: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Follows the remedies that the brokers name, until `done`."""
        deadline = time.monotonic() + timeout_s
        while True:
            remedies: list[Callable[[], None]] = []
            wait_until(
                partial(self._done_or_remedy, done, remedies, made),
                timeout_s=max(deadline - time.monotonic(), 1),
                what=f"{what}, or a broker names a remedy",
            )
            if not remedies:
                return
            assert len(made.steps) <= STEPS_MAX, made.steps
            remedies[0]()

    def _begin_to_read(self) -> None:
        """What brokers write from now on is read for remedies."""
        self._read_from = {member.name: output_size(member) for member in self._members()}

    def _members(self) -> list[Member]:
        return [*self.group.controllers, *self.group.brokers]

    def _done_or_remedy(
        self, done: Callable[[], bool], remedies: list[Callable[[], None]], made: VolumeRound
    ) -> bool:
        for member in self._members():
            ended = not member.process.alive  # before its output is read: all of it is there then
            output = output_since(member, self._read_from[member.name])
            remedy = self._remedy(member, output, made, ended=ended)
            if remedy is not None:
                remedies.append(remedy)
                return True
        return done()

    def _remedy(
        self, member: Member, output: str, made: VolumeRound, *, ended: bool
    ) -> Callable[[], None] | None:
        """What this broker says must be done; None if it says nothing. Fails if the broker has ended and
        names no remedy."""
        commands = {verb: text for text, verb in COMMAND.findall(output)}
        if commands and member in self.group.brokers:
            verb = "adopt" if "adopt" in commands else "discard"
            made.steps.append(f"{member.name}: {commands[verb]}")
            return partial(self._settle, member, adopt=verb == "adopt")
        slave = COPIED.search(output)
        if slave is not None:
            made.steps.append(f"{member.name}: {slave[0]} its place")
            source = next(one for one in self.group.brokers if one.address == slave[1])
            return partial(self._copy, source, member)
        table = TABLE.search(output)
        if table is not None and ended:
            made.steps.append(f"{member.name}: remove {Path(table[1]).name} and its backup")
            return partial(self._remove_table, member, Path(table[1]))
        if EMPTIED.search(output):
            made.steps.append(f"{member.name}: empty its store")
            return partial(self._empty, member)
        assert not ended, f"{member.name} ended with {member.process.status} and names no remedy"
        return None

    def _settle(self, member: Member, *, adopt: bool) -> None:
        self._begin_to_read()
        why = self.group.settle(member, adopt=adopt)
        assert not why, f"{'adopt' if adopt else 'discard'} of {member.name} was rejected: {why}"

    def _empty(self, member: Member) -> None:
        member.process.stop()
        self._begin_to_read()
        faults.replace_by(member, None)
        member.start()

    def _remove_table(self, member: Member, path: Path) -> None:
        for name in (path, path.with_name(path.name + ".bak")):
            name.unlink(missing_ok=True)
        self._begin_to_read()
        member.start()

    def _copy(self, source: Member, target: Member) -> None:
        for member in (target, source):
            member.process.stop()
        self._begin_to_read()
        faults.replace_by(target, faults.copy_of(source, self.group.directory / "copy"))
        for member in (target, source):
            member.start()

    # The account

    def _judge(self, fault: VolumeFault, made: VolumeRound) -> None:
        """Checks that the group accepts messages, that all logs become equal, and that each acknowledged
        message is served, by the broker whose volume failed, too."""
        wait_until(self._accepts_again(), timeout_s=HEAL_S, what="the group accepts messages")
        if fault.victim in self.group.brokers and self.random.random() < FAILOVER_SHARE:
            made.steps.append(f"{fault.victim.name} leads")
            self.group.lead(fault.victim)
            wait_until(self._accepts_again(), timeout_s=HEAL_S, what="the new master accepts messages")
        self.traffic.pause()
        self.group.settled()
        try:
            self._follow(made, self._equal, timeout_s=REPAIR_S, what="all logs are equal")
        except AssertionError as error:
            made.error = str(error)
        master = self.group.settled()
        if fault.what == BIT + CONSUME_QUEUES:
            wait_until(self._queues_equal, timeout_s=REPAIR_S, what="all consume queues are equal")
        made.report = self._ledger.check_all(master, self.group.brokers, self.traffic.acks())
        self.traffic.resume()

    def _queues_equal(self) -> bool:
        first, *others = [faults.queues_of(store_of(member)) for member in self.group.brokers]
        return bool(first) and all(one == first for one in others)

    def _equal(self) -> bool:
        master = self.group.current_master()
        return (
            master is not None
            and self.group.whole()
            and not any(self.group.differing(member, master) for member in self.group.brokers)
        )
