"""Controllers and a broker work with dashes in host names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.config.broker_config import from_properties
from epochmq_dledger.peer_addresses import parse_peers
from tests.unit.dledger.raft_group import HOST, RaftGroup, until

HOSTS = [f"my-controller-{i}.a-name-space.svc" for i in range(3)]


async def test_1443_peers_with_dashes_in_host_names_elect_and_append(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java splits `n0-my-host:port` at every dash, and does not find the peer."""
    real = socket.getaddrinfo

    def resolve(host: Any, *others: Any, **more: Any) -> Any:
        return real(HOST if host in HOSTS else host, *others, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    ports = [unused_tcp_port_factory() for _ in HOSTS]
    group = RaftGroup(tmp_path, ports)
    text = ";".join(f"n{i}-{host}:{port}" for i, (host, port) in enumerate(zip(HOSTS, ports, strict=True)))
    group.addresses = parse_peers(text)
    assert list(group.addresses.values())[2] == f"my-controller-2.a-name-space.svc:{ports[2]}"
    for name in group.addresses:
        await group.start(name)
    try:
        leader = await group.leader()
        appended = await asyncio.gather(*(leader.propose(b"%d" % i) for i in range(20)))
        for running in group.running.values():
            await until(lambda running=running: len(running.applied) == appended[-1].index + 1)  # type: ignore[misc]
    finally:
        for name in list(group.running):
            await group.stop(name)


def test_1443_a_broker_accepts_host_names_with_dashes() -> None:
    """In its own name, its cluster's, and the hosts of its controllers."""
    controllers = ";".join(f"{host}:9878" for host in HOSTS)
    loaded = from_properties(
        {
            "brokerName": "orders-eu-west-1",
            "brokerClusterName": "my-cluster",
            "enableControllerMode": "true",
            "controllerAddr": controllers,
        }
    )
    assert loaded.config.broker_name == "orders-eu-west-1"
    assert loaded.config.broker_cluster_name == "my-cluster"
    assert loaded.config.controller_addr == controllers
