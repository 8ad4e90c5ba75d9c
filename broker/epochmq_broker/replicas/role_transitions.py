"""The steps by which a broker takes a role that the controller gave it (`changeToMaster`, `changeToSlave`).

Before any of them, at once when another master is heard of: the lease ends, no message is taken any more.

To become the master:

1. the log: see `ha.service`; from here on messages are taken under a lease
2. `brokerId=0`, `brokerRole=SYNC_MASTER`: requests are answered as by a master
3. stop copying the former master's tables, and set right where they and the log do not agree (#4771)
4. deliver delayed messages
5. tell the nameservers, at once, with the epoch in the version of the topics: of two masters they take the
   one with the greater (#6316)

To become a replica:

1. `brokerId` of the controller's, `brokerRole=SLAVE`; deliver no delayed messages; answer the pulls that wait
2. the log: follow; where, the master itself is asked (906), because a nameserver may still name its
   predecessor
3. copy the master's tables
4. tell the nameservers

Any step may be the last: the next call takes all of them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from epochmq_broker.config import LiveConfig
from epochmq_broker.delay_service import DelayService
from epochmq_broker.ha.master_checksums import MasterChecksumClient
from epochmq_broker.ha.service import HAService
from epochmq_broker.message_writer import MessageWriter
from epochmq_broker.processors.pull import PullProcessor
from epochmq_broker.registration import NameserverRegistration
from epochmq_broker.replicas.state_machine_types import MasterView
from epochmq_broker.replicas.write_lease import WriteLease
from epochmq_broker.slave_sync import SlaveSync
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.topics import TopicTable
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_controller import ExchangeHAInfoRequestHeader, ExchangeHAInfoResponseHeader
from epochmq_protocol.transport.client import RemotingClient

log = logging.getLogger(__name__)

ADDRESS_TIMEOUT_MS = 1000
ADDRESS_PAUSE_MIN_S, ADDRESS_PAUSE_MAX_S = 0.05, 2.0


@dataclass(frozen=True)
class ReplicaDependencies:
    """The broker's parts that change with its role."""

    live: LiveConfig
    store: MessageStore
    writer: MessageWriter
    ha: HAService
    topics: TopicTable
    delays: DelayService
    pull: PullProcessor
    registration: NameserverRegistration
    client: RemotingClient
    slave_sync: SlaveSync


class RoleTransitions:
    """Takes roles, one after another. `epoch` is that of the latest role, 0 before the first."""

    def __init__(self, parts: ReplicaDependencies, lease: WriteLease, clock_ms: Callable[[], float]) -> None:
        self.epoch = 0
        self._parts = parts
        self._lease = lease
        self._clock_ms = clock_ms
        self._delivering = False
        self._registering = False
        self._finder: asyncio.Task[None] | None = None
        self._found: tuple[str, str] | None = None
        """Where a master is, and where it said that it serves replicas."""

    async def take(self, view: MasterView, broker_id: int) -> None:
        """Takes the role that the view gives to this broker. EpochMQError, OSError or DiskFullError when that
        cannot be; then this broker serves as nobody."""
        if view.master_id == broker_id:
            await self._lead(view, broker_id)
        else:
            await self._follow(view, broker_id)

    async def stop(self) -> None:
        """Ends what goes on behind a role."""
        await self._stop_finding()

    async def _lead(self, view: MasterView, broker_id: int) -> None:
        parts = self._parts
        await self._stop_finding()
        self.epoch = view.epoch
        self._lease.begin(view.epoch)
        await parts.ha.become_master(view.epoch, view.members, view.set_epoch, broker_id=broker_id)
        parts.live.set_role(0, "SYNC_MASTER")
        parts.slave_sync.follow(None)
        parts.slave_sync.align_with_log()
        if not self._delivering:
            self._delivering = True
            parts.delays.start()
        self._tell()

    async def _follow(self, view: MasterView, broker_id: int) -> None:
        parts = self._parts
        await self._stop_finding()
        self._lease.end()
        self.epoch = view.epoch
        parts.live.set_role(broker_id, "SLAVE")
        if self._delivering:
            self._delivering = False
            parts.delays.stop()
        parts.pull.hold.release()
        parts.ha.master_checksums = MasterChecksumClient(parts.client, view.address) if view.address else None
        # The same master under another epoch: the connection to it stays.
        known = self._found[1] if self._found is not None and self._found[0] == view.address else None
        await parts.ha.become_replica(known, view.epoch, broker_id=broker_id)
        if view.address:
            self._finder = asyncio.create_task(self._find(view.address), name="find the master's HA address")
        parts.slave_sync.follow(view.address)
        self._tell()

    def _tell(self) -> None:
        parts = self._parts
        parts.topics.bump_version()
        if self._registering:
            parts.registration.refresh()
        else:
            self._registering = True
            parts.registration.start()

    async def _stop_finding(self) -> None:
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.cancel()
            await asyncio.gather(finder, return_exceptions=True)

    async def _find(self, address: str) -> None:
        """Asks the master where it serves replicas until it says so."""
        pause_s = ADDRESS_PAUSE_MIN_S
        while True:
            with contextlib.suppress(EpochMQError):
                command = request(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoRequestHeader())
                answer = await self._parts.client.call(address, command, ADDRESS_TIMEOUT_MS)
                if answer.code == ResponseCode.SUCCESS:
                    found = ExchangeHAInfoResponseHeader.decode(answer.ext)
                    # A broker that does not know yet that it is the master says nothing of itself.
                    if found.master_ha_address:
                        self._found = address, found.master_ha_address
                        self._parts.ha.follow(found.master_ha_address)
                        return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, ADDRESS_PAUSE_MAX_S)
