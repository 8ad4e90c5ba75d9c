"""Tests that a lost replica gets a new volume on an order, and never at the price of a message. The manifests
are those of a real cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochmq_operator.plans.objects import Ref, annotation, is_deleting
from epochmq_operator.plans.observed_state import (
    NodeState,
    ObservedQuorum,
    ObservedState,
    node_state,
    observed_replica_group,
)
from epochmq_operator.plans.progress_conditions import STEP_DEADLINE_S
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedReplica,
    ReportedReplicaGroup,
)
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi
from tests.unit.operator.plans.killed_operators import change_under_operators
from tests.unit.operator.plans.test_master_slave import PAIR, ready_pair
from tests.unit.operator.plans.updated_groups import ORDERS, ready_group, run

LOST = "orders-broker-2"
POD = Ref("Pod", NAMESPACE, LOST)
CLAIM = Ref("PersistentVolumeClaim", NAMESPACE, f"store-{LOST}")
COMMAND = "epochmq replica replace orders/2 --namespace trade"


def lose_volume(api: FakeApi, pod: str = LOST) -> None:
    """The pod has gone with its node, and its volume is only there."""
    claim = Ref("PersistentVolumeClaim", NAMESPACE, f"store-{pod}")
    api.objects[claim]["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "node-7"}
    api.lost_volumes.add(api.uid(claim))
    api.remove(Ref("Pod", NAMESPACE, pod))
    run(api, 5)


def lose_node(api: FakeApi, state: NodeState | None, pod: str = LOST) -> None:
    """The pod's node fails, and Kubernetes has deleted the pod, which does not end."""
    api.hang(pod, state)
    api.lost_volumes.add(api.uid(Ref("PersistentVolumeClaim", NAMESPACE, f"store-{pod}")))
    api.remove(Ref("Pod", NAMESPACE, pod))
    run(api, 5)


def order(api: FakeApi, pod: str = LOST, *more: str) -> str:
    """A person's order to replace this replica; returns its value."""
    value = ".".join([pod, api.uid(Ref("PersistentVolumeClaim", NAMESPACE, f"store-{pod}")), *more])
    api.annotate(ORDERS, replace_replica=value)
    return value


def lost_group(**spec: object) -> FakeApi:
    """A group of which replica 2 has lost its volume."""
    api = ready_group(**spec)
    lose_volume(api)
    return api


def ordered(api: FakeApi) -> str | None:
    """The order that is left on the group."""
    return annotation(api.objects[ORDERS], "epochmq.io/replace-replica")


def test_the_status_names_what_is_lost_and_the_command_that_replaces_it() -> None:
    api = lost_group()
    for kind in ("Degraded", "Stalled"):
        api.now += STEP_DEADLINE_S
        run(api, 2)
        message = api.condition(ORDERS, kind)["message"]
        assert "orders-broker-2 cannot be scheduled: 0/3 nodes are available" in message
        assert "orders-broker-0, orders-broker-1 have every acknowledged message" in message
        lost = f"{LOST} (volume claim store-{LOST}, node node-7)"
        assert f"if {lost} does not come back: {COMMAND}" in message


def test_a_pod_that_does_not_end_gets_the_command_only_when_it_lasts() -> None:
    api = ready_group()
    lose_node(api, NodeState.NOT_READY)
    assert COMMAND not in api.condition(ORDERS, "Degraded")["message"]
    api.now += STEP_DEADLINE_S
    run(api, 2)
    message = api.condition(ORDERS, "Stalled")["message"]
    assert f"node node-of-{LOST}) does not come back: {COMMAND}" in message


def test_a_lost_replica_gets_a_new_volume_and_the_others_keep_theirs() -> None:
    api = lost_group()
    claims = {ref: api.uid(ref) for ref in api.objects if ref.kind == "PersistentVolumeClaim"}
    value = order(api)
    api.settle()
    assert api.uid(CLAIM) != claims[CLAIM]
    assert [ref for ref, uid in claims.items() if api.uid(ref) != uid] == [CLAIM]
    status = api.status(ORDERS)
    assert (status["phase"], status["ready"]) == ("Ready", "3/3")
    assert status["replacement"] == {
        "order": value,
        "state": "Replaced",
        "message": f"{LOST} has a new volume",
    }
    assert ordered(api) is None
    (event,) = (one for one in api.events.values() if one.reason == "ReplacingReplica")
    assert event.message == (
        f"gives {LOST} a new volume; every acknowledged message is in orders-broker-0, orders-broker-1"
    )


@pytest.mark.parametrize("state", [NodeState.NOT_READY, NodeState.GONE])
def test_a_pod_that_hangs_on_a_lost_node_is_deleted_without_it(state: NodeState) -> None:
    api = ready_group()
    lose_node(api, state)
    assert is_deleting(api.objects[POD])
    order(api)
    api.settle()
    assert api.forced == [LOST]
    assert (api.status(ORDERS)["ready"], ordered(api)) == ("3/3", None)


