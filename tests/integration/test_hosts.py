"""docs/hosts.md as it stands: three hosts with the units and files of the page make one group. Its master
stops as `systemctl restart` stops it, and the next one is killed; no message is lost."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.cluster import NEVER_BUSY
from tests.support.command import EpochmqCommand
from tests.support.hosts import Host
from tests.support.net import loopback
from tests.support.process import ManagedProcess, wait_until

NAMESERVER, BROKER, ADMIN = "epochmq-nameserver.service", "epochmq-broker.service", "epochmq-admin@.service"
OCTET = 71


class Hosts:
    """Three hosts. The sidecars run on the first one only."""

    def __init__(self, directory: Path) -> None:
        addresses = {number: loopback(OCTET) for number in (1, 2, 3)}
        self.hosts = [Host(number, addresses, directory / f"h{number}") for number in addresses]
        self.nameservers = [one.process(NAMESERVER, {}) for one in self.hosts]
        self.brokers = [one.process(BROKER, NEVER_BUSY) for one in self.hosts]
        self.sidecars = [self.hosts[0].process(ADMIN, {}, instance) for instance in ("nameserver", "broker")]
        home = directory / "home"
        home.mkdir()
        self.command = EpochmqCommand(";".join(f"{at}:9876" for at in addresses.values()), home)

    @property
    def processes(self) -> list[ManagedProcess]:
        """All processes."""
        return [*self.nameservers, *self.brokers, *self.sidecars]

    def is_ready(self, number: int) -> bool:
        """Whether the broker of a host is ready, as the page asks it."""
        command = [*self.hosts[number].command(BROKER, "ExecStop")]
        socket = command[command.index("--socket") + 1]
        ready = ["admin-call", "--socket", socket, "ready"]
        try:
            self.command.run(*ready)
        except AssertionError:
            return False
        return True

    def wait_ready(self) -> None:
        """Waits until every broker is ready."""
        for number in range(3):
            wait_until(partial(self.is_ready, number), what=f"broker {number} is ready")

    def master(self) -> int:
        """The number of the broker that the nameservers list as master."""
        hosts = [one.address for one in self.hosts]

        found: list[str] = []

        def listed() -> bool:
            rows = [row for one in self.command.json("cluster", "list") for row in one["brokers"]]
            found[:] = [row["address"].rpartition(":")[0] for row in rows if row["role"] == "master"]
            return len(found) == 1

        wait_until(listed, what="a master is listed")
        return hosts.index(found[0])

    def produce(self, body: str) -> None:
        """Sends a message; waits while there is no master."""

        def sent() -> bool:
            try:
                return "SEND_OK" in self.command.text("produce", "greetings", body)
            except AssertionError:
                return False

        wait_until(sent, what=f"{body} is sent")

    def consume(self, *expected: str) -> None:
        """Reads until every expected body was read. A message that was sent again is stored twice."""
        missing = set(expected)
        while missing:
            options = ("--count", str(len(missing)), "--timeout", "60")
            bodies = set(self.command.text("consume", "greetings", *options).split())
            assert bodies <= set(expected), bodies
            missing -= bodies


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    for process in made.processes:
        process.start()
    yield made
    for process in made.processes:
        process.kill()


def _answers_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.HTTPError:
        return False


def test_three_hosts_serve_through_a_restart_and_a_kill_of_the_master(hosts: Hosts) -> None:
    hosts.wait_ready()
    address = hosts.hosts[0].address
    for port in (9880, 9881):
        wait_until(partial(_answers_ready, f"http://{address}:{port}/ready"), what=f"port {port} is ready")
    hosts.command.text("topic", "create", "greetings")
    hosts.produce("first")
    first = hosts.master()
    stopped = hosts.hosts[first].stop(BROKER, hosts.brokers[first])
    assert stopped.returncode == 0, stopped
    assert hosts.brokers[first].status == 0
    wait_until(lambda: hosts.master() != first, what="another broker is the master")
    hosts.produce("second")
    hosts.brokers[first].start()
    hosts.wait_ready()
    second = hosts.master()
    hosts.brokers[second].kill()
    hosts.produce("third")
    hosts.brokers[second].start()
    hosts.wait_ready()
    hosts.consume("first", "second", "third")
