"""Tests changes of the number of controllers: one at a time, with a quorum at every moment, and without a
restart of any pod. The manifests are those of a real cluster."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from epochmq_operator.manifests import group as group_manifests
from epochmq_operator.plans.effects import Apply, ChangeQuorumMembers, Effect, PatchStatus
from epochmq_operator.plans.objects import Ref
from epochmq_operator.pod_rendering import controller_pod_name
from epochmq_protocol import properties
from tests.unit.operator.plans import fake_api
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.killed_operators import STEPS, change_under_operators
from tests.unit.operator.plans.updated_groups import files_of, pods_of, restarts, run

QUORUM = Ref("ControllerGroup", NAMESPACE, "quorum")
ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
CONTROLLERS = Ref("StatefulSet", NAMESPACE, "quorum-controller")
BROKERS = Ref("StatefulSet", NAMESPACE, "orders-broker")
BUDGET = Ref("PodDisruptionBudget", NAMESPACE, "quorum-controller")


class QuorumApi(FakeApi):
    """A cluster that checks each write that concerns the members of the quorum."""

    def act(self, effect: Effect, resource: Ref) -> None:
        """Carries out one effect, after it has checked it."""
        if isinstance(effect, ChangeQuorumMembers):
            self._check_change(effect)
        if isinstance(effect, Apply) and effect.manifest["kind"] == "ConfigMap":
            self._check_configuration(effect.manifest["data"])
        if isinstance(effect, Apply) and effect.manifest["metadata"]["name"] == CONTROLLERS.name:
            self._check_size(effect.manifest)
        super().act(effect, resource)

    def _check_change(self, change: ChangeQuorumMembers) -> None:
        """All members that stay are ready, and all brokers list a new one."""
        ordinal = int(change.member.removeprefix("n"))
        leaving = set() if change.address else {ordinal}
        unready = {n for n in self.quorums["quorum"] if not self._ready(controller_pod_name("quorum", n))}
        new = change.address is not None and ordinal not in self.quorums["quorum"]
        if leaving & self.quorums["quorum"] or new:
            assert not unready - leaving, f"{change} while {unready} were not ready"
        if new:
            assert all(len(listed) > ordinal for listed in brokers_lists(self)), f"{change}"
        if leaving:
            assert ordinal == max(self.quorums["quorum"] | leaving), f"{change} is not the last one"

    def _check_configuration(self, files: dict[str, str]) -> None:
        """No controller may vote by a configuration that names others than the members."""
        for text in files.values():
            keys = properties.parse(text)
            if "controllerDLegerPeers" not in keys or keys.get("joinControllerGroup") == "true":
                continue
            named = {int(one.partition("-")[0][1:]) for one in keys["controllerDLegerPeers"].split(";")}
            assert named == self.quorums.get("quorum", named), f"a configuration names {named}"

    def _check_size(self, manifest: Any) -> None:
        if manifest["kind"] != "StatefulSet" or "quorum" not in self.quorums:
            return
        target, size = self.status(QUORUM).get("targetReplicas"), manifest["spec"]["replicas"]
        assert target is None or size == target
        assert size > max(self.quorums["quorum"]), f"{size} pods for the members {self.quorums['quorum']}"


def brokers_lists(api: FakeApi) -> list[list[str]]:
    """The controllers that each broker lists: by the configuration that it applied last."""
    found = []
    for pod in pods_of(api, BROKERS):
        _, applied = api.reloaded.get(pod["metadata"]["uid"], ("", None))
        config = applied or properties.parse(files_of(api, pod))
        found.append(config["controllerAddr"].split(";"))
    return found


def ready_groups(count: int, api: FakeApi | None = None) -> FakeApi:
    """A cluster with this number of controllers, and a group of three replicas that uses them."""
    api = api or QuorumApi(renderer=manifest_renderer(), can_reload=True)
    api.put("ControllerGroup", "quorum", {"replicas": count})
    api.put("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "quorum"})
    api.settle()
    return api


def sizes(api: FakeApi) -> list[int]:
    """The sizes of the controllers' StatefulSet, in order."""
    found = [one["spec"]["replicas"] for one in api.applied[CONTROLLERS]]
    return [size for size, before in zip(found, [0, *found], strict=False) if size != before]