@pytest.mark.parametrize(
    ("state", "waits_for"),
    [
        (NodeState.READY, f"{LOST} is being deleted on node node-of-{LOST}, which is ready"),
        (None, f"kubectl delete pod {LOST} --namespace trade --force --grace-period=0"),
    ],
)
def test_a_pod_is_not_taken_from_a_node_that_is_ready_or_unknown(
    state: NodeState | None, waits_for: str
) -> None:
    api = ready_group()
    lose_node(api, state)
    order(api)
    run(api, 10)
    assert (api.forced, api.uid(POD)) == ([], api.objects[POD]["metadata"]["uid"])
    assert waits_for in api.condition(ORDERS, "Progressing")["message"]
    assert waits_for in api.status(ORDERS)["replacement"]["message"]
    api.hung.clear()  # the node is back, or a person has deleted the pod
    api.remove(POD)
    api.settle()
    assert (api.status(ORDERS)["ready"], ordered(api)) == ("3/3", None)


def the_replica_is_the_master(api: FakeApi) -> None:
    api.masters["orders"] = (LOST, 7)
    api.behind = {"orders-broker-0", "orders-broker-1"}


def no_controller_leads(api: FakeApi) -> None:
    api.unready |= {"orders-controller-0", "orders-controller-1"}


def no_sidecar_responds(api: FakeApi) -> None:
    api.silent = True


def there_is_no_master(api: FakeApi) -> None:
    api.unready = {"orders-broker-0", "orders-broker-1"}


def another_replica_is_behind(api: FakeApi) -> None:
    api.behind = {"orders-broker-1"}


def another_replica_is_lost(api: FakeApi) -> None:
    lose_volume(api, "orders-broker-1")


def it_is_back(api: FakeApi) -> None:
    api.lost_volumes.clear()


def the_group_hibernates(api: FakeApi) -> None:
    api.put("BrokerGroup", "orders", {"replicas": 3, "hibernate": True})


REFUSED: dict[Callable[[FakeApi], None], str] = {
    the_replica_is_the_master: "no other replica is known to be the master; messages that only",
    no_controller_leads: "the controllers report no leader",
    no_sidecar_responds: "the controllers report no leader",
    there_is_no_master: "no other replica is known to be the master; messages that only",
    another_replica_is_behind: "only orders-broker-0 has every acknowledged message, and an acknowledgement "
    "needs 2 of them; if it fails before orders-broker-2 has copied the log, all messages are lost",
    another_replica_is_lost: "only orders-broker-0 has every acknowledged message",
    it_is_back: f"{LOST} is ready, so its volume works",
    the_group_hibernates: "the group is being created, or hibernates",
}


@pytest.mark.long
@pytest.mark.parametrize("trouble", REFUSED, ids=lambda found: found.__name__)
def test_an_order_is_refused_at_once_unless_enough_others_have_everything(
    trouble: Callable[[FakeApi], None],
) -> None:
    api = lost_group()
    trouble(api)
    run(api, 3)
    volume = api.uid(CLAIM)
    value = order(api)
    run(api, 3)
    refusal = api.status(ORDERS)["replacement"]
    assert (refusal["order"], refusal["state"]) == (value, "Refused")
    assert REFUSED[trouble] in refusal["message"]
    (event,) = (one for one in api.events.values() if one.reason == "ReplacementRefused")
    assert event.message == refusal["message"]
    assert ordered(api) is None
    api.behind, api.unready, api.silent = set(), set(), False  # what was refused has no effect later
    run(api)
    assert api.uid(CLAIM) == volume


@pytest.mark.long
@pytest.mark.parametrize("value", ["", "true", LOST, f"{LOST}.", f"{LOST}.uid-0", "orders-broker-7.uid-1"])
def test_an_order_that_names_no_volume_of_the_group_is_refused(value: str) -> None:
    api = lost_group()
    volume = api.uid(CLAIM)
    api.annotate(ORDERS, replace_replica=value)
    run(api)
    assert (api.uid(CLAIM), ordered(api)) == (volume, None)
    assert api.status(ORDERS)["replacement"]["state"] == "Refused"


@pytest.mark.long
def test_a_person_may_accept_that_the_master_alone_has_everything() -> None:
    api = lost_group()
    lose_volume(api, "orders-broker-1")
    message = api.condition(ORDERS, "Degraded")["message"]
    assert "cannot be replaced now: of the other replicas only orders-broker-0" in message
    for pod in (LOST, "orders-broker-1"):
        order(api, pod, "fewer-copies")
        run(api)
        assert api.status(ORDERS)["replacement"]["state"] == "Replaced"
    api.settle()
    assert api.status(ORDERS)["ready"] == "3/3"


