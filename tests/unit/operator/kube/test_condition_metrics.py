"""Tests the metrics of conditions: one series for each condition of a resource of any kind, and the time of
the present step of a plan."""

from __future__ import annotations

from typing import Any

from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.plans.conditions import seconds_of
from epochmq_operator.plans.objects import Manifest, Ref
from tests.unit.operator.entities.fake_brokers import FakeBrokers, topic
from tests.unit.operator.plans.updated_groups import ORDERS, ready_group, run

TOPIC = Ref("Topic", "trade", "payments")


def values(resources: dict[Ref, Manifest], metric: str) -> dict[tuple[str, ...], float]:
    """The values of a metric, by its labels."""
    metrics = OperatorMetrics()
    metrics.collect_conditions(resources.items)
    found: dict[tuple[str, ...], float] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == metric:
                found[tuple(sample.labels.values())] = sample.value
    return found


def conditions(resources: dict[Ref, Any]) -> set[tuple[str, ...]]:
    """The present conditions: kind, name, type and status."""
    return {
        (kind, name, condition, status)
        for (kind, _, name, condition, status), value in values(
            resources, "epochmq_resource_condition"
        ).items()
        if value == 1
    }


def test_each_condition_of_each_kind_has_a_series_with_its_status() -> None:
    api = ready_group()
    brokers = FakeBrokers(topic(), {"orders": None})
    brokers.refusal = "no"
    brokers.settle()
    assert brokers.resource is not None
    found = conditions({ORDERS: api.objects[ORDERS], TOPIC: brokers.resource})
    assert ("BrokerGroup", "orders", "Ready", "True") in found
    assert ("BrokerGroup", "orders", "Degraded", "False") in found
    assert ("Topic", "payments", "Stalled", "True") in found
    api.unready = {"orders-broker-1"}
    run(api, 3)
    found = conditions({ORDERS: api.objects[ORDERS]})
    assert ("BrokerGroup", "orders", "Degraded", "True") in found
    assert ("BrokerGroup", "orders", "Degraded", "False") not in found


def test_the_time_of_a_step_is_that_of_its_beginning_until_the_plan_is_done() -> None:
    metric = "epochmq_group_plan_step_timestamp_seconds"
    api = ready_group()
    assert values({ORDERS: api.objects[ORDERS]}, metric) == {}
    api.put("BrokerGroup", "orders", {"replicas": 3, "image": "bad:1"})
    run(api)
    (value,) = values({ORDERS: api.objects[ORDERS]}, metric).values()
    assert value == seconds_of(api.status(ORDERS)["plan"]["stepSince"])
    run(api, 5)
    assert list(values({ORDERS: api.objects[ORDERS]}, metric).values()) == [value]