def controllers(api: FakeApi) -> list[str]:
    """The pods of controllers."""
    return [str(pod["metadata"]["name"]) for pod in pods_of(api, CONTROLLERS)]


def is_at(api: FakeApi, count: int) -> bool:
    """Whether exactly this number of controllers runs, and they are the members."""
    status = api.status(QUORUM)
    names = [controller_pod_name("quorum", n) for n in range(count)]
    return (
        (status["phase"], status["ready"], status["targetReplicas"]) == ("Ready", f"{count}/{count}", count)
        and controllers(api) == names
        and api.quorums["quorum"] == set(range(count))
        and all(len(listed) == count for listed in brokers_lists(api))
    )


@pytest.mark.parametrize(
    "counts", [(1, 3), (3, 5, 3), (3, 1), (5, 1, 3)], ids=lambda counts: "-".join(map(str, counts))
)
def test_controllers_are_added_and_removed_one_by_one_and_no_pod_restarts(counts: tuple[int, ...]) -> None:
    api = ready_groups(counts[0])
    before = {pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in api.pods()}
    expected = [counts[0]]
    for old, new in pairwise(counts):
        api.put("ControllerGroup", "quorum", {"replicas": new})
        api.settle()
        assert is_at(api, new)
        assert api.status(QUORUM)["plan"]["name"] == "membership"
        expected += range(old + 1, new + 1) if new > old else range(old - 1, new - 1, -1)
    assert sizes(api) == expected
    stay = {f"quorum-controller-{n}" for n in range(min(counts))} | {f"orders-broker-{n}" for n in range(3)}
    assert {pod: uid for pod, uid in before.items() if pod in stay}.items() <= {
        pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in api.pods()
    }.items()
    assert restarts(api) == []
    claims = {ref.name for ref in api.objects if ref.kind == "PersistentVolumeClaim"}
    assert {f"data-quorum-controller-{n}" for n in range(max(counts))} <= claims
    assert (BUDGET in api.objects) is (counts[-1] >= 3)


def test_each_step_has_an_event() -> None:
    api = ready_groups(3)
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    api.settle()
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    said = [
        one.message for one in api.events.values() if one.reason in ("AddingMember", "RemovingController")
    ]
    assert said == [
        "makes quorum-controller-3 a member of the quorum",
        "makes quorum-controller-4 a member of the quorum",
        "removes quorum-controller-4 from the quorum; its volume stays",
        "removes quorum-controller-3 from the quorum; its volume stays",
    ]


def test_without_credentials_the_change_is_blocked_with_advice() -> None:
    api = ready_groups(3)
    api.can_reload = False
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    api.settle()
    condition = api.condition(QUORUM, "Progressing")
    assert condition["reason"] == "MembershipBlocked"
    assert "set spec.admin.tokenSecret; 3 controllers keep running" in condition["message"]
    assert api.condition(QUORUM, "Degraded")["status"] == "False"
    assert sizes(api) == [3]
    api.can_reload = True
    api.settle()
    assert is_at(api, 5)


def test_brokers_whose_sidecars_need_no_credentials_restart_once_for_each_new_controller() -> None:
    api = ready_groups(1)
    api.reloads_brokers = False
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    assert is_at(api, 3)
    assert sorted(restarts(api)) == sorted(2 * [f"orders-broker-{n}" for n in range(3)])


def an_unready_member(api: FakeApi) -> None:
    api.unready = {"quorum-controller-1"}


def a_busy_leader(api: FakeApi) -> None:
    api.busy = {"quorum"}


def a_paused_broker_group(api: FakeApi) -> None:
    api.annotate(ORDERS, paused="true")


def silence(api: FakeApi) -> None:
    api.silent = True


def recover(api: FakeApi) -> None:
    """Ends all of these."""
    api.unready, api.busy, api.silent = set(), set(), False
    api.annotate(ORDERS, paused="false")