def test_a_paused_group_keeps_the_order_and_the_volume() -> None:
    api = lost_group()
    volume, value = api.uid(CLAIM), order(api)
    api.annotate(ORDERS, paused="true")
    run(api)
    assert (api.uid(CLAIM), ordered(api)) == (volume, value)
    api.annotate(ORDERS, paused="false")
    api.settle()
    assert (api.uid(CLAIM) != volume, api.status(ORDERS)["ready"]) == (True, "3/3")


def test_the_volume_is_kept_while_the_others_fail_after_the_order_began() -> None:
    api = ready_group()
    lose_node(api, NodeState.NOT_READY)
    volume = api.uid(CLAIM)
    order(api)
    api.tick()
    api.operate()
    assert is_deleting(api.objects[CLAIM])
    api.silent = True
    run(api, 5)
    assert (api.uid(CLAIM), api.forced) == (volume, [])
    assert "the controllers report no leader" in api.status(ORDERS)["replacement"]["message"]
    api.silent = False
    api.settle()
    assert (api.forced, api.status(ORDERS)["ready"]) == ([LOST], "3/3")


def replacement(stop: int | None) -> tuple[FakeApi, int]:
    """A replacement under operators of which one is killed after `stop` effects; the number of effects."""
    api = ready_group()
    lose_node(api, NodeState.NOT_READY)
    value = order(api)
    total = change_under_operators(api, (3,), lambda _: None, 30, stop)
    assert api.status(ORDERS)["replacement"]["order"] == value
    return api, total


@pytest.mark.long
@pytest.mark.parametrize("stop", range(1, replacement(None)[1] + 1))
def test_an_operator_killed_after_any_effect_of_a_replacement_finishes_it(stop: int) -> None:
    api, _ = replacement(stop)
    api.settle()
    assert (api.status(ORDERS)["phase"], api.status(ORDERS)["ready"]) == ("Ready", "3/3")
    assert api.deleted[str(CLAIM)] == 1
    assert api.forced == [LOST]
    assert (ordered(api), api.status(ORDERS)["replacement"]["state"]) == (None, "Replaced")
    assert [one.reason for one in api.events.values()].count("ReplacingReplica") == 1


def test_a_lost_follower_of_a_dledger_log_is_replaced_while_a_majority_has_everything() -> None:
    api = lost_group(mode="DLedger")
    order(api)
    api.settle()
    assert (api.status(ORDERS)["ready"], api.status(ORDERS)["replacement"]["state"]) == ("3/3", "Replaced")


@pytest.mark.parametrize(("pod", "state"), [("pair-broker-1", "Replaced"), ("pair-broker-0", "Refused")])
def test_a_lost_slave_is_replaced_without_controllers_and_the_master_is_not(pod: str, state: str) -> None:
    api = ready_pair(3)
    claim = Ref("PersistentVolumeClaim", NAMESPACE, f"store-{pod}")
    lose_volume(api, pod)
    api.annotate(PAIR, replace_replica=f"{pod}.{api.uid(claim)}")
    run(api)
    assert api.status(PAIR)["replacement"]["state"] == state


def test_the_former_id_of_a_replica_with_a_new_volume_does_not_count_as_in_sync() -> None:
    """Both ids have the address of the pod, and the former one may still be in the SyncStateSet."""
    addresses = {1: "orders-broker-0", 3: LOST, 4: LOST}
    group = ReportedReplicaGroup(
        broker_name="orders",
        master_broker_id=1,
        sync_state_set=[1, 3],
        replicas=[ReportedReplica(broker_id=one, address=f"{pod}.x:1") for one, pod in addresses.items()],
    )
    quorum = ObservedQuorum("orders-controller-0", 1, 1, (group,))
    pods = ("orders-broker-0", LOST)
    states = {"orders-broker-0": ReportedBrokerState(broker_id=1, role="master")}
    found = observed_replica_group(ObservedState({}, {}, states), quorum, pods, "orders", "c")
    assert LOST in found.in_sync_pods  # it does not respond: it may be the one that has everything
    for broker_id in (4, None):
        later = {**states, LOST: ReportedBrokerState(broker_id=broker_id, role="replica")}
        found = observed_replica_group(ObservedState({}, {}, later), quorum, pods, "orders", "c")
        assert found.in_sync_pods == ("orders-broker-0",)


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (None, NodeState.GONE),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, NodeState.READY),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, NodeState.NOT_READY),
        ({}, NodeState.NOT_READY),
    ],
)
def test_a_node_without_a_ready_kubelet_is_not_ready(
    node: dict[str, object] | None, state: NodeState
) -> None:
    assert node_state(node) is state
