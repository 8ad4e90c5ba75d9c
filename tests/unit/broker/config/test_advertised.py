"""The addresses in records and registrations of a broker that is advertised by a name."""

from __future__ import annotations

import socket

import pytest

from epochmq_broker.config.addresses import client_ip_address
from epochmq_broker.config.broker_config import from_properties


def test_the_external_address_follows_from_the_clients_one_unless_it_is_set() -> None:
    def external(**more: str) -> str | None:
        return from_properties(
            {"brokerIP1": "orders-broker-0", "clientIP": "10.1.2.3", **more}
        ).config.external_addr

    assert external() is None
    assert external(externalListenPort="10921") == "10.1.2.3:10921"
    assert external(externalListenPort="10921", externalPort="30911") == "10.1.2.3:30911"
    assert external(externalListenPort="10921", externalIP="a.example.com") == "a.example.com:10921"


def test_an_unresolvable_name_is_replaced_by_the_hosts_own_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def known(host: str, *_: object, **__: object) -> list[object]:
        if host == "known":
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.9", 0))]
        raise socket.gaierror(socket.EAI_AGAIN, "not yet")

    monkeypatch.setattr(socket, "getaddrinfo", known)
    for name, address in (("known", "127.0.0.9"), ("orders-broker-0.orders-brokers.shop.svc", "127.0.0.7")):
        config = from_properties({"brokerIP1": name, "bindAddress": "127.0.0.7"}).config
        assert client_ip_address(config) == address


def test_clients_get_the_client_address_and_replicas_the_broker_address() -> None:
    def addresses(**more: str) -> tuple[str, str]:
        config = from_properties({"brokerIP1": "orders-broker-0", "bindAddress": "0.0.0.0", **more}).config
        return config.broker_addr, config.client_addr

    name = "orders-broker-0:10911"
    assert addresses() == (name, name)
    assert addresses(clientIP="10.1.2.3") == (name, "10.1.2.3:10911")
    assert addresses(clientIP="fd00::3") == (name, name)
    config = from_properties({"brokerIP1": "nobody.knows.invalid", "clientIP": "10.1.2.3"}).config
    assert client_ip_address(config) == "10.1.2.3"
