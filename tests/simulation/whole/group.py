"""A replica group with its controllers, nameserver and clients, as one site."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from epochmq.client import Producer
from epochmq_broker.broker import Broker
from epochmq_broker.config.clock import boot_ms
from epochmq_controller.controller.server import ControllerServer
from tests.simulation.whole import members
from tests.simulation.whole.hosts import Host, Process, Site
from tests.simulation.whole.members import CONTROLLER_PORT, NAMESERVER_PORT, Settings
from tests.simulation.whole.workload import Book, PromiseBrokenError, send, start_consumer, start_producer

RESTART_S = 1.0
WATCH_S = 0.02
ACCEPT_WITHIN_S = 40.0
"""A group whose hosts, links and processes are all sound accepts messages after so long at the latest."""
CONSUME_WITHIN_S = 60.0
BROKER_NAME = "group"
DLEDGER_PORT = 40911
PROBE = "probe"
"""The host of the client that asks whether the group accepts messages."""

CONTROLLED: Settings = {
    "enableControllerMode": True,
    "allAckInSyncStateSet": True,
    "inSyncReplicas": 2,
    "minInSyncReplicas": 2,
    "haMaxTimeSlaveNotCatchup": 3000,
    "checkSyncStateSetPeriod": 500,
    "haSendHeartbeatInterval": 1000,
    "haHousekeepingInterval": 5000,
    "slaveReadEnable": True,
    "syncBrokerMetadataPeriod": 1000,
    "syncControllerMetadataPeriod": 2000,
    "controllerHeartBeatTimeoutMills": 3000,
    "brokerHeartbeatInterval": 500,
}
"""What the operator sets for groups of three and more replicas under controllers."""


class Group:
    """The processes of one replica group. Those that end by themselves are started again."""

    def __init__(
        self,
        site: Site,
        *,
        brokers: int,
        controllers: int,
        settings: Mapping[str, Any],
        dledger: bool = False,
    ) -> None:
        """`dledger`: the brokers have a DLedger log, and elect their leader themselves."""
        self.dledger = dledger
        self.site, self.book = site, Book()
        self.nameserver = "ns"
        self.controllers = [f"n{number}" for number in range(controllers)]
        self.brokers = [f"b{number + 1}" for number in range(brokers)]
        self.clients = ["producer-1", "producer-2", "consumer-1"]
        self.others: list[str] = []
        """The brokers of other groups."""
        self.nameserver_settings: Settings = {}
        for name in (self.nameserver, *self.controllers, *self.brokers, *self.clients):
            site.host(name)
        self.nameservers = [f"{site.host(self.nameserver).address}:{NAMESERVER_PORT}"]
        addresses = [f"{site.host(name).address}:{CONTROLLER_PORT}" for name in self.controllers]
        self.settings: dict[str, Any] = {
            "namesrvAddr": self.nameservers[0],
            "brokerName": BROKER_NAME,
            **({**CONTROLLED, "controllerAddr": ";".join(addresses)} if controllers else {}),
            **settings,
        }
        self.down: Counter[str] = Counter()
        """The processes that must not run, and how many faults keep them from it."""
        self.exits = 0
        self.excused = 0
        """How often the group accepted no message during an outage, and named a reason."""

    @property
    def members(self) -> list[str]:
        """The names of all processes but the clients."""
        return [self.nameserver, *self.controllers, *self.brokers, *self.others]

    # life

    async def begin(self) -> None:
        """Starts everything, and waits until the group accepts messages."""
        for name in (self.nameserver, *self.controllers):
            self.start(name)
        await asyncio.sleep(1.0)
        for name in self.brokers:
            self.start(name)
        self._owned = [asyncio.create_task(self._supervise()), asyncio.create_task(self._watch())]
        await self.wait_accepting()
        for name in self.clients:
            self.start(name)

    def settings_of(self, name: str) -> dict[str, Any]:
        """The settings of one broker."""
        if not self.dledger:
            return self.settings
        hosts = [self.site.hosts[one] for one in self.brokers]
        peers = [f"n{number}-{host.address}:{DLEDGER_PORT}" for number, host in enumerate(hosts)]
        return {
            **self.settings,
            "enableDLegerCommitLog": True,
            "dLegerGroup": BROKER_NAME,
            "dLegerPeers": ";".join(peers),
            "dLegerSelfId": f"n{self.brokers.index(name)}",
            "slaveReadEnable": True,
        }

    def start(self, name: str) -> None:
        """Starts a process."""
        site = self.site
        if name == self.nameserver:
            members.start_nameserver(site, name, self.nameserver_settings)
        elif name in self.controllers:
            members.start_controller(site, name, self.controllers)
        elif name in self.brokers:
            members.start_broker(site, name, self.settings_of(name))
        elif name.startswith("producer"):
            start_producer(site, name, self.nameservers, self.book)
        else:
            start_consumer(site, name, self.nameservers, self.book)

    @contextlib.contextmanager
    def kept_down(self, names: Iterable[str]) -> Iterator[None]:
        """Keeps processes from running; the last one that does it starts them."""
        kept = list(names)
        self.down.update(kept)
        yield
        self.down.subtract(kept)
        for name in kept:
            self.ensure_running(name)

    def ensure_running(self, name: str) -> None:
        """Starts a process unless it runs, or must not."""
        process = self.site.processes.get(name)
        if (process is not None and process.alive) or self.down[name]:
            return
        host: Host = self.site.hosts[name]
        if host.has_power:
            self.start(name)

    async def _supervise(self) -> None:
        """Starts ended processes again, as a supervisor or Kubernetes does."""
        while True:
            await asyncio.sleep(RESTART_S)
            for name in (*self.members, *self.clients):
                process = self.site.processes.get(name)
                if process is not None and not process.alive and not self.down[name]:
                    self.exits += 1
                    self.ensure_running(name)

    async def _watch(self) -> None:
        """Checks often that at most one broker acknowledges."""
        while True:
            await asyncio.sleep(WATCH_S)
            writers = self.writers()
            if len(writers) > 1:
                self.site.broken.append(f"{' and '.join(writers)} may acknowledge at the same time")

    # state

    def service(self, name: str) -> Broker | None:
        """The broker object of a running process."""
        process: Process | None = self.site.processes.get(name)
        if process is None or not process.alive or process.service is None:
            return None
        service = process.service
        assert isinstance(service, Broker)
        return service

    def controller(self, name: str) -> ControllerServer | None:
        """The controller object of a running process."""
        process = self.site.processes.get(name)
        if process is None or not process.alive or process.service is None:
            return None
        assert isinstance(process.service, ControllerServer)
        return process.service

    def writers(self) -> list[str]:
        """The brokers that may acknowledge messages now."""
        now_ms = boot_ms()
        found = []
        for name in self.brokers:
            service = self.service(name)
            if service is None:
                continue
            now = service.live.standing.capabilities
            if now.is_master and now.may_acknowledge(now_ms) and now.writes_until_ms != float("inf"):
                found.append(name)
        return found

    def masters(self) -> list[str]:
        """The brokers that take themselves for the master."""
        found = []
        for name in self.brokers:
            service = self.service(name)
            if service is not None and service.live.standing.capabilities.is_master:
                found.append(name)
        return found

    def counts(self) -> dict[str, int]:
        """Numbers of this run."""
        book = self.book
        lost = {
            key: sum(host.disk.counts[key] for host in self.site.hosts.values()) for key in ("pages lost",)
        }
        return {
            "acknowledged": len(book.acknowledged),
            "delayed": len(book.delayed),
            "failed sends": book.failed_sends,
            "delivered": sum(map(len, book.delivered.values())),
            "redelivered": book.redelivered,
            "exits": self.exits,
            "waits with a reason": self.excused,
            **lost,
        }

    # checks

    async def wait_accepting(self) -> None:
        """Waits until a message is acknowledged. PromiseBrokenError after ACCEPT_WITHIN_S."""
        if not await self.accepts(ACCEPT_WITHIN_S):
            raise PromiseBrokenError(
                f"everything is sound, and no message was acknowledged within {ACCEPT_WITHIN_S:g} s; "
                f"masters: {self.masters()}, writers: {self.writers()}, {self.describe()}"
            )

    async def accepts(self, within_s: float) -> bool:
        """Waits until a new client's message is acknowledged. Returns whether one was in time."""
        deadline_s = self.site.loop.time() + within_s
        producer = Producer(self.nameservers, "probe", timeout_ms=2000)
        number = 0
        client = self.site.host(PROBE)
        done = asyncio.Event()

        async def probe() -> None:
            nonlocal number
            while True:
                number += 1
                body = b"probe-%d-%d" % (int(self.site.loop.time() * 1000), number)
                acknowledged = await send(self.site, producer, body, self.book)
                if acknowledged is not None and acknowledged.broker_name == BROKER_NAME:
                    done.set()
                    return
                await asyncio.sleep(0.2)

        process = self.site.start(f"probe-{self.site.trace.events}", probe, on=client.name)
        try:
            async with asyncio.timeout(within_s):
                await done.wait()
        except TimeoutError:
            return False
        finally:
            self.site.kill(process.name)
        assert self.site.loop.time() <= deadline_s + 1
        return True

    async def wait_history(self) -> None:
        """Waits until a new group of consumers has got every acknowledged message: the logs have them."""
        again = Book(acknowledged=self.book.acknowledged, places=self.book.places, delayed=self.book.delayed)
        reader = start_consumer(self.site, "reader", self.nameservers, again, "readers")
        await self.wait_consumed(again)
        self.site.kill(reader.name)

    async def wait_consumed(self, book: Book) -> None:
        """Waits until consumers have got every acknowledged message. PromiseBrokenError: they have not."""
        end_s = self.site.loop.time() + CONSUME_WITHIN_S
        while missing := [*book.not_delivered(), *book.delayed_not_delivered()]:
            if self.site.loop.time() > end_s:
                raise PromiseBrokenError(
                    f"{len(missing)} of {len(book.acknowledged) + len(book.delayed)} messages were not "
                    f"delivered, the first: {missing[0]}; {self.describe()}"
                )
            await asyncio.sleep(0.5)

    async def wait_equal(self) -> None:
        """Waits until all brokers have the same log. PromiseBrokenError: their logs differ."""
        end_s = self.site.loop.time() + ACCEPT_WITHIN_S
        while True:
            ends = {
                name: service.store.max_phy_offset for name in self.brokers if (service := self.service(name))
            }
            logs: dict[str, tuple[tuple[str, int], ...]] = {}
            if len(ends) == len(self.brokers) and len(set(ends.values())) == 1:
                if self.dledger:  # each peer has other positions of commits in its files
                    return
                logs = {name: _log_checksum(self.site.hosts[name].root) for name in self.brokers}
                if len(set(logs.values())) == 1:
                    return
            if self.site.loop.time() > end_s:
                raise PromiseBrokenError(f"the replicas are not equal: {ends} {logs}; {self.describe()}")
            await asyncio.sleep(0.5)

    def describe(self) -> str:
        """The state of every process, for a report."""
        lines = []
        for name in self.members:
            process = self.site.processes.get(name)
            state = "down" if process is None or not process.alive else "paused" if process.paused else "up"
            service = self.service(name) if name in self.brokers else None
            if service is not None:
                state += f" {service.live.standing.role!r} log {service.store.max_phy_offset}"
            lines.append(f"{name}: {state}")
        return "; ".join(lines)


def _log_checksum(root: Path) -> tuple[tuple[str, int], ...]:
    folder = root / "store" / "commitlog"
    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes().rstrip(b"\0")
        if data:
            found.append((path.name, zlib.crc32(data)))
    return tuple(found)
