"""Simulates the heartbeats of a broker to its controllers, by which a master also gets its write lease. The
order of steps is that of `replicas.heartbeats`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochmq_broker.membership.controlled import state_machine_types as messages
from epochmq_broker.replication.ha import log_doubt
from epochmq_controller.replica_groups.state_machine_types import LEASE_OF_ANOTHER_MS, LEASE_OF_REFUSED_MS
from tests.simulation.brokers import CLUSTER
from tests.simulation.controllers import ControllerHost

if TYPE_CHECKING:
    from tests.simulation.replicas import GroupBroker

IDLE_BEAT_MS = 300
BEAT_EARLY_MS = 1
"""Heartbeats that are due within this time are sent at once."""
GIVE_UP_MS = 10_000


class SimulatedHeartbeats:
    """The heartbeats of one broker."""

    def __init__(self, broker: GroupBroker) -> None:
        self.number = 0
        """The number of the present series of heartbeats; `send_now` begins another one."""
        self._broker = broker
        self.reset()

    def reset(self) -> None:
        """Forgets what is in memory only, at a start."""
        self._last_given_up: tuple[int, int] | None = None
        """The last epoch given up because of a failed disk, and when."""
        self._started_ms = self._broker.clock()

    def send_now(self) -> None:
        """Sends heartbeats now, and begins to count the interval again."""
        self.number += 1
        self.send(self.number)

    def send(self, number: int) -> None:
        """Sends heartbeats to every controller; a master requests its lease with them. Does nothing if
        another series has begun since."""
        if number != self.number:
            return
        broker = self._broker
        lease, began_ms = broker.lease, broker.clock()
        asking = lease.epoch is not None and not lease.fenced
        broker.later(self._pause_ms(began_ms), self._send_if_due, number, began_ms)
        if broker.identity is None:
            return
        if self._is_suspended():
            return
        if asking and lease.leader_grants and broker.disk.failed and self._may_give_up():
            broker.world.note(f"{broker.name} gives its mastership up: its disk has failed")
            lease.fence()
            asking = False
        for controller in broker.world.controllers.values():
            self._send_to(controller, asking)
        if lease.needs_renewal(broker.clock()):
            broker.feed(messages.LeaseMissing())

    def _send_if_due(self, number: int, began_ms: float) -> None:
        """Sends the next heartbeats, unless a grant since `began_ms` has postponed them."""
        if number != self.number:
            return
        pause_ms = self._pause_ms(began_ms)
        if pause_ms > BEAT_EARLY_MS:
            self._broker.later(pause_ms, self._send_if_due, number, began_ms)
        else:
            self.send(number)

    def _pause_ms(self, began_ms: float) -> float:
        """How long to wait for the next heartbeats after those of `began_ms`."""
        lease, due_ms = self._broker.lease, began_ms + IDLE_BEAT_MS
        if lease.epoch is not None and not lease.fenced:
            due_ms = min(due_ms, lease.next_request_ms(began_ms))
        return max(due_ms - self._broker.clock(), 0.0)

    def _is_suspended(self) -> bool:
        broker = self._broker
        return log_doubt.suspends_heartbeats(
            grants=broker.lease.leader_grants,
            in_doubt=broker.may_lack_acknowledged,
            gives_up_epoch=broker.core.gives_up_epoch if broker.core is not None else None,
            since_start_ms=broker.clock() - self._started_ms,
        )

    def _may_give_up(self) -> bool:
        """Whether the master fences itself now because of its failed disk
        (`ControllerHeartbeats._give_up`)."""
        epoch, now_ms = self._broker.lease.epoch, self._broker.clock()
        assert epoch is not None
        before = self._last_given_up
        if before is not None and (epoch == before[0] or now_ms - before[1] < GIVE_UP_MS):
            return False
        self._last_given_up = epoch, now_ms
        return True

    def _send_to(self, controller: ControllerHost, asking: bool) -> None:
        broker = self._broker
        world, lease = broker.world, broker.lease
        assert broker.identity is not None
        beat = {
            "timeout_ms": world.beat_timeout_ms,
            "address": broker.address,
            "epoch": broker.written_epoch,
            "max_offset": broker.log.end,
            "election_priority": None,
            "in_doubt": broker.may_lack_acknowledged,
            "confirmed_by_all": broker.confirm_offset if world.reports_confirmed else -1,
            "lineage": ",".join(broker.processes),
        }
        replica = (CLUSTER, broker.group, broker.identity.id)
        channel = broker.channels[controller.name]
        epoch, sent_ms = lease.epoch, broker.clock()
        if not asking or epoch is None:
            given_up = broker.core.gives_up_epoch if broker.core is not None else None
            fenced = epoch if lease.fenced else given_up
            world.send(broker, controller, controller.on_heartbeat, channel, replica, beat, fenced)
            return

        def back(lease_ms: int | None) -> None:
            if lease_ms == LEASE_OF_REFUSED_MS:
                broker.feed(messages.HeartbeatNotCounted())
            elif lease_ms == LEASE_OF_ANOTHER_MS:
                lease.withdraw_statement(epoch)
            elif lease_ms:
                lease.record_grant(epoch, sent_ms, lease_ms, from_set=True)
                world.check_only_writer(broker)
                broker.settle()

        world.call(broker, controller, controller.heard_asking, back, channel, replica, beat, None, epoch)