@pytest.mark.long
@pytest.mark.parametrize(
    ("trouble", "most"),
    [(an_unready_member, 3), (a_busy_leader, 4), (a_paused_broker_group, 4), (silence, 3)],
)
def test_no_member_is_added_under_these_conditions(trouble: Callable[[FakeApi], None], most: int) -> None:
    api = ready_groups(3)
    trouble(api)
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    run(api)
    assert api.quorums["quorum"] == {0, 1, 2}
    assert sizes(api)[-1] == most
    assert api.status(QUORUM)["phase"] != "Ready" or most == 3
    recover(api)
    api.settle()
    assert is_at(api, 5)


@pytest.mark.long
@pytest.mark.parametrize("trouble", [an_unready_member, a_busy_leader, silence])
def test_no_member_is_removed_under_these_conditions(trouble: Callable[[FakeApi], None]) -> None:
    api = ready_groups(5)
    trouble(api)
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    run(api)
    assert api.quorums["quorum"] == {0, 1, 2, 3, 4}
    assert sizes(api) == [5]
    recover(api)
    api.settle()
    assert is_at(api, 3)


def test_a_dead_controller_that_is_to_be_removed_hinders_nothing() -> None:
    api = ready_groups(5)
    api.unready = {"quorum-controller-4"}
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    assert is_at(api, 3)


def test_a_leader_transfers_its_leadership_before_it_is_removed() -> None:
    api = ready_groups(3)
    api.leaders["quorum"] = "quorum-controller-2"
    api.put("ControllerGroup", "quorum", {"replicas": 1})
    api.settle()
    assert is_at(api, 1)
    assert api.leaders["quorum"] == "quorum-controller-0"


@pytest.mark.long
def test_a_controller_that_does_not_start_is_taken_back() -> None:
    api = ready_groups(3)
    api.unready = {"quorum-controller-3"}
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    run(api)
    message = api.condition(QUORUM, "Progressing")["message"]
    assert "waits until n3 responds; quorum-controller-3 is not ready" in message
    assert api.condition(QUORUM, "QuorumHealthy")["message"] == "quorum-controller-0 leads"
    assert sizes(api) == [3, 4]
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    assert is_at(api, 3)
    assert api.status(QUORUM)["founders"] == 3


def test_a_change_is_reverted_after_its_first_member() -> None:
    api = ready_groups(3)
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    for _ in range(60):
        api.tick()
        api.operate()
        if 3 in api.quorums["quorum"]:
            break
    assert api.quorums["quorum"] == {0, 1, 2, 3}
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    assert is_at(api, 3)
    assert sizes(api) == [3, 4, 3]


@pytest.mark.long
@pytest.mark.parametrize("wrong", [0, 1, 3, 9])
def test_a_statefulset_that_is_scaled_by_hand_during_a_change_is_scaled_back(wrong: int) -> None:
    api = ready_groups(3)
    api.unready = {"quorum-controller-3"}
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    run(api)
    api.scale(CONTROLLERS, wrong)
    api.settle(200) if wrong == 9 else run(api)
    assert api.objects[CONTROLLERS]["spec"]["replicas"] == 4
    api.unready = set()
    api.settle()
    assert is_at(api, 5)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("deleted", [False, True], ids=["statefulset kept", "statefulset deleted"])
def test_a_lost_status_changes_no_configuration(count: int, deleted: bool) -> None:
    """The number of founders is that of the configuration."""
    api = ready_groups(3)
    api.put("ControllerGroup", "quorum", {"replicas": count})
    api.settle()
    before = {ref for ref in api.objects if ref.kind == "ConfigMap"}
    status = api.objects[QUORUM]["status"]
    api.objects[QUORUM]["status"] = {"plan": status["plan"], "targetReplicas": count} if deleted else {}
    if deleted:
        api.objects[QUORUM]["status"] |= {"founders": status["founders"]}
        api.remove(CONTROLLERS)
    api.settle()
    assert is_at(api, count)
    assert api.status(QUORUM)["founders"] == 0
    assert {ref for ref in api.objects if ref.kind == "ConfigMap"} <= before


