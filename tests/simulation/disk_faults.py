"""Injects faults into the disks of a group's brokers, and states what must survive them.

The promise depends on the flush type, and on which disks fail:

- SYNC_FLUSH: an acknowledged message is on the disk of every member of the SyncStateSet. It survives any
  power loss, even that of the whole site.
- ASYNC_FLUSH: what survives on any member of the SyncStateSet survives in the group. A power loss that spares
  one member loses nothing. One that hits all members loses what none of them had flushed (or the kernel had
  written by itself), and nothing else.
- A disk that lies about flushes, or whose bits change, may cost acknowledged messages when its broker becomes
  master. The replicas that have these messages then detect and report the loss, and none of them truncates
  its log.

`sure` is the promised prefix of the log; a power loss shortens it by exactly what may be lost.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from epochmq_controller.replica_groups.events import ElectMasterEvent
from tests.simulation import fault_plan
from tests.simulation.clockwork import Event
from tests.simulation.controller_world import AnyBroker, ControllerWorld, decoded
from tests.simulation.fault_plan import Plan
from tests.simulation.records import read_record

if TYPE_CHECKING:
    from tests.simulation.replicas import GroupBroker

DISK_RATES = {
    "power": 5.0,
    "flush_fails": 2.0,
    "slow_flush": 3.0,
    "broken_disk": 2.0,
    "full_volume": 2.0,
}
ACK_ON_ITS_WAY_MS = 3_000
NAMES = ("a1", "a2", "a3")


def streams(rng: random.Random, found: Plan) -> list[Iterator[Event]]:
    """Draws a seed's disk and clock faults, and the flush type."""
    until_ms = found.faults_ms
    found.options["sync_flush"] = rng.random() < 0.5
    rates = fault_plan.mixture(rng, DISK_RATES, 0.4)
    if rng.random() < 0.08:
        found.options["liar"] = rng.choice(NAMES)
    if rng.random() < 0.08:
        rates["rot"] = 2.0

    def who(r: random.Random) -> str:
        return "master a" if r.random() < 0.4 else r.choice(NAMES)

    def whose_power(r: random.Random) -> tuple[str, ...]:
        luck = r.random()
        if luck < 0.4:
            return (who(r),)
        if luck < 0.6:
            return tuple(r.sample(NAMES, 2))
        return NAMES if luck < 0.85 else (*NAMES, "controllers")

    makers: dict[str, fault_plan.Make] = {
        "power": lambda r: (whose_power(r), round(r.choice((50, 600, 4000)) * (0.5 + r.random()))),
        "flush_fails": lambda r: (who(r),),
        "slow_flush": lambda r: (who(r), round(r.uniform(500, 5000))),
        "broken_disk": lambda r: (who(r), round(r.uniform(100, 3000))),
        "full_volume": lambda r: (who(r), round(r.uniform(100, 3000))),
        "rot": lambda r: (who(r), round(r.choice((50, 600)) * (0.5 + r.random()))),
    }
    return [fault_plan.stream(rng, kind, rate, until_ms, makers[kind]) for kind, rate in rates.items()]


