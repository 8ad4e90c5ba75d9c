"""Tests the messages of conditions: they list the first few lines and count the others, and give the reasons
of the sidecars."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.common_steps import unready_pods
from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.observed_state import observed_pod
from epochmq_operator.plans.progress_conditions import LISTED_MAX, listed
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi

LINES = [f"pod {number} is not ready" for number in range(LISTED_MAX + 2)]


@pytest.mark.parametrize(
    ("count", "more"),
    [(1, ""), (LISTED_MAX, ""), (LISTED_MAX + 1, "; and 1 more"), (LISTED_MAX + 2, "; and 2 more")],
)
def test_a_message_lists_a_bounded_number_of_lines(count: int, more: str) -> None:
    assert listed(LINES[:count]) == "; ".join(LINES[: min(count, LISTED_MAX)]) + more


def test_a_condition_says_why_a_replica_is_not_ready_in_the_words_of_its_sidecar() -> None:
    api, orders = FakeApi(), Ref("BrokerGroup", NAMESPACE, "orders")
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    api.unready = {"orders-broker-1", "orders-broker-2"}
    api.not_ready = {"orders-broker-1": ["the disk is full, 96% used", "it is fenced"]}
    for _ in range(5):
        api.tick()
        api.operate()
    for kind in ("Ready", "Degraded"):
        message = api.condition(orders, kind)["message"]
        assert "orders-broker-1 is not ready: the disk is full, 96% used; it is fenced" in message, kind
        assert "orders-broker-2 is not ready" in message, kind
    assert any("96% used" in event.message for event in api.events.values())


def test_a_pod_that_kubernetes_ended_has_its_reason() -> None:
    message = "The node was low on resource: memory."
    evicted = {
        "metadata": {"name": "p"},
        "status": {"phase": "Failed", "reason": "Evicted", "message": message},
    }
    assert observed_pod(evicted).unready_reason == f"failed: Evicted: {message}"
    ended = {"metadata": {"name": "p"}, "status": {"phase": "Failed"}}
    assert observed_pod(ended).unready_reason == "failed: no reason given"
    starting = {"metadata": {"name": "p"}, "status": {"phase": "Pending"}}
    assert observed_pod(starting).unready_reason == "has not started"


def test_a_missing_pod_names_where_the_reason_is() -> None:
    assert unready_pods([None], "orders-broker") == [
        "orders-broker-0 does not exist (see kubectl describe statefulset orders-broker)"
    ]


def test_a_deletion_names_the_pods_that_it_waits_for_and_their_nodes() -> None:
    api, orders = FakeApi(), Ref("BrokerGroup", NAMESPACE, "orders")
    api.put("BrokerGroup", "orders", {"replicas": 3, "deletionGuard": True})
    api.settle()
    api.annotate(orders, confirm_deletion="orders")
    api.remove(orders)
    api.operate()
    api.objects[Ref("Pod", NAMESPACE, "orders-broker-1")]["spec"]["nodeName"] = "worker-7"
    api.operate()
    message = api.condition(orders, "Progressing")["message"]
    assert "waits for orders-broker-0, orders-broker-1 on node worker-7, orders-broker-2" in message
