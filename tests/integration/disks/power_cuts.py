"""Cuts the power of groups under RocketMQ's producer, in rounds, and counts the lost messages of each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.disks import audits
from tests.integration.disks.ack_ledger import AckLedger, LossReport
from tests.integration.disks.group import GroupOnImages, ImageGroup
from tests.support.cluster import Settings
from tests.support.group_processes import Member

ACKS_MIN, ACKS_MAX = 100, 1500
"""A round's power cut happens after a random number of new acknowledgements in this range."""
RECOVERY_TIMEOUT_S = 180.0
MASTER_SHARE = 0.5
"""The share of cuts of one broker that hit the master."""
ROUNDS_PER_GROUP = 25
"""After so many rounds a new group starts, so that logs stay short."""
ALL, ONE = "all", "one"
NEVER, AT_END, EACH = "never", "end", "each"
"""When the audit runs."""
FLUSH = {ALL: "SYNC_FLUSH", ONE: "ASYNC_FLUSH"}


@dataclass
class PowerCut:
    """The result of one round."""

    description: str
    seed: int
    loss_report: LossReport = field(default_factory=LossReport)
    findings: list[str] = field(default_factory=list)
    """The audit's findings."""
    audited: bool = False
    error: str | None = None
    """Why the group did not get back in sync."""
    froze_s: float = 0.0
    healed_s: float = 0.0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether no message was lost and no replica differs."""
        return not (self.loss_report.lost or self.loss_report.divergent or self.findings or self.error)

    def plain(self) -> dict[str, Any]:
        """What a result file keeps of the round, as JSON values."""
        found = self.loss_report
        return {
            "group": self.seed,
            "acknowledged": found.acknowledged,
            "lost": len(found.lost),
            "divergent": bool(found.divergent),
            "audited": self.audited,
            "findings": len(self.findings),
            "healed": self.error is None,
            "in_sync_s": round(self.healed_s, 2),
            "frozen_s": round(self.froze_s, 2),
            "seconds": round(self.seconds, 1),
            "text": str(self),
        }

    def __str__(self) -> str:
        found = self.loss_report
        text = (
            f"{self.description}: {found.acknowledged} acknowledged, {len(found.lost)} lost, "
            f"{len(found.divergent)} divergent, {len(self.findings)} findings; "
            f"in sync again after {self.healed_s:.1f} s, {self.seconds:.1f} s in all"
        )
        details = [*map(str, found.lost[:3]), *found.divergent, *self.findings[:5]]
        return "\n  ".join([text, *details, *([self.error] if self.error else [])])


@dataclass
class PowerCutRounds:
    """Runs power cuts: `PowerCutRounds(folder, ALL, seed).run(10)` cuts the power of a whole group with
    SYNC_FLUSH ten times. With ONE, it cuts the power of one broker of a group with ASYNC_FLUSH; the other
    members stop cleanly and start together with it. `make_group` takes a directory, settings of the brokers
    and a seed.

    The audit runs after every cut, or once for each group after its members have stopped, or never; in
    Spark or in this process."""

    directory: Path
    scope: str
    seed: int
    audit: str = AT_END
    spark: bool = True
    stop_at_failure: bool = True
    report_progress: Callable[[str], None] = print
    make_group: Callable[[Path, Settings, int], GroupOnImages] = ImageGroup
    cuts: list[PowerCut] = field(default_factory=list)

    def run(self, rounds: int) -> None:
        """Runs this number of rounds. A failed round ends the run, or its group if `stop_at_failure` is
        False."""
        seed = self.seed
        while len(self.cuts) < rounds and (not self.stop_at_failure or all(cut.passed for cut in self.cuts)):
            self._run_group(seed, min(ROUNDS_PER_GROUP, rounds - len(self.cuts)))
            seed += 1

    def _run_group(self, seed: int, rounds: int) -> None:
        """Runs the rounds of one group, up to the first failed one."""
        directory = self.directory / f"group-{seed}"
        settings = {"flushDiskType": FLUSH[self.scope]}
        with self.make_group(directory, settings, seed) as group:
            self.report_progress(f"group {seed}: {', '.join(group.kinds)}")
            ack_ledger = AckLedger(group.differences)
            for number in range(rounds):
                cut = PowerCut("", seed)
                self.cuts.append(cut)
                began = time.monotonic()
                try:
                    self._round(group, ack_ledger, cut, last=number == rounds - 1)
                except AssertionError as error:
                    cut.error = f"{error}\n{group.logs(4000)}"
                cut.seconds = time.monotonic() - began
                self.report_progress(f"group {seed}, cut {number + 1} of {rounds}: {cut}")
                if not cut.passed:
                    self._keep_evidence(group, directory)
                    return

    def _round(self, group: GroupOnImages, ack_ledger: AckLedger, cut: PowerCut, *, last: bool) -> None:
        before = len(group.producer_journal.acks)
        group.wait_acknowledged(before + group.random.randint(ACKS_MIN, ACKS_MAX))
        first = self._cut(group, cut)
        began = time.monotonic()
        cut.description += f"; start of {group.start_all(first=first, timeout_s=RECOVERY_TIMEOUT_S)}"
        cut.healed_s = time.monotonic() - began
        group.producer_journal.read()
        group.wait_acknowledged(len(group.producer_journal.acks) + 20, timeout_s=RECOVERY_TIMEOUT_S)
        group.pause()
        master = group.wait_settled()
        check = ack_ledger.check_all if last else ack_ledger.check_new
        cut.loss_report = check(master, group.brokers, group.producer_journal.acks)
        if last:
            group.stop_all()
        if self.audit == EACH or (last and self.audit == AT_END):
            cut.findings = self._audit(group)
            cut.audited = True
        if not last:
            group.resume()

    def _cut(self, group: GroupOnImages, cut: PowerCut) -> Member | None:
        """Cuts the power, and returns a broker whose log may lack bytes that others have."""
        master = group.master()
        if self.scope == ALL:
            cut.description = f"power of {group.SCOPE}"
            cut.froze_s = group.cut_all()
            return group.random.choice(group.brokers)
        victim = master if master is not None and group.random.random() < MASTER_SHARE else None
        victim = victim or group.random.choice(group.brokers)
        cut.description = f"power of {victim.name} ({'the master' if victim is master else 'a replica'})"
        cut.froze_s = group.cut_one(victim)
        return victim

    def _audit(self, group: GroupOnImages) -> list[str]:
        return audits.audit(
            [group.state_folder(member) for member in group.brokers],
            self.directory / "audit",
            spark=self.spark,
        )

    def _keep_evidence(self, group: GroupOnImages, directory: Path) -> None:
        """Copies logs and state files of a failed round from the disks."""
        for member in group.brokers:
            target = directory / "evidence" / member.name
            shutil.copytree(
                group.state_folder(member),
                target,
                ignore=shutil.ignore_patterns("lost+found", "index", "consumequeue"),
            )
