"""Tests that a lost controller gets a new volume on an order, and only while a majority of the others has
everything. The manifests are those of a real cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochmq_operator.plans.effects import ChangeQuorumMembers, Delete, Effect
from epochmq_operator.plans.objects import Ref, annotation, is_deleting
from epochmq_operator.plans.observed_state import NodeState
from epochmq_operator.plans.progress_conditions import STEP_DEADLINE_S
from epochmq_protocol import properties
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.killed_operators import change_under_operators
from tests.unit.operator.plans.updated_groups import files_of, restarts, run

QUORUM = Ref("ControllerGroup", NAMESPACE, "quorum")
ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
LOST = "quorum-controller-1"


def claim(pod: str) -> Ref:
    """The volume claim of a controller."""
    return Ref("PersistentVolumeClaim", NAMESPACE, f"data-{pod}")


class ReplacingApi(FakeApi):
    """A cluster in which no volume of a controller is deleted while it counts for the quorum, if the operator
    may change the members."""

    def act(self, effect: Effect, resource: Ref) -> None:
        """Carries out one effect, after it has checked it."""
        if isinstance(effect, Delete) and effect.ref.kind == "PersistentVolumeClaim" and self.can_reload:
            ordinal = int(effect.ref.name.rpartition("-")[2])
            assert ordinal not in self.quorums[resource.name]
        if isinstance(effect, ChangeQuorumMembers) and effect.address is None:
            left = self.quorums["quorum"] - {int(effect.member.removeprefix("n"))}
            ready = [n for n in left if self._ready(f"quorum-controller-{n}")]
            assert len(ready) * 2 > len(left)
        super().act(effect, resource)


def cluster(count: int = 3, *, can_change: bool = True) -> FakeApi:
    """A cluster with this number of controllers, and a group of three replicas that uses them. `can_change`:
    the operator may change the members of the quorum."""
    api = ReplacingApi(renderer=manifest_renderer(), can_reload=can_change)
    api.put("ControllerGroup", "quorum", {"replicas": count})
    api.put("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "quorum"})
    api.settle()
    return api


def lose_volume(api: FakeApi, pod: str = LOST) -> None:
    """The pod has gone with its node, and its volume is only there."""
    api.objects[claim(pod)]["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "node-7"}
    api.lost_volumes.add(api.uid(claim(pod)))
    api.remove(Ref("Pod", NAMESPACE, pod))
    run(api, 5)


def lose_node(api: FakeApi, pod: str = LOST) -> None:
    """The pod's node fails, and Kubernetes has deleted the pod, which does not end."""
    api.hang(pod, NodeState.NOT_READY)
    api.lost_volumes.add(api.uid(claim(pod)))
    api.remove(Ref("Pod", NAMESPACE, pod))
    run(api, 5)


def order(api: FakeApi, pod: str = LOST, *more: str) -> str:
    """A person's order to replace this controller; returns its value."""
    value = ".".join([pod, api.uid(claim(pod)), *more])
    api.annotate(QUORUM, replace_replica=value)
    return value


def ordered(api: FakeApi) -> str | None:
    """The order that is left on the group."""
    return annotation(api.objects[QUORUM], "epochmq.io/replace-replica")


def is_whole(api: FakeApi, count: int) -> bool:
    """Whether all controllers are ready and members, and the brokers are as they were."""
    status = api.status(QUORUM)
    return (
        (status["phase"], status["ready"]) == ("Ready", f"{count}/{count}")
        and api.quorums["quorum"] == set(range(count))
        and (api.status(ORDERS)["phase"], api.status(ORDERS)["ready"]) == ("Ready", "3/3")
    )


@pytest.mark.parametrize("can_change", [True, False])
@pytest.mark.parametrize("count", [3, 5])
def test_a_lost_controller_gets_a_new_volume_and_nothing_else_changes(count: int, can_change: bool) -> None:
    api = cluster(count, can_change=can_change)
    before = {ref: api.uid(ref) for ref in api.objects if ref.kind in ("Pod", "PersistentVolumeClaim")}
    lose_volume(api)
    value = order(api)
    api.settle()
    assert [ref for ref, uid in before.items() if api.uid(ref) != uid] == [
        claim(LOST),
        Ref("Pod", NAMESPACE, LOST),
    ]
    assert is_whole(api, count)
    assert (ordered(api), restarts(api)) == (None, [])
    assert api.status(QUORUM)["replacement"] == {
        "order": value,
        "state": "Replaced",
        "message": f"{LOST} has a new volume",
    }
    (event,) = (one for one in api.events.values() if one.reason == "ReplacingReplica")
    others = ", ".join(f"quorum-controller-{n}" for n in range(count) if n != 1)
    assert event.message == f"gives {LOST} a new volume; every committed entry is in {others}"


