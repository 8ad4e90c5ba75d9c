"""Simulates whole groups: controllers, brokers that run production's decisions, and clients that send and
consume.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from epochmq_broker.replication.ha.epochs import Epochs
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_controller.replica_groups.events import AlterSyncStateSetEvent
from epochmq_controller.replica_groups.replicated_state import ReplicaGroup
from tests.simulation import controller_world, disk_faults, fault_plan
from tests.simulation.clockwork import Event
from tests.simulation.controller_world import REPLACE_MS, SETTLE_MS, AnyBroker
from tests.simulation.disk_faults import DiskWorld
from tests.simulation.fault_plan import Plan
from tests.simulation.records import QUEUES, Record, RecordLog, read_record
from tests.simulation.replicas import NOT_CAUGHT_UP_MS, GroupBroker, Role, brief

FAULTS_MS = 38_000
CONSUME_MS = 250
CONSUMED_AT_ONCE = 20


def plan(seed: int) -> Plan:
    """Draws a seed's plan: as for controllers, with one group, and brokers that die more often."""
    found = controller_world.plan(seed, salt="groups", groups=1, faults_ms=FAULTS_MS)
    rng = random.Random(f"options of {seed}")
    found.options |= {"min_in_sync": rng.choice((1, 1, 2)), "slow_copies": rng.random() < 0.3}
    wipes = fault_plan.stream(
        rng, "wipe", rng.choice((0, 0, 6)), found.faults_ms, lambda r: (f"a{r.randint(1, 3)}",)
    )
    found.events = fault_plan.sequence(
        [iter(found.events), wipes, *disk_faults.streams(rng, found), *absences(found)]
    )
    return found


def absences(plan: Plan) -> list[Iterator[Event]]:
    """All controllers stop, or the master does not reach them, while the brokers reach each other."""
    rng = random.Random(f"absences of {plan.seed}")
    return [
        fault_plan.stream(
            rng,
            kind,
            rng.choice((0, 3, 8)),
            plan.faults_ms,
            lambda r: (round(r.choice((500, 2000, 6000)) * (0.5 + r.random())),),
        )
        for kind in ("stop_controllers", "cut_off_from_controllers")
    ]


