"""Tests on a real cluster that separate nameservers are added and removed, and that no broker notices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.messages import TOPIC
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups

BROKER = "orders-broker-0"


def controllers(count: int) -> dict[str, Any]:
    """The spec of one controller with this number of separate nameservers."""
    return {"replicas": 1, "nameserver": {"embedded": False, "replicas": count}}


def ready_nameservers(groups: Groups) -> int:
    """The number of nameservers that are ready."""
    status = groups.get("StatefulSet", "orders-nameserver").get("status") or {}
    return int(status.get("readyReplicas") or 0)


def send_by(groups: Groups, nameserver: int) -> None:
    """Sends a message with a route of this nameserver."""
    address = f"orders-nameserver-{nameserver}.orders-nameservers.{groups.namespace}.svc:9876"
    produce = ("epochmq", "produce", TOPIC, "hello", "--nameserver", address, "--timeout", "60")
    groups.cluster.execute(groups.namespace, BROKER, *produce, container="broker")


@pytest.mark.soak
@pytest.mark.usefixtures("started")
def test_nameservers_are_added_and_removed_while_the_broker_stays(groups: Groups) -> None:
    groups.apply("ControllerGroup", "orders", controllers(1))
    groups.apply("BrokerGroup", "orders", {"replicas": 1, "controllerGroup": "orders"})
    groups.ready("orders", 1)

    def broker() -> tuple[str, int]:
        pod = groups.get("Pod", BROKER)
        return pod["metadata"]["uid"], sum(one["restartCount"] for one in pod["status"]["containerStatuses"])

    before = broker()
    send_by(groups, 0)
    for count in (3, 1):
        groups.apply("ControllerGroup", "orders", controllers(count))

        def scaled(count: int = count) -> bool:
            return ready_nameservers(groups) == count and not groups.get("Pod", f"orders-nameserver-{count}")

        groups.cluster.wait(scaled, READY_TIMEOUT_S, f"{count} nameservers are ready")
        groups.wait("ControllerGroup", "orders", phase="Ready")
        send_by(groups, count - 1)
    assert broker() == before
    assert groups.status("BrokerGroup", "orders")["phase"] == "Ready"
