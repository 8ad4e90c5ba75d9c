"""Tests the messages of conditions: they list the first few lines and count the others, and give the reasons
of the sidecars."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.group_status import LISTED_MAX, _listed
from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi

LINES = [f"pod {number} is not ready" for number in range(LISTED_MAX + 2)]


@pytest.mark.parametrize(
    ("count", "more"),
    [(1, ""), (LISTED_MAX, ""), (LISTED_MAX + 1, "; and 1 more"), (LISTED_MAX + 2, "; and 2 more")],
)
def test_a_message_lists_a_bounded_number_of_lines(count: int, more: str) -> None:
    assert _listed(LINES[:count]) == "; ".join(LINES[: min(count, LISTED_MAX)]) + more


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
