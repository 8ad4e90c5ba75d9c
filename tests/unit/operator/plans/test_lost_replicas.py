"""Tests what the status says of replicas that do not come back: where they are, and what their loss would
cost."""

from __future__ import annotations

from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.observed_state import observed_pod
from epochmq_operator.plans.progress_conditions import STEP_DEADLINE_S
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi
from tests.unit.operator.plans.updated_groups import ORDERS, ready_group, run


def lose(api: FakeApi, *ordinals: int) -> None:
    """The pods of these replicas end, and no node takes them again: their volumes are on one that is gone."""
    for ordinal in ordinals:
        name = f"orders-broker-{ordinal}"
        api.unschedulable.add(name)
        api.remove(Ref("Pod", NAMESPACE, name))
    run(api, 5)


def test_a_pod_that_does_not_end_is_named_with_its_node() -> None:
    pod = {
        "metadata": {"name": "p", "deletionTimestamp": "2027-01-15T08:00:00Z"},
        "spec": {"nodeName": "node-7"},
        "status": {"phase": "Running"},
    }
    assert observed_pod(pod).unready_reason == "is being deleted on node node-7"
    assert not observed_pod(pod).runs
    lost = {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "node-7"},
        "status": {"phase": "Running", "reason": "NodeLost"},
    }
    assert (
        observed_pod(lost).unready_reason == "is not known to run on node node-7: the node does not respond"
    )
    assert not observed_pod(lost).runs


def test_a_lost_replica_is_stalled_after_the_deadline_with_the_replicas_that_have_everything() -> None:
    api = ready_group()
    lose(api, 2)
    copies = "orders-broker-0, orders-broker-1 have every acknowledged message"
    assert api.condition(ORDERS, "Stalled")["status"] == "False"
    assert copies in api.condition(ORDERS, "Degraded")["message"]
    api.now += STEP_DEADLINE_S
    run(api, 2)
    stalled = api.condition(ORDERS, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "NoProgress")
    assert "orders-broker-2 cannot be scheduled: 0/3 nodes are available" in stalled["message"]
    assert copies in stalled["message"]
    api.unschedulable.clear()
    api.settle()
    assert api.condition(ORDERS, "Stalled")["status"] == "False"
    assert api.status(ORDERS)["phase"] == "Ready"


def test_a_replica_that_is_behind_does_not_count_as_a_copy() -> None:
    api = ready_group()
    api.behind = {"orders-broker-1"}
    lose(api, 2)
    message = api.condition(ORDERS, "Degraded")["message"]
    assert "orders-broker-0 has every acknowledged message" in message


def test_without_a_report_of_the_controllers_no_replica_counts_as_a_copy() -> None:
    api = ready_group()
    api.silent = True
    lose(api, 2)
    assert "delete no volume" in api.condition(ORDERS, "Degraded")["message"]