class DiskWorld(ControllerWorld):
    """A world of groups whose brokers have disks."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.sure: dict[str, bytearray] = {"a": bytearray(), "b": bytearray()}
        self.acknowledged: dict[str, dict[int, int]] = {"a": {}, "b": {}}
        """The end offset of each acknowledged message."""
        self.consumed: dict[tuple[str, int, int], int] = {}
        self.proposed_at: dict[tuple[str, int], float] = {}
        """When the election of a broker was proposed last, by group and id."""
        self.lost_power_at: dict[str, float] = {}
        self.lost_disk_at: dict[str, float] = {}
        self.ordered: set[tuple[str, int | None]] = set()
        """Elections that an administrator has ordered."""
        self.damages = 0
        """How often a disk has lost flushed bytes."""
        super().__init__(plan, verbose=verbose)

    def proposing(self, bodies: tuple[bytes, ...]) -> None:
        """Remembers when the election of a broker was proposed. The broker may lose power before the election
        is committed, and the controllers cannot know what it loses then."""
        for event in map(decoded, bodies):
            if isinstance(event, ElectMasterEvent) and event.new_master_broker_id is not None:
                self.proposed_at[event.broker_name, event.new_master_broker_id] = self.now

    # The promise --------------------------------------------------------------------------------------------

    def survives(self, broker: GroupBroker) -> int:
        """How much of the promised prefix is in a broker's log."""
        data, sure = broker.log.data, self.sure[broker.group]
        known = min(len(data), len(sure))
        if data[:known] == sure[:known]:
            return known
        return next(at for at in range(known) if data[at] != sure[at])

    def shorten(self, group: str, hit: list[AnyBroker]) -> None:
        """After a power loss with ASYNC_FLUSH, bytes that no member has any more are no longer promised."""
        known = self.tables.get(group)
        if known is None or hit[0].disk.sync_flush:
            return
        sets = [known.sync_state_set | known.former_members]
        sets += [
            one.new_set
            for one in self.asked_sets
            if one.name == group and one.set_epoch == known.sync_state_set_epoch and one.new_set
        ]
        self.promise_until(group, min(self._best(group, members) for members in sets))

    def _best(self, group: str, members: frozenset[int]) -> int:
        found = [self.broker_of(group, one) for one in members]
        known = [self.survives(cast("GroupBroker", one)) for one in found if one is not None]
        return max(known, default=len(self.sure[group]))

    def has_just_lost_bytes(self, broker: GroupBroker) -> bool:
        """Whether an acknowledgement may be under way for bytes that the broker has lost since."""
        lost_at = self.lost_disk_at.get(broker.name, -math.inf)
        if not broker.disk.sync_flush:
            lost_at = max(lost_at, self.lost_power_at.get(broker.name, -math.inf))
        return self.now - lost_at < ACK_ON_ITS_WAY_MS or broker.disk.damaged

    def promise_until(self, group: str, offset: int) -> None:
        """Shortens the promise to this offset."""
        sure = self.sure[group]
        end = 0
        while (record := read_record(sure, end)) is not None and record.end <= offset:
            end = record.end
        if end == len(sure):
            return
        self.count_event("logs shortened")
        acked = self.acknowledged[group]
        lost = [number for number, until in acked.items() if until > end]
        self.note(f"{len(lost)} acknowledged messages of {group} are lost, from {end} on")
        self.count_event("acknowledged messages lost with the site", len(lost))
        for number in lost:
            del acked[number]
        at = end
        while (record := read_record(sure, at)) is not None:
            self.consumed.pop((group, record.queue, record.offset), None)
            at = record.end
        del sure[end:]

    def excuse(self, broker: GroupBroker) -> None:
        """Shortens the promise if an elected broker may legally lack bytes: an administrator has ordered its
        election although it was in doubt, its disk is damaged, or it is elected because that of the only
        member is."""
        ordered = (broker.group, broker.broker_id) in self.ordered and broker.may_lack_acknowledged
        if broker.disk.damaged or (ordered and not broker.disk.sync_flush):
            self.promise_until(broker.group, self.survives(broker))
        group = self.tables.get(broker.group)
        if group is None or broker.broker_id not in group.former_members:
            return
        members = [self.broker_of(broker.group, one) for one in group.sync_state_set]
        if any(one.disk.damaged for one in members if one is not None):
            self.promise_until(
                broker.group, self._best(broker.group, group.sync_state_set | group.former_members)
            )

    def has_lost_power_before_its_election(self, broker: GroupBroker) -> bool:
        """Whether the broker may have lost unflushed bytes after the heartbeat by which it was chosen. It
        will not lead under that election."""
        proposed_at = self.proposed_at.get((broker.group, broker.broker_id or 0), self.now)
        chosen_by = proposed_at - self.beat_timeout_ms
        return self.lost_power_at.get(broker.name, -math.inf) >= chosen_by and not broker.disk.sync_flush

    def diverged(self, broker: AnyBroker, text: str) -> None:
        """A broker reports that its log has diverged from its master's below the confirmed offset. Only a
        damaged disk may cause that, or the loss of all that a SyncStateSet had (ASYNC_FLUSH), because a log
        outside of the set then has more. An administrator compares the two, and clears this one."""
        if not self.damages and not self.event_counts["logs shortened"]:
            self.fail(f"{broker.name}: {text}")
        self.count_event("divergences reported")
        self.note(f"{broker.name} reports: {text}")
        self.at(500, self.do_wipe, broker.name)

    def do_wipe(self, who: str) -> None:
        """Gives a replica an empty disk."""
        raise NotImplementedError

    # Faults of disks -------------------------------------------------------------------------------------

    def replica_named(self, who: str) -> GroupBroker:
        """The broker of this name, or a group's master."""
        return cast("GroupBroker", self.broker(who))

    def end_faults(self) -> None:
        """Also restarts the brokers whose disks have failed, which would happen some seconds later."""
        super().end_faults()
        for broker in map(self.replica_named, self.brokers):
            if broker.up and broker.disk.failed:
                self.restart(broker, broker.life)

    def restart(self, broker: GroupBroker, life: int) -> None:
        """Restarts a broker, unless it was restarted meanwhile."""
        if broker.up and broker.life == life:
            broker.die()
            self.at(100, self._start, broker, broker.life)

    def do_power(self, names: tuple[str, ...], down_ms: float) -> None:
        """Cuts the power of these machines at one instant."""
        if "controllers" in names:
            self.do_blackout(down_ms)
        hit = list(dict.fromkeys(self.replica_named(one) for one in names if one != "controllers"))
        self.count_event("power losses of brokers" if len(hit) < len(NAMES) else "power losses of a group")
        for broker in hit:
            self.cut_power(broker, down_ms * (0.5 + self.random.random()))
        for group in {broker.group for broker in hit}:
            self.shorten(group, [one for one in hit if one.group == group])

    def cut_power(self, broker: GroupBroker, down_ms: float, share: float | None = None) -> None:
        """Cuts the power of one machine; the given share of its unflushed pages survives, by default a random
        one."""
        kept = broker.confirmed_kept, broker.offsets_kept
        if broker.up:
            broker.die()
        if self.random.random() < 0.5:
            broker.confirmed_kept, broker.offsets_kept = kept
        self.lost_power_at[broker.name] = self.now
        lost = broker.lose_power(share)
        self.damages += broker.disk.damaged
        self.note(f"{broker.name} loses power, and {lost} bytes of its log, which ends at {broker.log.end}")
        self.at(down_ms, self._start, broker, broker.life)

    def do_rot(self, who: str, down_ms: float) -> None:
        """A bit of a broker's log changes while the broker is down."""
        broker = self.replica_named(who)
        if broker.up:
            broker.die()
            self.at(down_ms, self._start, broker, broker.life)
        if broker.disk.rot(broker.log, self.random):
            self.damages += 1
            self.count_event("bits rotted")
            self.note(f"a bit of the log of {broker.name} has changed")

    def do_designate(self, group: str, broker_id: int) -> None:
        self.ordered.add((group, broker_id))
        super().do_designate(group, broker_id)

    def do_flush_fails(self, who: str) -> None:
        """Makes the next flush of a broker's log fail."""
        self.replica_named(who).disk.fails_next = True

    def do_slow_flush(self, who: str, duration_ms: float) -> None:
        """Makes flushes slow."""
        self.count_event("slow broker disks")
        self.replica_named(who).disk.slow_until = self.now + duration_ms

    def do_broken_disk(self, who: str, duration_ms: float) -> None:
        """Makes every call fail with EIO."""
        broker = self.replica_named(who)
        broker.disk.broken_until = self.now + duration_ms
        self.note(f"the disk of {broker.name} fails every call for {duration_ms:.0f} ms")

    def do_full_volume(self, who: str, duration_ms: float) -> None:
        """Makes the disk full (ENOSPC): it accepts a part of a write, and nothing new."""
        broker = self.replica_named(who)
        broker.disk.full_until = self.now + duration_ms
        self.note(f"the disk of {broker.name} is full for {duration_ms:.0f} ms")
