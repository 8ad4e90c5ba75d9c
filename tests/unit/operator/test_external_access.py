"""Tests what `spec.external` renders: the addresses that brokers advertise to clients outside the cluster,
and what forwards connections to their external ports."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from epochmq_broker.config.broker_config import from_properties
from epochmq_operator.manifests import JsonObject
from epochmq_operator.resources import ControllerGroup, GroupResource
from epochmq_protocol import properties
from tests.unit.operator.rendered_groups import broker_group, controller_group, made, of_kind

LOAD_BALANCER = {"type": "LoadBalancer", "host": "broker-{ordinal}.example.com"}
NODE_PORT = {"type": "NodePort", "nodePort": 31100}
HOST_PORT = {"type": "HostPort"}


def services(group: GroupResource) -> dict[str, JsonObject]:
    """The Services for clients outside, by name."""
    found = of_kind("Service", made(group))
    return {one["metadata"]["name"]: one for one in found if one["spec"]["ports"][0]["name"] == "external"}


def main_container(group: GroupResource) -> JsonObject:
    """The main container of the group's last StatefulSet."""
    container: JsonObject = made(group)[-1]["spec"]["template"]["spec"]["containers"][0]
    return container


def advertised(external: dict[str, Any], ordinal: int) -> str | None:
    """The external address of a broker on a node with the address 10.0.0.7."""
    group = broker_group(external=external)
    (files,) = (one["data"] for one in of_kind("ConfigMap", made(group)))
    text = files[f"orders-broker-{ordinal}.conf"]
    arguments = main_container(group)["args"]
    for option, setting in itertools.pairwise(arguments):
        if option == "--set":
            text += setting.replace("$(NODE_IP)", "10.0.0.7").replace("$(POD_IP)", "10.244.0.3") + "\n"
    config = from_properties(properties.parse(text)).config
    assert config.client_ip == "10.244.0.3"
    return config.external_addr


@pytest.mark.parametrize(
    ("external", "address"),
    [
        (LOAD_BALANCER, "broker-2.example.com:10921"),
        (NODE_PORT, "10.0.0.7:31102"),
        ({**NODE_PORT, "host": "nodes.example.com"}, "nodes.example.com:31102"),
        (HOST_PORT, "10.0.0.7:10921"),
        ({**HOST_PORT, "host": "node-{ordinal}.example.com"}, "node-2.example.com:10921"),
    ],
)
def test_a_broker_advertises_the_address_by_which_clients_outside_reach_it(
    external: dict[str, Any], address: str
) -> None:
    assert advertised(external, 2) == address


def test_each_broker_has_a_service_that_leads_to_its_external_port_alone() -> None:
    found = services(broker_group(external={**LOAD_BALANCER, "annotations": {"cloud/internal": "true"}}))
    assert sorted(found) == [f"orders-broker-{ordinal}" for ordinal in range(3)]
    one = found["orders-broker-1"]
    assert one["metadata"]["annotations"] == {
        "external-dns.alpha.kubernetes.io/hostname": "broker-1.example.com",
        "cloud/internal": "true",
    }
    assert one["spec"]["type"] == "LoadBalancer"
    assert one["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "orders-broker-1"
    assert one["spec"]["ports"] == [{"name": "external", "port": 10921, "targetPort": 10921}]


def test_node_ports_are_counted_from_the_first_one() -> None:
    found = services(broker_group(external=NODE_PORT))
    ports = [found[f"orders-broker-{ordinal}"]["spec"]["ports"][0]["nodePort"] for ordinal in range(3)]
    assert ports == [31100, 31101, 31102]


def test_host_ports_need_no_service() -> None:
    group = broker_group(external=HOST_PORT)
    assert not services(group)
    assert {"name": "external", "containerPort": 10921, "hostPort": 10921} in main_container(group)["ports"]


@pytest.mark.parametrize("embedded", [True, False])
def test_one_service_leads_to_the_external_port_of_all_nameservers(embedded: bool) -> None:
    external = {"type": "NodePort", "nodePort": 31099, "tlsMode": "enforcing"}
    group = controller_group(nameserver={"embedded": embedded}, external=external)
    ((name, service),) = services(group).items()
    assert name == "quorum-nameserver-external"
    component = "controller" if embedded else "nameserver"
    assert service["spec"]["selector"]["epochmq.io/component"] == component
    assert service["spec"]["ports"] == [
        {"name": "external", "port": 9886, "targetPort": 9886, "nodePort": 31099}
    ]
    for config_map in of_kind("ConfigMap", made(group)):
        serves = config_map["metadata"]["labels"]["epochmq.io/component"] == component
        text = config_map["data"][f"quorum-{component}-0.conf"] if serves else str(config_map["data"])
        assert ("externalListenPort=9886" in text) is serves
        assert ("externalTlsMode=enforcing" in text) is serves


@pytest.mark.parametrize("group", [broker_group(external=NODE_PORT), controller_group(external=NODE_PORT)])
def test_the_network_policy_opens_the_external_port(group: GroupResource) -> None:
    port = 9886 if isinstance(group, ControllerGroup) else 10921
    (policy,) = of_kind("NetworkPolicy", made(group))
    assert {"ports": [{"protocol": "TCP", "port": port}]} in policy["spec"]["ingress"]
    (closed,) = of_kind("NetworkPolicy", made(type(group).model_validate(without_external(group))))
    assert f"'port': {port}" not in str(closed["spec"]["ingress"])


def without_external(group: GroupResource) -> dict[str, Any]:
    """The group without external access."""
    found = group.model_dump(by_alias=True)
    del found["spec"]["external"]
    return found
