"""Makes a broker of a DLedger group the master or a slave, as the role of its peer says
(`DLedgerRoleChangeHandler`).

A slave has the broker id that follows from its peer's id. It learns the master's address from the
nameservers, whose response to the next registration names it, and copies the master's tables.
"""

from __future__ import annotations

from epochmq_broker.config import LiveConfig
from epochmq_broker.long_polling import PullHoldService
from epochmq_broker.master_services import MasterServices
from epochmq_broker.registration import NameserverRegistration
from epochmq_broker.slave_sync import SlaveSync
from epochmq_broker.topics import TopicTable


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
    ) -> None:
        """`broker_id`: that of this broker as a slave."""
        self._live = live
        self._broker_id = broker_id
        self._topics = topics
        self._master_services = master_services
        self._held_pulls = held_pulls
        self._registration = registration
        self._slave_sync = slave_sync
        self._registering = False

    def become_master(self) -> None:
        """Makes this broker the master, after everything in its log is dispatched."""
        self._live.set_role(0, "SYNC_MASTER")
        self._slave_sync.follow(None)
        self._slave_sync.align_with_log()
        self._master_services.start()
        self._register()

    def become_slave(self) -> None:
        """Makes this broker a slave. Its master is found by a nameserver."""
        if self._registering and self._live.current.broker_role == "SLAVE":
            return
        self._live.set_role(self._broker_id, "SLAVE")
        self._master_services.stop()
        self._held_pulls.release()
        self._register()

    def _register(self) -> None:
        self._topics.bump_version()
        if self._registering:
            self._registration.refresh()
        else:
            self._registering = True
            self._registration.start()