class GroupWorld(DiskWorld):
    """The world of a plan. `sure` is the prefix of the log that was confirmed or acknowledged; none of it may
    ever change or be missing."""

    broker_type = GroupBroker

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.sent: dict[int, tuple[str, int, int]] = {}
        self.gone: set[int] = set()
        """Messages that a new master did not have; they must not come back."""
        self.reports_confirmed: bool = plan.options.get("reports_confirmed", True)
        """Whether brokers report what every member has. Brokers of earlier releases do not."""
        self.compares_logs: bool = plan.options.get("compares_logs", True)
        """Whether masters answer with the checksums of their logs. RocketMQ's brokers do not."""
        self.slow_copies: bool = plan.options.get("slow_copies", False)
        self.sending = True
        """Whether clients send."""
        super().__init__(plan, verbose=verbose)
        self.at(CONSUME_MS, self._consume)

    def counts(self) -> dict[str, int]:
        acked = sum(map(len, self.acknowledged.values()))
        return super().counts() | {"acknowledged": acked, "consumed": len(self.consumed)}

    # A life -------------------------------------------------------------------------------------------------

    def live_through(self) -> None:
        """Runs the faults, then a quiet time. After it a master writes, all replicas are in sync, and a dead
        master is replaced. At the end the logs are equal, and consumers have read every acknowledged
        message."""
        self.plan(self.wanted.events)
        self.run(self.wanted.faults_ms)
        self.end_faults()
        self.run(self.now + SETTLE_MS)
        self.check_working()
        self.live_without_replicas()
        masters = [broker for group in self.acked if (broker := self.master_of(group)) is not None]
        for master in masters:
            master.die()
        self.run(self.now + REPLACE_MS)
        self.check_working(dead=len(masters))
        for master in masters:
            master.start()
        self.run(self.now + 1000)
        self.frozen = True
        self.run(max(self.now + 2000, self.wanted.faults_ms + self.wanted.quiet_ms))
        self.check_logs()
        for group in self.acked:
            self.check_group(group)

    def live_without_replicas(self) -> None:
        """One replica of each group dies: it is removed from the set, and messages are acknowledged without
        it."""
        dead = []
        for group in self.acked:
            master = self.master_of(group)
            dead.append(next(b for b in self.brokers.values() if b.group == group and b is not master))
            dead[-1].die()
        self.run(self.now + NOT_CAUGHT_UP_MS + 1000)
        known = {group: len(acked) for group, acked in self.acknowledged.items()}
        self.run(self.now + 500)
        for group in self.acked:
            if len(self.acknowledged[group]) == known[group]:
                self.fail(f"{group} acknowledges nothing while one replica is dead: {self.shown(group)}")
        for broker in dead:
            broker.start()
        self.run(self.now + 4000)
        self.check_working()

    def check_group(self, group: str) -> None:
        """Checks a group at the end of a quiet time."""
        brokers = [broker for broker in self.brokers.values() if broker.group == group]
        master = self.master_of(group)
        for broker in brokers:
            if broker.log.data != brokers[0].log.data:
                self.fail(f"the logs of {broker.name} and {brokers[0].name} differ")
            if broker.epochs.entries != brokers[0].epochs.entries:
                self.fail(f"epochs of {broker.name}: {broker.epochs.entries}, {brokers[0].epochs.entries}")
            broker.dispatch(broker.log.end)
            for record in (record for queue in broker.log.queues for record in queue):
                if self.sent.get(record.number) != (group, record.queue, record.offset):
                    self.fail(f"nobody sent {record} of {broker.name}")
        if master is None:
            self.fail(f"{group} has no master")
            return
        have = master.log.numbers()
        missing = self.acknowledged[group].keys() - have
        if missing:
            self.fail(f"the master of {group} lacks acknowledged messages {sorted(missing)[:5]}")
        unread = have - {number for (of, _, _), number in self.consumed.items() if of == group}
        if unread and self.event_counts["logs shortened"]:
            # Consumers had read lost messages, whose places in the queue went to these.
            self.count_event("messages skipped after a loss", len(unread))
        elif unread:
            self.fail(f"consumers of {group} did not get messages {sorted(unread)[:5]}")

    # Clients ------------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        """A consumer of each group continues to read, from any broker that takes itself for the master."""
        self.at(CONSUME_MS, self._consume)
        for broker in self.brokers.values():
            if broker.up and not broker.paused and broker.role is Role.MASTER:
                for queue in range(QUEUES):
                    self._consume_queue(broker, queue)

    def _consume_queue(self, broker: GroupBroker, queue: int) -> None:
        at = broker.offset(queue)
        records = broker.log.queues[queue]
        flushed = broker.disk.flushed if broker.disk.sync_flush else broker.log.end
        limit = flushed if broker.shown is None else min(flushed, broker.shown)
        if at > len(records):
            self.fail(f"{broker.name}: the consumer of queue {queue} is at {at}, its end is {len(records)}")
        for record in records[at : at + CONSUMED_AT_ONCE]:
            if record.end > limit:
                break
            self.check_consumed(broker, record)
            at += 1
        broker.take_offsets({queue: at})

    # Promises -----------------------------------------------------------------------------------------------

    def check_consumed(self, broker: GroupBroker, record: Record) -> None:
        """Every read at a queue offset finds the same message, and none that was truncated."""
        key = (broker.group, record.queue, record.offset)
        if self.consumed.setdefault(key, record.number) != record.number:
            self.fail(f"{broker.name} gives {record}, but {self.consumed[key]} was there before")
        if record.number in self.gone:
            self.fail(f"{broker.name} gives {record}, which was truncated")

    def check_confirmed(self, broker: GroupBroker, offset: int) -> None:
        """Checks that logs are byte-identical up to the confirmed offset, in complete records: a replica may
        acknowledge a part of a record, and truncate it when it reconnects."""
        sure, data = self.sure[broker.group], broker.log.data
        known = min(len(sure), offset)
        if offset > len(data):
            self.fail(f"{broker.name} confirms {offset}, but its log ends at {len(data)}")
        if data[:known] != sure[:known] and whole_end(data, offset) > differs_at(data, sure):
            if broker.sync_state is None and self.event_counts["logs shortened"]:
                return  # the replica has not compared its log with that of the master that lost it
            self.fail(f"{broker.name} confirms {offset} of a log that differs from what was confirmed before")
        if broker.sync_state is None:
            return  # the master reported this offset to a replica, but may have lost the bytes since
        while (record := read_record(data, len(sure))) is not None and record.end <= offset:
            sure += data[len(sure) : record.end]

    def acknowledge_message(self, broker: GroupBroker, number: int, end: int) -> None:
        """A broker acknowledges a client's message."""
        self.acknowledged[broker.group][number] = end
        data = broker.log.data[:end]
        holders = [one for one in self.brokers.values() if one.log.data[:end] == data]
        lost = [one for one in self.brokers.values() if self.has_just_lost_bytes(one)]
        if len({*holders, *lost}) < broker.settings.min_in_sync_replicas:
            self.fail(f"{broker.name} acknowledges {number}, which only {[b.name for b in holders]} have")
        if broker.disk.sync_flush:
            self.check_flushed(broker, number, end)
        self.check_confirmed(broker, end)

    def check_flushed(self, broker: GroupBroker, number: int, end: int) -> None:
        """Checks, with SYNC_FLUSH, that every member of the SyncStateSet has the message on its disk."""
        group = self.tables.get(broker.group)
        sync = broker.sync_state
        if group is None or sync is None:
            return
        for one in sync.members_or_proposed & group.sync_state_set:
            member = self.broker_of(broker.group, one)
            if member is not None and not member.disk.damaged and member.disk.flushed < end:
                self.fail(
                    f"{broker.name} acknowledges {number}, which ends at {end}, but {member.name}, "
                    f"a member of the SyncStateSet, has flushed its log only up to {member.disk.flushed}"
                )

    def check_alter(self, group: ReplicaGroup | None, event: AlterSyncStateSetEvent) -> None:
        """Checks also that a master which becomes the only member has all confirmed bytes on its disk."""
        super().check_alter(group, event)
        new_set = event.new_sync_state_set
        if group is None or len(new_set) > 1 or new_set == group.sync_state_set:
            return
        name, (broker_id,) = group.broker_name, new_set
        broker = self.broker_of(name, broker_id)
        if broker is not None and not broker.disk.damaged and broker.disk.flushed < len(self.sure[name]):
            self.fail(
                f"{broker.name} is the only member, and has flushed {broker.disk.flushed} of "
                f"{len(self.sure[name])} confirmed bytes"
            )

    def check_elected(self, group: ReplicaGroup, broker_id: int) -> None:
        """Checks that the elected broker was in sync and has all confirmed bytes, and that no other broker
        may write."""
        name = group.broker_name
        if group.master_epoch > 0 and broker_id not in group.electable_members | group.former_members:
            self.fail(f"{name}: {broker_id} is elected, but was not in sync: {self.shown(name)}")
        broker = self.broker_of(name, broker_id)
        if broker is None:
            self.fail(f"{name}: {broker_id} is elected, but nobody has this id")
            return
        if broker_id in group.former_members | group.eligible_members:
            # Its log is the newest of those that may have confirmed bytes. Messages that the new master never
            # had come back with it; none of them was acknowledged.
            self.gone -= broker.log.numbers()
        self.excuse(broker)
        sure = self.sure[name]
        if broker.log.data[: len(sure)] != sure and not self.has_lost_power_before_its_election(broker):
            self.fail(f"{broker.name} is elected without all that was confirmed: {self.shown(name)}")
        for other in self.brokers.values():
            if other.group == name and other is not broker and other.holds_lease:
                self.fail_if_clocks_are_sound(
                    f"{name}: {broker_id} is elected while {other.name} has a lease"
                )

    def check_new_master(self, broker: GroupBroker) -> None:
        """Checks that a new master has all confirmed bytes, and none that an earlier master lacked. (A broker
        that learns of a mastership too late gets no lease for it.)"""
        group = self.tables.get(broker.group)
        if group is not None and group.master_epoch > (broker.lease.epoch or 0):
            self.count_event("masterships learned of too late")
            return
        for other in self.brokers.values():
            if other.group == broker.group and other is not broker and other.writable:
                self.fail_if_clocks_are_sound(f"{broker.name} becomes master while {other.name} may write")
        if broker.disk.damaged:  # it may also resume its mastership, without an election
            self.excuse(broker)
        sure = self.sure[broker.group]
        if broker.log.data[: len(sure)] != sure:
            self.fail(
                f"{broker.name} becomes master without all that was confirmed, epochs {brief(broker.epochs)}"
            )
        have = broker.log.numbers()
        back = have & self.gone
        if back:
            self.fail(f"{broker.name} becomes master with messages {sorted(back)[:5]}, which were truncated")
        self.gone |= {number for number, sent in self.sent.items() if sent[0] == broker.group} - have

    def check_cut(self, broker: AnyBroker, point: int) -> None:
        """Checks that no confirmed byte is truncated."""
        data, sure = broker.log.data, self.sure[broker.group]
        first = read_record(data, point)
        if first is not None and data[point : first.end] == sure[point : first.end]:
            self.fail(f"{broker.name} cuts its log at {point}, where {first} is confirmed")

    def check_consumer_offsets(self, broker: GroupBroker) -> None:
        """Checks that no consumer offset is ahead of the log of a new master."""
        for queue, offset in broker.all_offsets().items():
            if offset > len(broker.log.queues[queue]):
                self.fail(f"{broker.name}: the consumer of queue {queue} is at {offset}, ahead of the log")

    def do_wipe(self, who: str) -> None:
        """A replica loses its disk and its identity, if it is in no SyncStateSet and in no proposed one."""
        broker = self.brokers[who]
        group, name = self.tables.get(broker.group), broker.broker_id
        counted = [
            b.sync_state.members_or_proposed for b in self.brokers.values() if b.sync_state is not None
        ]
        now = group.sync_state_set_epoch if group is not None else -1
        pending = [asked.new_set for asked in self.asked_sets if asked.set_epoch == now and asked.new_set]
        if (
            group is None
            or group.master_epoch == 0
            or any(name in one for one in [group.sync_state_set, group.former_members, *counted, *pending])
        ):
            return
        self.count_event("disks lost")
        if broker.up:
            broker.die()
        broker.log, broker.epochs = RecordLog(), Epochs()
        broker.disk.replaced()
        self.lost_disk_at[broker.name] = self.now
        broker.doubt = broker.doubt_kept = LogDoubt()
        broker.confirmed_kept, broker.offsets_kept = 0, {}
        broker.identity = broker.application = None
        broker.processes = []
        self.note(f"{broker.name} loses its disk")
        self.at(100, self._start, broker, broker.life)

    def do_stop_controllers(self, for_ms: float) -> None:
        """All controllers stop for a while."""
        self.count_event("absences of all controllers")
        for name in self.controllers:
            self.do_pause(name, for_ms)

    def do_cut_off_from_controllers(self, for_ms: float) -> None:
        """The master and the controllers do not reach each other; the replicas reach both."""
        master = self.master_of("a")
        if master is None:
            return
        self.count_event("masters cut off from the controllers")
        for controller in self.controllers.values():
            self._cut(master, controller, for_ms)
            self._cut(controller, master, for_ms)

    def do_retire(self, group: str) -> None:
        master = self.master_of(group)
        if master is not None and master.up and not master.paused:
            master.fence()


def whole_end(data: bytearray, limit: int) -> int:
    """The end of the last complete record before an offset."""
    at = 0
    while (record := read_record(data, at)) is not None and record.end <= limit:
        at = record.end
    return at


def differs_at(one: bytearray, two: bytearray) -> int:
    """The offset of the first byte that differs."""
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