def test_the_new_controller_has_no_vote_by_its_configuration() -> None:
    api = cluster()
    lose_volume(api)
    order(api)
    api.settle()
    keys = properties.parse(files_of(api, api.objects[Ref("Pod", NAMESPACE, LOST)]))
    assert keys["joinControllerGroup"] == "true"
    assert api.status(QUORUM)["founders"] == 0


def test_the_status_names_what_is_lost_and_the_command_that_replaces_it() -> None:
    api = cluster()
    lose_volume(api)
    for kind in ("Degraded", "Stalled"):
        api.now += STEP_DEADLINE_S
        run(api, 2)
        message = api.condition(QUORUM, kind)["message"]
        assert f"{LOST} cannot be scheduled: 0/3 nodes are available" in message
        lost = f"{LOST} (volume claim data-{LOST}, node node-7)"
        command = "epochmq controllers replace quorum/1 --namespace trade"
        assert f"if {lost} does not come back: {command}" in message


def test_two_of_five_are_replaced_one_after_the_other() -> None:
    api = cluster(5)
    for pod in (LOST, "quorum-controller-3"):
        lose_volume(api, pod)
    for pod in (LOST, "quorum-controller-3"):
        order(api, pod)
        run(api)
        assert api.status(QUORUM)["replacement"]["state"] == "Replaced"
    api.settle()
    assert is_whole(api, 5)


def test_the_leader_is_replaced_once_another_one_leads() -> None:
    api = cluster()
    (leader,) = api.leaders.values()
    lose_node(api, leader)
    order(api, leader)
    api.settle()
    assert is_whole(api, 3)
    assert api.forced == [leader]


def no_controller_leads(api: FakeApi) -> None:
    api.unready |= {"quorum-controller-0", "quorum-controller-2"}


def no_sidecar_responds(api: FakeApi) -> None:
    api.silent = True


def another_one_lacks_entries(api: FakeApi) -> None:
    api.behind = {"quorum-controller-2"}


def it_is_back(api: FakeApi) -> None:
    api.lost_volumes.clear()


REFUSED: dict[Callable[[FakeApi], None], str] = {
    no_controller_leads: "the controllers report no leader, so it is not known what they have committed; "
    f"what only {LOST} has would be lost",
    no_sidecar_responds: "the controllers report no leader",
    another_one_lacks_entries: "a majority needs 2 controllers that are ready and have every committed "
    f"entry, and without {LOST} these are quorum-controller-0; missing: quorum-controller-2; what only "
    f"{LOST} has would be lost",
    it_is_back: f"{LOST} is ready, so its volume works",
}


@pytest.mark.parametrize("trouble", REFUSED, ids=lambda found: found.__name__)
def test_an_order_is_refused_at_once_unless_a_majority_has_everything(
    trouble: Callable[[FakeApi], None],
) -> None:
    api = cluster()
    lose_volume(api)
    trouble(api)
    run(api, 3)
    volume = api.uid(claim(LOST))
    value = order(api)
    run(api, 3)
    refusal = api.status(QUORUM)["replacement"]
    assert (refusal["order"], refusal["state"]) == (value, "Refused")
    assert REFUSED[trouble] in refusal["message"]
    assert ordered(api) is None
    api.behind, api.unready, api.silent = set(), set(), False  # what was refused has no effect later
    run(api)
    assert (api.uid(claim(LOST)), api.quorums["quorum"]) == (volume, {0, 1, 2})


def refusal(api: FakeApi, pod: str, *more: str) -> str:
    """The operator's reason against an order for this controller."""
    volume = api.uid(claim(pod))
    order(api, pod, *more)
    run(api, 3)
    found = api.status(QUORUM)["replacement"]
    assert (found["state"], api.uid(claim(pod)), ordered(api)) == ("Refused", volume, None)
    return str(found["message"])


