"""Tests that only a few groups are updated at a time. The manifests are those of a real cluster."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.updated_groups import restarts

NAMES = [f"shop-{n}" for n in range(4)]
LIMIT = 2
CHANGED = {"fileReservedTime": 48}


def ready_groups() -> FakeApi:
    """A cluster with four ready groups under one quorum, and an operator that updates two at a time."""
    api = FakeApi(renderer=manifest_renderer())
    api.replace_operator(LIMIT)
    api.put("ControllerGroup", "quorum", {"replicas": 1})
    change(api, {})
    api.settle()
    return api


def change(api: FakeApi, config: dict[str, object]) -> None:
    """A user gives all groups this configuration."""
    for name in NAMES:
        api.put("BrokerGroup", name, {"replicas": 2, "controllerGroup": "quorum", "config": config})


def in_progress(api: FakeApi) -> list[str]:
    """The groups whose template was changed and whose pods do not all have it, or are not ready."""
    found = []
    for name in NAMES:
        stateful_set = api.objects[Ref("StatefulSet", NAMESPACE, f"{name}-broker")]
        revision = stateful_set["status"]["updateRevision"]
        pods = [Ref("Pod", NAMESPACE, f"{name}-broker-{ordinal}") for ordinal in range(2)]
        present = [api.objects[pod] for pod in pods if pod in api.objects]
        revisions = [one["metadata"]["labels"]["controller-revision-hash"] for one in present]
        if revisions != [revision] * 2 or not all(api._ready(pod.name) for pod in pods):
            found.append(name)
    return found


@pytest.mark.long
@pytest.mark.parametrize("killed_every", [None, 7])
def test_all_groups_are_updated_and_at_most_two_at_a_time(killed_every: int | None) -> None:
    api = ready_groups()
    change(api, CHANGED)
    most = 0
    for _ in range(60):
        api.tick()
        most = max(most, len(in_progress(api)))
        api.operate(limit=killed_every)
        if killed_every is not None:
            api.replace_operator(LIMIT)
    api.settle()
    assert most == LIMIT
    assert len(restarts(api)) == 2 * len(NAMES)
    assert {api.status(Ref("BrokerGroup", NAMESPACE, name))["phase"] for name in NAMES} == {"Ready"}


def test_a_group_that_waits_for_its_turn_keeps_its_template_and_says_so() -> None:
    api = ready_groups()
    change(api, {"fileReservedTime": "bad"})
    for _ in range(30):
        api.tick()
        api.operate()
    assert len(restarts(api)) == LIMIT, "two bad updates stop all others"
    waiting = [
        name
        for name in NAMES
        if "2 other BrokerGroups are being updated"
        in api.condition(Ref("BrokerGroup", NAMESPACE, name), "Progressing")["message"]
    ]
    assert len(waiting) == len(NAMES) - LIMIT
    assert set(in_progress(api)).isdisjoint(waiting)
    change(api, CHANGED)
    api.settle(200)
    assert {api.status(Ref("BrokerGroup", NAMESPACE, name))["phase"] for name in NAMES} == {"Ready"}


def test_a_deleted_group_gives_its_place_to_another_one() -> None:
    api = ready_groups()
    change(api, {"fileReservedTime": "bad"})
    for _ in range(30):
        api.tick()
        api.operate()
    stuck = in_progress(api)
    assert len(stuck) == LIMIT
    api.remove(Ref("BrokerGroup", NAMESPACE, stuck[0]))
    for _ in range(30):
        api.tick()
        api.operate()
    assert len(restarts(api)) == LIMIT + 1
