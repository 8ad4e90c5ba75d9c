"""Rounds of power cuts under RocketMQ's producer, and what each of them lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.disks import audits
from tests.integration.disks.account import Account, Ledger
from tests.integration.disks.group import ImageGroup
from tests.support.group_traffic import wait_confirmed
from tests.support.replica_group import Member

ACKS_MIN, ACKS_MAX = 100, 1500
"""A round's power fails after so many new acknowledgements, a number that is drawn."""
HEAL_S = 90.0
MASTER_CUTS = 0.5
LIFE_ROUNDS = 25
"""After so many rounds a new group begins, so that logs stay short."""
ALL, ONE = "all", "one"
NEVER, AT_END, EACH = "never", "end", "each"
"""When the audit runs."""
FLUSH = {ALL: "SYNC_FLUSH", ONE: "ASYNC_FLUSH"}


@dataclass
class Cut:
    """One round: what failed, and what was owed afterwards."""

    what: str
    seed: int
    account: Account = field(default_factory=Account)
    findings: list[str] = field(default_factory=list)
    """What the audit found."""
    audited: bool = False
    fault: str | None = None
    """Why the group did not become whole again."""
    froze_s: float = 0.0
    healed_s: float = 0.0
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing was lost and nothing differs."""
        return not (self.account.lost or self.account.divergent or self.findings or self.fault)

    def __str__(self) -> str:
        found = self.account
        text = (
            f"{self.what}: {found.acknowledged} acknowledged, {len(found.lost)} lost, "
            f"{len(found.divergent)} divergent, {len(self.findings)} findings; "
            f"in sync again after {self.healed_s:.1f} s, {self.seconds:.1f} s in all"
        )
        details = [*map(str, found.lost[:3]), *found.divergent, *self.findings[:5]]
        return "\n  ".join([text, *details, *([self.fault] if self.fault else [])])


@dataclass
class CutRounds:
    """`CutRounds(folder, ALL, seed).run(10)`: ten cuts of a whole group that flushes before it acknowledges;
    with ONE, of one broker of a group that does not, whose other members stop in order and start together
    with it.

    The audit runs after every cut, or once for each group, when its members have stopped, or never."""

    directory: Path
    scope: str
    seed: int
    audit: str = AT_END
    stop_at_fault: bool = True
    tell: Callable[[str], None] = print
    cuts: list[Cut] = field(default_factory=list)

    def run(self, rounds: int) -> None:
        """So many cuts. A round that ends badly is the last one, or at least its group's."""
        seed = self.seed
        while len(self.cuts) < rounds and (not self.stop_at_fault or all(cut.good for cut in self.cuts)):
            self._life(seed, min(LIFE_ROUNDS, rounds - len(self.cuts)))
            seed += 1

    def _life(self, seed: int, rounds: int) -> None:
        """The cuts of one group, until one ends badly."""
        directory = self.directory / f"group-{seed}"
        settings = {"flushDiskType": FLUSH[self.scope]}
        with ImageGroup(directory, settings, seed) as group:
            self.tell(f"group {seed}: {', '.join(group.kinds)}")
            ledger = Ledger()
            for number in range(rounds):
                cut = Cut("", seed)
                self.cuts.append(cut)
                began = time.monotonic()
                try:
                    self._round(group, ledger, cut, last=number == rounds - 1)
                except AssertionError as error:
                    cut.fault = f"{error}\n{group.logs(4000)}"
                cut.seconds = time.monotonic() - began
                self.tell(str(cut))
                if not cut.good:
                    self._keep(group, directory)
                    return

    def _round(self, group: ImageGroup, ledger: Ledger, cut: Cut, *, last: bool) -> None:
        before = len(group.producer_journal.acks)
        group.wait_acknowledged(before + group.random.randint(ACKS_MIN, ACKS_MAX))
        first = self._cut(group, cut)
        began = time.monotonic()
        cut.what += f"; start of {group.start_all(first=first, timeout_s=HEAL_S)}"
        cut.healed_s = time.monotonic() - began
        group.producer_journal.read()
        group.wait_acknowledged(len(group.producer_journal.acks) + 20, timeout_s=HEAL_S)
        group.pause()
        master = wait_confirmed(group)
        take = ledger.whole_account if last else ledger.account
        cut.account = take(master, group.brokers, group.producer_journal.acks)
        if last:
            group.stop_all()
        if self.audit == EACH or (last and self.audit == AT_END):
            cut.findings = self._audit(group)
            cut.audited = True
        if not last:
            group.resume()

    def _cut(self, group: ImageGroup, cut: Cut) -> Member | None:
        """Cuts the power; whose log is the most likely to lack something that others have."""
        master = group.master()
        if self.scope == ALL:
            cut.what = "power of all six"
            cut.froze_s = group.cut_all()
            return group.random.choice(group.brokers)
        victim = master if master is not None and group.random.random() < MASTER_CUTS else None
        victim = victim or group.random.choice(group.brokers)
        cut.what = f"power of {victim.name} ({'the master' if victim is master else 'a replica'})"
        cut.froze_s = group.cut_one(victim)
        return victim

    def _audit(self, group: ImageGroup) -> list[str]:
        return audits.audit([group.store(member) for member in group.brokers], self.directory / "audit")

    def _keep(self, group: ImageGroup, directory: Path) -> None:
        """Keeps the evidence of a round that ended badly: epoch files and logs, as they are on the disks
        now."""
        for member in group.brokers:
            target = directory / "evidence" / member.name
            shutil.copytree(
                group.store(member),
                target,
                ignore=shutil.ignore_patterns("lost+found", "index", "consumequeue"),
            )