def test_pods_that_start_later_have_no_vote_until_the_log_names_them() -> None:
    api = ready_groups(3)
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    api.settle()
    for name in controllers(api):
        api.remove(Ref("Pod", NAMESPACE, name))
    api.settle()
    keys = [properties.parse(files_of(api, pod)) for pod in pods_of(api, CONTROLLERS)]
    assert [one["joinControllerGroup"] for one in keys] == ["true"] * 5


def test_a_member_that_others_removed_is_added_again() -> None:
    api = ready_groups(3)
    api.quorums["quorum"] = frozenset({0, 1})
    api.settle()
    assert is_at(api, 3)
    assert api.status(QUORUM)["founders"] == 0


def test_a_group_of_an_earlier_release_restarts_each_controller_once_before_the_first_one_is_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its configuration has files only for the controllers that it began with."""
    with monkeypatch.context() as former:
        former.setattr(group_manifests, "possible_pods_of", group_manifests.pods_of)
        former.setattr(group_manifests, "restart_digest", lambda component, template, data: None)
        former.setattr(fake_api, "RENDERED", OrderedDict())
        api = ready_groups(3)
        api.objects[QUORUM]["status"].pop("founders")
    api.settle()
    assert [name for name in restarts(api) if "controller" in name] == []
    api.put("ControllerGroup", "quorum", {"replicas": 5})
    api.settle()
    assert is_at(api, 5)
    assert [name for name in restarts(api) if "controller" in name] == [
        "quorum-controller-2",
        "quorum-controller-1",
        "quorum-controller-0",
    ]


@pytest.mark.long
def test_no_controller_restarts_for_an_update_while_two_run() -> None:
    api = ready_groups(1)
    api.busy = {"quorum"}
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    run(api)
    assert len(controllers(api)) == 2
    api.put("ControllerGroup", "quorum", {"replicas": 3, "config": {"scanNotActiveBrokerInterval": 7000}})
    run(api, 4)
    api.busy = set()
    numbers = []
    for _ in range(60):
        api.tick()
        before = len(restarts(api))
        api.operate()
        numbers += [len(api.quorums["quorum"])] * (len(restarts(api)) - before)
    assert set(numbers) == {3}
    assert is_at(api, 3)


# an operator that is killed

READY = {count: ready_groups(count) for count in (1, 3)}
HISTORIES = {"1-3": (1, (3,)), "3-5-3": (3, (5, 3)), "3-5 reverted-1": (3, (5, 1))}
ROUNDS_MAX = {"3-5 reverted-1": 12}


def changed(history: str, stop: int | None) -> tuple[FakeApi, int]:
    """A change under operators of which one is killed after `stop` effects; the number of effects."""
    first, counts = HISTORIES[history]
    api = copy.deepcopy(READY[first])
    total = change_under_operators(
        api,
        counts,
        lambda count: api.put("ControllerGroup", "quorum", {"replicas": count}),
        ROUNDS_MAX.get(history, 40),
        stop,
    )
    return api, total


@pytest.mark.long
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("step", STEPS)
def test_an_operator_killed_after_any_effect_of_a_change_finishes_it(history: str, step: int) -> None:
    _, total = changed(history, None)
    assert total > 10
    for stop in range(1, total, step):
        api, _ = changed(history, stop)
        api.settle()
        assert is_at(api, HISTORIES[history][1][-1]), f"after {stop} effects"
        assert restarts(api) == [], f"after {stop} effects"


@pytest.mark.long
def test_the_target_is_recorded_before_a_pod_starts_and_after_a_member_is_removed() -> None:
    """So the StatefulSet never has a member fewer than the quorum."""
    api = ready_groups(3)
    for count in (5, 3):
        api.put("ControllerGroup", "quorum", {"replicas": count})
        for _ in range(40):
            api.tick()
            outcome = api.look(QUORUM)
            kinds = [type(one) for one in outcome.effects] if outcome else []
            if ChangeQuorumMembers in kinds and count == 3:
                assert kinds.index(ChangeQuorumMembers) < len(kinds) - 1
                assert kinds[-1] is PatchStatus
            api.operate()
    assert is_at(api, 3)