def test_the_only_controller_keeps_its_volume() -> None:
    api = cluster(1)
    lose_volume(api, "quorum-controller-0")
    assert "quorum-controller-0 is the only controller" in refusal(api, "quorum-controller-0")


def test_a_majority_cannot_be_replaced_by_the_acceptance_of_fewer_copies() -> None:
    api = cluster()
    lose_volume(api)
    assert "fewer copies cannot be accepted" in refusal(api, LOST, "fewer-copies")


def test_without_credentials_a_founder_is_replaced_only_while_all_others_respond() -> None:
    api = cluster(5, can_change=False)
    for pod in (LOST, "quorum-controller-3"):
        lose_volume(api, pod)
    expected = "quorum-controller-3 is not ready or lacks entries; with spec.admin.tokenSecret it need not"
    assert expected in refusal(api, LOST)


def test_a_controller_that_joins_by_the_log_is_not_replaced_without_credentials() -> None:
    api = cluster(3)
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    api.settle()
    lose_volume(api)
    api.can_reload = False
    run(api, 2)
    assert "set spec.admin.tokenSecret" in refusal(api, LOST)


def test_the_volume_is_kept_while_the_others_fail_after_the_order_began() -> None:
    api = cluster()
    lose_node(api)
    volume = api.uid(claim(LOST))
    order(api)
    api.tick()
    api.operate()
    api.silent = True
    run(api, 5)
    assert (api.uid(claim(LOST)), is_deleting(api.objects[claim(LOST)]), api.forced) == (volume, False, [])
    assert "the controllers report no leader" in api.status(QUORUM)["replacement"]["message"]
    api.silent = False
    api.settle()
    assert (api.forced, is_whole(api, 3)) == ([LOST], True)


@pytest.mark.parametrize("pod", [LOST, "quorum-controller-3"])
def test_a_change_of_the_number_that_a_lost_controller_holds_up_goes_on_after_its_replacement(
    pod: str,
) -> None:
    """The operator has added the fourth of five when one is lost."""
    api = cluster(3)
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    while api.quorums["quorum"] != {0, 1, 2, 3}:
        api.tick()
        api.operate()
    lose_volume(api, pod)
    run(api)
    assert 4 not in api.quorums["quorum"]
    order(api, pod)
    api.settle()
    assert is_whole(api, 5)


def replacement(stop: int | None, *, can_change: bool) -> tuple[FakeApi, int]:
    """A replacement under operators of which one is killed after `stop` effects; the number of effects."""
    api = cluster(can_change=can_change)
    lose_node(api)
    value = order(api)
    total = change_under_operators(api, (3,), lambda _: None, 40, stop)
    assert api.status(QUORUM)["replacement"]["order"] == value
    return api, total


STOPS = [
    (stop, can_change)
    for can_change in (True, False)
    for stop in range(1, replacement(None, can_change=can_change)[1] + 1)
]


@pytest.mark.long
@pytest.mark.parametrize(("stop", "can_change"), STOPS)
def test_an_operator_killed_after_any_effect_of_a_replacement_finishes_it(
    stop: int, can_change: bool
) -> None:
    api, _ = replacement(stop, can_change=can_change)
    api.settle()
    assert is_whole(api, 3)
    assert api.deleted[str(claim(LOST))] == 1
    assert api.forced == [LOST]
    assert (ordered(api), api.status(QUORUM)["replacement"]["state"]) == (None, "Replaced")
    assert [one.reason for one in api.events.values()].count("ReplacingReplica") == 1


def test_the_controllers_of_one_group_are_replaced_like_shared_ones() -> None:
    api = ReplacingApi(renderer=manifest_renderer())
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    own, pod = Ref("ControllerGroup", NAMESPACE, "orders"), "orders-controller-2"
    lose_volume(api, pod)
    former = api.uid(claim(pod))
    api.annotate(own, replace_replica=f"{pod}.{former}")
    api.settle()
    assert api.status(own)["replacement"]["state"] == "Replaced"
    assert (api.status(own)["ready"], api.uid(claim(pod)) != former) == ("3/3", True)
