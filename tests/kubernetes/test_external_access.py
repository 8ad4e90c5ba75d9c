"""Tests how clients outside the cluster reach a group: by the ports of nodes, of pods' nodes, and by load
balancers; and TLS at these ports, with certificates from a Secret that is replaced."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.messages import TOPIC, nameserver, received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups
from tests.support.certificates import Authority
from tests.support.remoting import call

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("started")]

GET_ROUTE = 105
NODE_PORTS = itertools.count(31000, 10)
"""The first node port of each test: that of the nameservers. Those of the brokers follow."""
BALANCER = "100.64.9.9"
"""An address that a load balancer might have. kube-proxy forwards connections to it, as to every address that
the status of a Service names."""


@pytest.fixture
def port() -> int:
    """The nameservers' node port."""
    return next(NODE_PORTS)


def make(groups: Groups, port: int, external: dict[str, Any], **more: Any) -> None:
    """Makes a ready group of two brokers whose nameservers have an external port at every node."""
    label = "pod-security.kubernetes.io/enforce=privileged"  # for ports of nodes
    groups.cluster.kubectl("label", "namespace", groups.namespace, label, "--overwrite")
    outside = {"type": "NodePort", "nodePort": port}
    mode = {"tlsMode": external["tlsMode"]} if "tlsMode" in external else {}
    groups.apply("ControllerGroup", "quorum", {"replicas": 1, "external": {**outside, **mode}, **more})
    spec = {"replicas": 2, "controllerGroup": "quorum", "external": external, **more}
    groups.apply("BrokerGroup", "orders", spec)
    groups.ready("orders", 2)


def addresses(groups: Groups, host: str, port: int) -> set[str]:
    """The brokers' addresses in the route of the topic, as a nameserver gives them at this address."""
    response = call(f"127.0.0.1:{groups.cluster.forward(host, port)}", GET_ROUTE, {"topic": TOPIC})
    assert response.code == 0, response.remark
    return set(re.findall(r'"([\w.-]+:\d+)"', response.body.decode()))


def pods(groups: Groups) -> list[Any]:
    """The brokers' pods, by ordinal."""
    names = ("orders-broker-0", "orders-broker-1")
    return [groups.cluster.core.read_namespaced_pod(name, groups.namespace) for name in names]


def check_addresses(groups: Groups, port: int, outside: set[str]) -> None:
    """A nameserver gives the addresses of the pods at its own port, and others at its external port."""
    cluster = groups.cluster
    send(groups, "orders", ["a"])
    assert received(groups, "orders", 1) == ["a"]
    host, _, inside = nameserver(groups, "orders").partition(":")
    service = cluster.core.read_namespaced_service(host, groups.namespace).spec.cluster_ip
    assert addresses(groups, service, int(inside)) == {f"{pod.status.pod_ip}:10911" for pod in pods(groups)}
    node = pods(groups)[0].status.host_ip
    assert addresses(groups, node, port) == outside


def reaches(groups: Groups, host: str, port: int) -> bool:
    """Whether a broker responds at this address."""
    try:
        return call(f"127.0.0.1:{groups.cluster.forward(host, port)}", GET_ROUTE, {"topic": TOPIC}).code >= 0
    except OSError:
        return False


def test_clients_outside_get_ports_of_the_nodes(groups: Groups, port: int) -> None:
    make(groups, port, {"type": "NodePort", "nodePort": port + 1})
    nodes = [(pod.status.host_ip, port + 1 + ordinal) for ordinal, pod in enumerate(pods(groups))]
    check_addresses(groups, port, {f"{host}:{number}" for host, number in nodes})
    assert all(reaches(groups, *node) for node in nodes)


def test_clients_outside_get_the_ports_of_the_pods_on_their_nodes(groups: Groups, port: int) -> None:
    make(groups, port, {"type": "HostPort"}, hostSpread="Required")
    nodes = {pod.status.host_ip for pod in pods(groups)}
    assert len(nodes) == 2
    check_addresses(groups, port, {f"{host}:10921" for host in nodes})
    assert all(reaches(groups, host, 10921) for host in nodes)


def test_clients_outside_get_the_names_of_the_load_balancers(groups: Groups, port: int) -> None:
    make(groups, port, {"type": "LoadBalancer", "host": "broker-{ordinal}.example.com"})
    check_addresses(groups, port, {"broker-0.example.com:10921", "broker-1.example.com:10921"})
    status = {"status": {"loadBalancer": {"ingress": [{"ip": BALANCER}]}}}
    name, namespace = "orders-broker-1", groups.namespace
    groups.cluster.core.patch_namespaced_service_status(name, namespace, status)
    what = "the load balancer's address leads to the broker"
    groups.cluster.wait(lambda: reaches(groups, BALANCER, 10921), READY_TIMEOUT_S, what)


def certificates(groups: Groups, folder: Path, authority: Authority) -> None:
    """Writes a certificate of this authority into the Secret, as cert-manager does."""
    crt, key = authority.issue(folder, "server")
    files = {"tls.crt": crt.read_bytes(), "tls.key": key.read_bytes(), "ca.crt": authority.pem}
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "clients"}, "data": data}
    groups.cluster.apply(secret, namespace=groups.namespace)


def presents(groups: Groups, host: str, port: int, authority: Authority, folder: Path) -> bool:
    """Whether a server at this address presents a certificate of this authority."""
    ca = folder / f"{hashlib.sha256(authority.pem).hexdigest()[:8]}.crt"
    ca.write_bytes(authority.pem)
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = False
    try:
        address = ("127.0.0.1", groups.cluster.forward(host, port))
        with socket.create_connection(address, timeout=10) as plain, context.wrap_socket(plain) as secure:
            return secure.version() is not None
    except OSError:
        return False


def test_certificates_are_replaced_by_a_changed_secret_without_a_restart(
    groups: Groups, port: int, tmp_path: Path
) -> None:
    first, second = Authority("first"), Authority("second")
    certificates(groups, tmp_path / "1", first)
    external = {"type": "NodePort", "nodePort": port + 1, "tlsMode": "enforcing"}
    make(groups, port, external, clientTlsSecret="clients")
    host = pods(groups)[0].status.host_ip
    places = [(host, port), (host, port + 1), (host, port + 2)]
    before = [(pod.metadata.uid, pod.status.container_statuses[0].restart_count) for pod in pods(groups)]
    for place in places:
        assert presents(groups, *place, first, tmp_path)
        assert not presents(groups, *place, second, tmp_path)
        assert not reaches(groups, *place), "a plain connection is rejected"
    send(groups, "orders", ["a"])  # inside, without TLS

    certificates(groups, tmp_path / "2", second)
    for place in places:
        groups.cluster.wait(
            lambda place=place: presents(groups, *place, second, tmp_path),
            READY_TIMEOUT_S,
            f"{place} presents the new certificate",
        )
    now = [(pod.metadata.uid, pod.status.container_statuses[0].restart_count) for pod in pods(groups)]
    assert now == before
