"""The steps of a role change that controllers and Raft have in common (RocketMQ's `changeToMaster` and
`changeToSlave`).

Between these steps, the availability mode makes the log the master's, or follows the master's log.
"""

from __future__ import annotations

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.services.long_polling import PullHoldService
from epochmq_broker.services.master_services import MasterServices
from epochmq_broker.tables.topics import TopicTable


class RoleSteps:
    """The steps of one broker. They may be taken again at any time."""

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicTable,
        master_services: MasterServices,
        held_pulls: PullHoldService,
        registration: NameserverRegistration,
        slave_sync: SlaveSync,
    ) -> None:
        self._live = live
        self._topics = topics
        self._master_services = master_services
        self._held_pulls = held_pulls
        self._registration = registration
        self._slave_sync = slave_sync
        self.is_registering = False
        """Whether the broker has had a role, and registers."""

    def serve(self) -> None:
        """Once the log is the master's: takes the role, stops copying the former master's tables and corrects
        them where they contradict the log (#4771), starts the services of the master, and registers."""
        self._live.set_role(0, "SYNC_MASTER")
        self._slave_sync.follow(None)
        self._slave_sync.align_with_log()
        self._master_services.start()
        self.register()

    def yield_service(self, broker_id: int) -> None:
        """Takes the role of a replica, stops the services of the master, and answers the held pulls."""
        self._live.set_role(broker_id, "SLAVE")
        self._master_services.stop()
        self._held_pulls.release()

    async def unregister(self) -> None:
        """Unregisters from the nameservers, until `register` is called."""
        self.is_registering = False
        await self._registration.stop()

    def register(self) -> None:
        """Registers with the nameservers at once, with the epoch in the version of the topics: of two masters
        they prefer the one with the greater version (#6316)."""
        self._topics.bump_version()
        if self.is_registering:
            self._registration.refresh()
        else:
            self.is_registering = True
            self._registration.start()
