"""Tests a minimal resource on a real cluster: a group that serves RocketMQ's clients, loses nothing that it
acknowledged, and recovers by itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.integration.chaos.journals import SEND_OK
from tests.kubernetes.conftest import namespace_for
from tests.kubernetes.operator_process import Groups, operator
from tests.kubernetes.pod_faults import PodFaults
from tests.kubernetes.testbed.clients import cpp_command
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.pods import pod
from tests.kubernetes.traffic import Traffic

SENT = 20


class Orders(NamedTuple):
    """The group that the tests of this module share, and its broker ids."""

    groups: Groups
    ids: dict[str, int]


@pytest.fixture(scope="module")
def orders(cluster: Cluster, definitions: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orders]:
    """A ready group with three replicas and its own controllers."""
    with namespace_for(cluster, "three-lines") as namespace:
        groups = Groups(cluster, namespace)
        with operator(cluster, namespace, tmp_path_factory.mktemp("operator")) as running:
            cluster.wait(lambda: "acquired the lease" in running.log.read_text(), what="the operator leads")
            begun_s = time.monotonic()
            groups.apply("BrokerGroup", "orders", {"replicas": 3})
            status = groups.ready("orders", 3)
            print(f"ready {time.monotonic() - begun_s:.1f} s after kubectl apply")
            assert status["master"] in {f"orders-broker-{n}" for n in range(3)}
            assert sorted(status["syncStateSet"]) == [1, 2, 3]
            yield Orders(groups, groups.broker_ids("orders", 3))


def test_cpp_clients_in_the_cluster_send_and_consume(orders: Orders, clients: str) -> None:
    """By DNS names; the client is the C++ client with its Python binding."""
    groups = orders.groups
    cluster, namespace, nameserver = groups.cluster, groups.namespace, "orders-nameserver:9876"
    bodies = [f"cpp-{n}" for n in range(SENT)]
    plans = {
        "cpp-producer": {
            "do": "send",
            "topic": "cpp",
            "sends": [{"how": "sync", "body": one} for one in bodies],
        },
        "cpp-consumer": {"do": "consume", "topic": "cpp", "group": "cpp"},
    }
    for name, plan in plans.items():
        command = cpp_command(nameserver, json.dumps(plan))
        cluster.apply(pod(name, clients, command=command, stdin=True), namespace=namespace)

    def log_lines(name: str) -> list[dict[str, object]]:
        lines = cluster.logs(namespace, name).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    cluster.wait_pod(namespace, "cpp-producer", phase="Succeeded")
    assert [one["body"] for one in log_lines("cpp-producer") if one.get("status") == "OK"] == bodies

    def received() -> bool:
        return set(bodies) <= {str(one.get("body")) for one in log_lines("cpp-consumer")}

    cluster.wait(received, what="the C++ consumer has every message")
    cluster.kubectl("delete", "pod", *plans, f"--namespace={namespace}", "--wait=false")


@pytest.mark.soak
def test_no_message_acknowledged_to_java_clients_is_lost(orders: Orders, clients: str) -> None:
    """With RocketMQ's producer and consumers: the master's pod is deleted, then the next master and the
    leading controller are killed."""
    traffic = Traffic(orders.groups, clients, "orders")
    traffic.start()
    pod_faults = PodFaults(traffic)
    pod_faults.delete(pod_faults.master())
    pod_faults.kill(pod_faults.master(), "broker")
    epoch = orders.groups.state(pod_faults.master())["masterEpoch"]
    pod_faults.kill(pod_faults.leader(), "controller")
    assert orders.groups.state(pod_faults.master())["masterEpoch"] == epoch, "no broker was taken for dead"
    traffic.stop()
    print(traffic.summary())
    assert traffic.outcomes()[SEND_OK] > 100
    traffic.check()
    traffic.check_equal(3)
    assert pod_faults.ids() == orders.ids
    orders.groups.wait("BrokerGroup", "orders", master=pod_faults.master(), phase="Ready")
