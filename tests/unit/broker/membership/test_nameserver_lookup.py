"""Tests that a broker follows the nameservers behind one DNS name."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from epochmq_broker.config.broker_config import ConfigError, from_properties
from epochmq_broker.membership.nameserver_lookup import NameserverLookup
from epochmq_protocol.codes import RequestCode
from tests.unit.broker.kit import until
from tests.unit.broker.membership.registration_bench import Bench

NAME = "nameservers.test:9876"
BY_DNS = {"namesrvAddr": NAME, "fetchNameSrvAddrByDnsLookup": "true", "updateNameServerAddrPeriod": "10"}


class Dns:
    """Replaces the resolver: `hosts` are the addresses of the name, or the failure of its lookup."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: tuple[str, ...] | OSError = hosts
        self.asked = 0

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        """`loop.getaddrinfo`, for any number of connections to each address."""
        assert (host, port) == ("nameservers.test", 9876)
        self.asked += 1
        if isinstance(self.hosts, OSError):
            raise self.hosts
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, port)) for address in self.hosts for _ in range(2)]


@pytest.fixture
async def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    found = Dns("10.0.0.1", "10.0.0.2")
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found.getaddrinfo, raising=False)
    return found


async def test_the_broker_registers_with_nameservers_that_are_added_and_forgets_removed_ones(
    dns: Dns,
) -> None:
    bench = Bench(**BY_DNS)
    lookup = NameserverLookup(bench.live)
    lookup.start()
    bench.registration.start()
    try:
        await until(lambda: set(bench.registration.registered) == {"10.0.0.1:9876", "10.0.0.2:9876"})
        await until(lambda: all(bench.registration.registered.values()))
        dns.hosts = ("10.0.0.2", "10.0.0.3")
        await until(lambda: set(bench.registration.registered) == {"10.0.0.2:9876", "10.0.0.3:9876"})
        await until(lambda: all(bench.registration.registered.values()))
        kept = [code for addr, code in bench.servers.requests if addr == "10.0.0.2:9876"]
        assert [one.code for one in kept].count(RequestCode.REGISTER_BROKER) == 1
    finally:
        await lookup.stop()
        await bench.registration.stop()


async def test_a_failed_lookup_changes_nothing(dns: Dns) -> None:
    bench = Bench(**BY_DNS)
    lookup = NameserverLookup(bench.live)
    lookup.start()
    try:
        await until(lambda: bench.live.nameservers == ("10.0.0.1:9876", "10.0.0.2:9876"))
        dns.hosts = OSError("Name or service not known")
        asked = dns.asked
        await until(lambda: dns.asked > asked + 2)
        assert bench.live.nameservers == ("10.0.0.1:9876", "10.0.0.2:9876")
    finally:
        await lookup.stop()


async def test_the_lookup_begins_and_ends_while_the_broker_runs(dns: Dns) -> None:
    bench = Bench(namesrvAddr="10.9.9.9:9876")
    lookup = NameserverLookup(bench.live)
    lookup.start()
    try:
        assert bench.live.nameservers == ("10.9.9.9:9876",)
        bench.live.update(BY_DNS)
        await until(lambda: bench.live.nameservers == ("10.0.0.1:9876", "10.0.0.2:9876"))
        bench.live.update({"namesrvAddr": "10.9.9.9:9876", "fetchNameSrvAddrByDnsLookup": "false"})
        assert bench.live.nameservers == ("10.9.9.9:9876",)
    finally:
        await lookup.stop()


@pytest.mark.parametrize("addresses", ["", "a:1;b:1"])
def test_a_lookup_needs_exactly_one_name(addresses: str) -> None:
    with pytest.raises(ConfigError, match="one host:port whose name resolves to all nameservers"):
        from_properties({"namesrvAddr": addresses, "fetchNameSrvAddrByDnsLookup": "true"})
