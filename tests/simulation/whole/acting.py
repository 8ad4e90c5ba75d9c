"""A group without controllers, whose slaves act for the master while it is away (RIP-32), and a second group
that takes what is due meanwhile.

The master's broker id is 0. The group elects no other one: while the master is away, the group accepts no
messages, and the slave with the smallest id serves consumers and delivers delayed messages to the other
group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from epochmq.client import Producer
from epochmq_broker.membership.acting.member_group import GroupRole
from epochmq_broker.membership.acting.member_group_service import MemberGroupService
from epochmq_broker.membership.modes.acting import ActingMasterMode
from epochmq_protocol.admin_api.results import MemberGroupState
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_admin import CreateTopicRequestHeader
from epochmq_protocol.topics import PERM_READ, PERM_WRITE
from epochmq_protocol.transport import RemotingClient
from tests.simulation.whole import members
from tests.simulation.whole.group import ACCEPT_WITHIN_S, BROKER_NAME, PROBE, Group
from tests.simulation.whole.hosts import Site
from tests.simulation.whole.liveness import LIVE_WITHIN_S
from tests.simulation.whole.members import BROKER_PORT, Settings
from tests.simulation.whole.workload import (
    SEND_TIMEOUT_MS,
    TOPIC,
    Book,
    PromiseBrokenError,
    send_delayed,
    start_consumer,
)

OTHER = "other"
"""The host and the group of the second master."""
DELAYER = "delayer-1"
DELAY_PAUSE_S = 0.25
ACT_WITHIN_S = 20.0
"""After so long without a master, a slave acts, and consumers have what it has."""
TOGETHER_MAX_S = 6.0
"""For so long a slave may act beside a master that is in service, while both reach the nameserver: until it
has polled. Connections that were cut are noticed after 3 s."""
CREATE_TIMEOUT_MS = 2000

ACTING: Settings = {
    "totalReplicas": 3,
    "inSyncReplicas": 2,
    "minInSyncReplicas": 2,
    "enableSlaveActingMaster": True,
    "enableRemoteEscape": True,
    "slaveReadEnable": True,
    "haSendHeartbeatInterval": 1000,
    "haHousekeepingInterval": 5000,
    "syncBrokerMetadataPeriod": 1000,
    "brokerHeartbeatInterval": 500,
    "brokerNotActiveTimeoutMillis": 3000,
}
"""What the operator sets for groups of a master and its slaves; time-outs are shorter."""
NAMESERVER: Settings = {
    "supportActingMaster": True,
    "notifyMinBrokerIdChanged": True,
    "scanNotActiveBrokerInterval": 1000,
}


class ActingGroup(Group):
    """A master and two slaves, and another group of one broker."""

    def __init__(self, site: Site, *, settings: Mapping[str, Any]) -> None:
        super().__init__(site, brokers=3, controllers=0, settings={**ACTING, **settings})
        self.nameserver_settings = NAMESERVER
        self.clients.append(DELAYER)
        self.others = [OTHER]
        self.other_settings: Settings = {}
        for name in (OTHER, DELAYER):
            site.host(name)
        self._together_s: dict[str, float] = {}

    @property
    def master(self) -> str:
        """The broker of id 0."""
        return self.brokers[0]

    @property
    def slaves(self) -> list[str]:
        """The other brokers, by their ids."""
        return self.brokers[1:]

    async def begin(self) -> None:
        """See `Group`. Both groups have the topic, so that delayed messages can leave."""
        self.start(self.nameserver)
        self.start(OTHER)
        for name in self.brokers:
            self.start(name)
        self._owned = [asyncio.create_task(self._supervise()), asyncio.create_task(self._watch_roles())]
        await asyncio.sleep(2.0)
        await self._create_topic()
        await self.wait_accepting()
        for name in self.clients:
            self.start(name)

    def settings_of(self, name: str) -> dict[str, Any]:
        """See `Group`."""
        number = self.brokers.index(name)
        role = "SYNC_MASTER" if number == 0 else "SLAVE"
        return {**self.settings, "brokerId": number, "brokerRole": role}

    def start(self, name: str) -> None:
        """See `Group`."""
        if name == OTHER:
            settings: Settings = {"namesrvAddr": self.nameservers[0], "brokerName": OTHER, "brokerId": 0}
            members.start_broker(self.site, OTHER, {**settings, **self.other_settings})
        elif name == DELAYER:
            self.site.start(DELAYER, self._send_delayed)
        else:
            super().start(name)

    async def _send_delayed(self) -> None:
        producer = Producer(self.nameservers, "delayers", timeout_ms=SEND_TIMEOUT_MS)
        number = 0
        while True:
            number += 1
            await send_delayed(self.site, producer, number, self.book)
            await asyncio.sleep(DELAY_PAUSE_S)

    async def _create_topic(self) -> None:
        created = asyncio.Event()
        header = CreateTopicRequestHeader(
            topic=TOPIC,
            default_topic="TBW102",
            read_queue_nums=2,
            write_queue_nums=2,
            perm=PERM_READ | PERM_WRITE,
            topic_filter_type="SINGLE_TAG",
        )

        async def create() -> None:
            client = RemotingClient()
            missing = [self.master, OTHER]
            while missing:
                address = f"{self.site.hosts[missing[0]].address}:{BROKER_PORT}"
                wanted = request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
                try:
                    found = await client.call(address, wanted, CREATE_TIMEOUT_MS)
                except EpochMQError:
                    found = None
                if found is not None and found.code == ResponseCode.SUCCESS:
                    missing.pop(0)
                else:
                    await asyncio.sleep(0.2)
            created.set()

        self.site.start("administrator", create, on=self.site.host(PROBE).name)
        async with asyncio.timeout(ACCEPT_WITHIN_S):
            await created.wait()

    # state

    def group_service(self, name: str) -> MemberGroupService | None:
        """The place of a running broker in its group."""
        service = self.service(name)
        if service is None:
            return None
        assert isinstance(service.mode, ActingMasterMode)
        return service.mode.group

    def role(self, name: str) -> GroupRole | None:
        """What a running broker is in its group."""
        found = self.group_service(name)
        return None if found is None else found.group.role

    def report(self, name: str) -> MemberGroupState | None:
        """What a running broker says of its place in the group."""
        service = self.service(name)
        if service is None:
            return None
        assert isinstance(service.mode, ActingMasterMode)
        return service.mode.reporter.state()

    def acting(self) -> list[str]:
        """The slaves that act for the master."""
        return [name for name in self.slaves if self.role(name) is GroupRole.ACTING_MASTER]

    def reaches(self, *names: str) -> bool:
        """Whether these run, and each reaches all the others."""
        processes = [self.site.processes.get(name) for name in names if name != PROBE]
        if any(one is None or not one.alive or one.paused or not one.host.has_power for one in processes):
            return False
        cuts = self.site.network.cuts
        return not any((one, other) in cuts for one in names for other in names if one != other)

    async def _watch_roles(self) -> None:
        """Checks that no slave acts for long beside a master that is in service."""
        while True:
            await asyncio.sleep(0.1)
            now_s = self.site.loop.time()
            serves = self.role(self.master) is GroupRole.MASTER
            for name in self.slaves:
                both = serves and self.role(name) is GroupRole.ACTING_MASTER
                if not (both and self.reaches(self.master, name, self.nameserver)):
                    self._together_s.pop(name, None)
                elif now_s - self._together_s.setdefault(name, now_s) > TOGETHER_MAX_S:
                    self.site.broken.append(f"{name} acts beside the master for {TOGETHER_MAX_S:g} s")

    def describe(self) -> str:
        """See `Group`."""
        told = [f"{name}: {self.report(name)}" for name in self.brokers]
        return "; ".join([super().describe(), *told])

    # checks

    async def wait_roles(self) -> None:
        """Waits until the master serves, and no slave acts. PromiseBrokenError: that does not happen."""
        end_s = self.site.loop.time() + ACCEPT_WITHIN_S
        while self.role(self.master) is not GroupRole.MASTER or self.acting():
            if self.site.loop.time() > end_s:
                raise PromiseBrokenError(f"the roles are not as before the faults: {self.describe()}")
            await asyncio.sleep(0.2)

    async def check_live(self) -> None:
        """Checks it while some outages last. The group accepts messages if the master and a slave reach the
        nameserver, a client and each other, or names a reason. If the master is away, a slave acts for it.
        PromiseBrokenError: it does not."""
        least = [self.nameserver, PROBE]
        if any(self.reaches(self.master, slave, *least) for slave in self.slaves):
            if await self.accepts(LIVE_WITHIN_S):
                return
            reasons = self.named_reasons()
            self.site.trace.tell(f"the master and a slave are there, and the group waits: {reasons}")
            self.excused += 1
            if not reasons:
                raise PromiseBrokenError(
                    f"the master and a slave are there, and no message was acknowledged within "
                    f"{LIVE_WITHIN_S:g} s: {self.describe()}"
                )
        elif self._is_away() and all(self.reaches(one, *least) or self._is_gone(one) for one in self.slaves):
            if not all(self._is_gone(one) for one in self.slaves):
                self.site.trace.tell("the master is away")
                await self.check_acting()
        else:
            self.site.trace.tell("too few members reach each other")

    def _is_gone(self, name: str) -> bool:
        """Whether the nameserver hears nothing of a broker."""
        return not self.reaches(name) or (name, self.nameserver) in self.site.network.cuts

    def _is_away(self) -> bool:
        return self._is_gone(self.master)

    def named_reasons(self) -> list[str]:
        """What brokers say that they wait for."""
        reports = {name: self.report(name) for name in self.brokers}
        return [
            f"{name}: {report.isolated_because}"
            for name, report in reports.items()
            if report is not None and report.isolated_because
        ]

    async def check_acting(self) -> None:
        """Checks that a slave acts, and that a new consumer gets from it every acknowledged message that it
        has. PromiseBrokenError: not within ACT_WITHIN_S."""
        end_s = self.site.loop.time() + ACT_WITHIN_S
        while not self.acting():
            if self.site.loop.time() > end_s:
                raise PromiseBrokenError(f"the master is away, and no slave acts for it: {self.describe()}")
            await asyncio.sleep(0.2)
        wanted = Book(acknowledged=[], places=self.book.places)
        service = self.service(self.acting()[0])
        assert service is not None
        for one in self.book.acknowledged:
            if one.broker_name != BROKER_NAME:
                continue
            queue = service.store.lookup.existing_queue(TOPIC, one.queue_id)
            if queue is not None and one.queue_offset < service.store.max_offset(queue):
                wanted.acknowledged.append(one)
        reader = start_consumer(self.site, "reader-of-slave", self.nameservers, wanted, "outage-readers")
        await self.wait_consumed(wanted)
        self.site.kill(reader.name)
