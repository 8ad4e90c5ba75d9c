"""Simulates the promises between the brokers of a group: a replica polls its master, as
`membership.controlled.promise_polls` does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from epochmq_broker.membership.controlled import state_machine_types as messages
from epochmq_broker.membership.controlled.write_promises import (
    POLL_MS,
    MasterPromises,
    Promised,
    PromiseRequest,
    StampAnswer,
)
from tests.simulation.clockwork import Call

if TYPE_CHECKING:
    from tests.simulation.replicas import GroupBroker


class SimulatedPromises:
    """The promises of one broker, to its master and of its replicas."""

    def __init__(self, broker: GroupBroker) -> None:
        self._broker = broker
        self.reset()

    def reset(self) -> None:
        """Forgets what is in memory only, at a start."""
        processes = self._broker.processes
        self.of_replicas = MasterPromises(processes[0] if processes else "")

    # A replica ----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Promises to the master. A broker that was elected asks whether its former master has stopped."""
        broker, core = self._broker, self._broker.core
        broker.later(POLL_MS, self.poll)
        if core is None or core.identity is None or core.role is None or core.role.leads:
            return
        now_ms, role = broker.clock(), core.role
        core.promises.read(now_ms)
        if core.follows is not None:
            number, known = core.promises.promise(role.epoch, now_ms), role.epoch
        elif (elected := core.elected_epoch) is not None:
            number, known = 0, elected
        else:
            return
        if role.address is None:
            return
        request = PromiseRequest(core.identity.id, role.epoch, number, known)
        master, life = broker.world.broker_at(role.address), broker.life

        def back(response: tuple[str, StampAnswer] | None) -> None:
            if response is None or broker.core is not core or broker.life != life:
                return
            process, answer = response
            to = Promised(process, request.epoch)
            if answer.number:
                core.promises.received(to, answer.number, broker.clock())
            if answer.has_stopped:
                core.promises.released(to)
                broker.feed(messages.TimeAdvanced())

        broker.world.call(broker, master, master.promises.promised, back, request)

    # The master ---------------------------------------------------------------------------------------------

    def promised(self, call: Call, request: PromiseRequest) -> None:
        """A replica promises, or asks."""
        broker = self._broker
        answer = self.of_replicas.answer(broker.lease, request, broker.clock())
        if request.known_epoch > request.epoch:
            broker.feed(messages.MasterMayHaveChanged())
        self.count()
        broker.world.answer(call, (self.of_replicas.process, answer))

    def count(self) -> None:
        """Counts the promises of all possible successors."""
        broker, core = self._broker, self._broker.core
        lease, sync = broker.lease, broker.sync_state
        until_ms, was_open = -math.inf, broker.writable
        if sync is not None and core is not None and core.knows_set_of(lease.epoch):
            until_ms = self.of_replicas.until_ms(sync)
        lease.record_promises(until_ms)
        if not was_open and broker.writable:
            broker.world.check_no_other_writer(broker)
            broker.settle()
