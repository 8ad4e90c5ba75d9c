"""Makes a broker of a DLedger group the master or a slave, as the role of its peer says
(`DLedgerRoleChangeHandler`).

A slave has the broker id that follows from its peer's id. It learns the master's address from the
nameservers, whose response to a registration names it, and copies the master's tables. A new master registers
only when everything in its log is dispatched. So a slave that has a new leader registers several times:
RocketMQ's waits for its next regular registration, and copies from the former master until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.membership.role_steps import RoleSteps
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.services.long_polling import PullHoldService
from epochmq_broker.services.master_services import MasterServices
from epochmq_broker.tables.topics import TopicTable

FIND_MASTER_AFTER_S: Final = (0.5, 2.0, 8.0)
"""When a slave registers again after its leader has changed."""


class DLedgerRoles:
    """The parts of the broker that change with its role."""

    def __init__(
        self,
        live: LiveConfig,
        broker_id: int,
        topics: TopicTable,
        master_services: MasterServices,
        held_pulls: PullHoldService,
        registration: NameserverRegistration,
        slave_sync: SlaveSync,
        *,
        find_master_after_s: Sequence[float] = FIND_MASTER_AFTER_S,
    ) -> None:
        """`broker_id`: that of this broker as a slave."""
        self._live = live
        self._broker_id = broker_id
        self._registration = registration
        self._steps = RoleSteps(live, topics, master_services, held_pulls, registration, slave_sync)
        self._find_master_after_s = find_master_after_s
        self._timers: list[asyncio.TimerHandle] = []

    def become_master(self) -> None:
        """Makes this broker the master, after everything in its log is dispatched."""
        self.stop()
        self._steps.serve()

    def become_slave(self) -> None:
        """Makes this broker a slave; for a slave, its leader has changed. A nameserver names the master."""
        self.stop()
        loop = asyncio.get_running_loop()
        refresh = self._registration.refresh
        self._timers = [loop.call_later(after_s, refresh) for after_s in self._find_master_after_s]
        if self._steps.is_registering and self._live.current.broker_role == "SLAVE":
            return
        self._steps.yield_service(self._broker_id)
        self._steps.register()

    def stop(self) -> None:
        """Ends the search for a master."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []
