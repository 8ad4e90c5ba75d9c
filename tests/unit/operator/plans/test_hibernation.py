"""Tests that a group hibernates and resumes. The manifests are those of a real cluster."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi
from tests.unit.operator.plans.updated_groups import BROKERS, CONTROLLERS, ORDERS, ready_group, restarts, run

ASLEEP, AWAKE = {"replicas": 3, "hibernate": True}, {"replicas": 3}


def brokers(api: FakeApi) -> list[str]:
    """The ordinals of the brokers' pods."""
    return [pod.rpartition("-")[2] for pod in api.pods() if pod.startswith("orders-broker-")]


def sequence(api: FakeApi, rounds: int = 30) -> list[str]:
    """The ordinals of the brokers that run, each time that they change."""
    seen: list[str] = []
    for _ in range(rounds):
        api.tick()
        running = "".join(brokers(api))
        if not seen or seen[-1] != running:
            seen.append(running)
        api.operate()
    return seen


@pytest.mark.long
def test_the_replicas_stop_from_the_last_one_on_and_start_from_the_first_one_on() -> None:
    api = ready_group()
    claims = {ref: api.uid(ref) for ref in api.objects if ref.kind == "PersistentVolumeClaim"}
    api.put("BrokerGroup", "orders", ASLEEP)
    assert sequence(api) == ["012", "01", "0", ""]
    status = api.status(ORDERS)
    assert (status["phase"], status["hibernation"], status["ready"]) == ("Hibernated", "Hibernated", "0/3")
    assert status["plan"]["name"] == "hibernate"
    ready = api.condition(ORDERS, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Hibernated")
    assert api.condition(ORDERS, "Degraded")["status"] == "False"
    assert api.objects[CONTROLLERS]["spec"]["replicas"] == 3
    api.put("BrokerGroup", "orders", AWAKE)
    assert sequence(api) == ["", "0", "01", "012"]
    api.settle()
    status = api.status(ORDERS)
    assert (status["phase"], status["ready"], status["master"]) == ("Ready", "3/3", "orders-broker-0")
    assert "hibernation" not in status
    assert status["plan"]["name"] == "resume"
    assert restarts(api) == []
    assert claims == {ref: api.uid(ref) for ref in api.objects if ref.kind == "PersistentVolumeClaim"}


def test_a_hibernated_group_writes_nothing_and_reverts_drift() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", ASLEEP)
    api.settle()
    writes = api.writes
    run(api, 5)
    assert api.writes == writes
    api.scale(BROKERS, 3)
    api.settle()
    assert (brokers(api), api.status(ORDERS)["phase"]) == ([], "Hibernated")


@pytest.mark.parametrize("trouble", ["behind", "silent", "no quorum"])
def test_no_replica_stops_while_another_one_lacks_messages(trouble: str) -> None:
    api = ready_group()
    if trouble == "behind":
        api.behind = {"orders-broker-1"}
    elif trouble == "silent":
        api.silent = True
    else:
        api.unready = {"orders-controller-0", "orders-controller-1"}
    run(api, 2)
    api.put("BrokerGroup", "orders", ASLEEP)
    run(api)
    assert brokers(api) == ["0", "1", "2"]
    assert api.condition(ORDERS, "Progressing")["status"] == "True"
    api.behind, api.silent, api.unready = set(), False, set()
    api.settle()
    assert (brokers(api), api.status(ORDERS)["phase"]) == ([], "Hibernated")


def test_a_group_resumes_while_it_hibernates_and_with_another_number_of_replicas() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", ASLEEP)
    run(api, 3)
    assert brokers(api) != ["0", "1", "2"]
    api.put("BrokerGroup", "orders", AWAKE)
    api.settle()
    assert api.status(ORDERS)["ready"] == "3/3"
    api.put("BrokerGroup", "orders", ASLEEP)
    api.settle()
    api.put("BrokerGroup", "orders", {"replicas": 5})
    api.settle()
    assert (api.status(ORDERS)["ready"], api.status(ORDERS)["master"]) == ("5/5", "orders-broker-0")


def test_a_hibernated_group_can_be_deleted() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", ASLEEP)
    api.settle()
    api.remove(ORDERS)
    for _ in range(5):
        api.tick()
    assert {ref.kind for ref in api.objects} == {"PersistentVolumeClaim"}


def hibernation(stop: int | None) -> tuple[FakeApi, int]:
    """A group that hibernates and resumes under operators of which one is killed after `stop` effects; the
    number of effects."""
    api, total = ready_group(), 0
    for spec in (ASLEEP, AWAKE):
        api.put("BrokerGroup", "orders", spec)
        for _ in range(15):
            api.tick()
            assert Ref("Pod", NAMESPACE, "orders-broker-0") in api.objects or brokers(api) == []
            done = api.operate(limit=stop)
            stop = None if stop is None or done >= stop else stop - done
            total += done
    return api, total


@pytest.mark.long
@pytest.mark.parametrize("stop", range(hibernation(None)[1]))
def test_an_operator_killed_after_any_effect_of_a_hibernation_finishes_it(stop: int) -> None:
    api, _ = hibernation(stop)
    api.settle()
    status = api.status(ORDERS)
    assert (status["phase"], status["ready"], status["master"]) == ("Ready", "3/3", "orders-broker-0")
    sizes = [one["spec"]["replicas"] for one in api.applied[BROKERS]]
    assert sizes[-6:] == [2, 1, 0, 1, 2, 3]
    assert restarts(api) == []
