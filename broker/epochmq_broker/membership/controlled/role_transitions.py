"""Takes the role that the controllers gave a broker, step by step (RocketMQ's `changeToMaster` and
`changeToSlave`).

Before any step, as soon as the broker learns of another master, its lease ends and it accepts no more
messages.

To become the master:

1. Make the log the master's (`ha.service`). From here on the broker accepts messages under a lease.
2. Set `brokerId=0` and `brokerRole=SYNC_MASTER`, so that requests are served as by a master.
3. Stop copying the former master's tables, and correct them where they contradict the log (#4771).
4. Deliver delayed messages.
5. Register with the nameservers at once, with the epoch in the version of the topics: of two masters they
   prefer the one with the greater version (#6316).

To become a replica:

1. Set `brokerId` to the controllers' id and `brokerRole=SLAVE`, stop delivering delayed messages, and answer
   the held pulls.
2. Follow the master's log. The broker asks the master itself for its HA address (906), because a nameserver
   may still name the former master.
3. Copy the master's tables.
4. Register with the nameservers.

The broker may stop after any step: the next call takes all steps again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.config.clock import boot_ms
from epochmq_broker.membership.controlled.state_machine_types import MasterView
from epochmq_broker.membership.controlled.write_lease import WriteLease
from epochmq_broker.membership.ha_info import exchange_ha_info
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.membership.role_steps import RoleSteps
from epochmq_broker.replication.ha.master_checksums import MasterChecksumClient
from epochmq_broker.replication.ha.service import HAService
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.services.long_polling import PullHoldService
from epochmq_broker.services.master_services import MasterServices
from epochmq_broker.tables.topics import TopicTable
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.transport.client import RemotingClient
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

ADDRESS_TIMEOUT_MS = 1000
ADDRESS_PAUSE_MIN_S, ADDRESS_PAUSE_MAX_S = 0.05, 2.0


@dataclass(frozen=True)
class ReplicaDependencies:
    """The components of the broker that change with its role."""

    live: LiveConfig
    store: MessageStore
    writer: MessageWriter
    ha: HAService
    topics: TopicTable
    master_services: MasterServices
    held_pulls: PullHoldService
    registration: NameserverRegistration
    client: RemotingClient
    slave_sync: SlaveSync


class RoleTransitions:
    """Takes one role after another. The epoch of the latest one is the settings' `master_epoch`."""

    def __init__(self, components: ReplicaDependencies, lease: WriteLease) -> None:
        self._components = components
        self._lease = lease
        self._steps = RoleSteps(
            components.live,
            components.topics,
            components.master_services,
            components.held_pulls,
            components.registration,
            components.slave_sync,
        )
        self._address_search: asyncio.Task[None] | None = None
        self._known_ha_address: tuple[str, str] | None = None
        """(the address of a master, the HA address that it reported)."""

    async def take(self, view: MasterView, broker_id: int) -> None:
        """Takes the role that the view gives to this broker. Raises EpochMQError, OSError or DiskFullError;
        the broker is then neither master nor replica."""
        if view.master_id == broker_id:
            await self._become_master(view, broker_id)
        else:
            await self._become_replica(view, broker_id)

    async def leave(self, broker_id: int) -> None:
        """Leaves the present role, and takes none: the broker id belongs to another store. The nameservers
        must not list this broker under it."""
        components = self._components
        await self._stop_address_search()
        self._lease.end()
        self._steps.yield_service(broker_id)
        components.slave_sync.follow(None)
        await components.ha.leave_role()
        await self._steps.unregister()

    async def stop(self) -> None:
        """Ends the background work of the present role."""
        await self._stop_address_search()

    async def _become_master(self, view: MasterView, broker_id: int) -> None:
        components = self._components
        await self._stop_address_search()
        components.live.master_epoch = view.epoch
        self._lease.note_lapse(boot_ms())
        self._lease.begin(view.epoch)
        await components.ha.become_master(
            view.epoch, view.members, view.set_epoch, broker_id=broker_id, least=view.least
        )
        self._steps.serve()

    async def _become_replica(self, view: MasterView, broker_id: int) -> None:
        components = self._components
        await self._stop_address_search()
        self._lease.end()
        components.live.master_epoch = view.epoch
        self._steps.yield_service(broker_id)
        components.ha.compare_with(
            MasterChecksumClient(components.client, view.address) if view.address else None
        )
        # If it is the same master under another epoch, the HA connection stays.
        found = self._known_ha_address
        ha_address = found[1] if found is not None and found[0] == view.address else None
        await components.ha.become_replica(ha_address, view.epoch, broker_id=broker_id)
        if view.address:
            self._address_search = asyncio.create_task(
                self._find_ha_address(view.address), name="find the master's HA address"
            )
        components.slave_sync.follow(view.address)
        self._steps.register()

    async def _stop_address_search(self) -> None:
        search, self._address_search = self._address_search, None
        if search is not None:
            search.cancel()
            await asyncio.gather(search, return_exceptions=True)

    async def _find_ha_address(self, address: str) -> None:
        """Asks the master for its HA address until it responds."""
        pause_s = ADDRESS_PAUSE_MIN_S
        while True:
            with contextlib.suppress(EpochMQError):
                found = await exchange_ha_info(self._components.client, address, ADDRESS_TIMEOUT_MS)
                if found.master_ha_address:
                    self._known_ha_address = address, found.master_ha_address
                    self._components.ha.follow(found.master_ha_address)
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, ADDRESS_PAUSE_MAX_S)
