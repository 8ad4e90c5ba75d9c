"""Tests updates of running groups: which pods restart, in which order, and what stops an update. The
manifests are those of a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from epochmq_operator.manifests import ManifestSettings
from epochmq_operator.manifests.kept_templates import image_of
from epochmq_operator.plans.effects import Apply, Delete
from epochmq_operator.plans.objects import Owner, Ref, with_owner
from epochmq_operator.plans.reported_states import ReportedControllerState
from tests.unit.operator.plans.fake_api import NAMESPACE, SETTINGS, FakeApi, manifest_renderer
from tests.unit.operator.plans.updated_groups import (
    BROKERS,
    CHANGED,
    CONTROLLERS,
    ORDERS,
    ROUNDS,
    files_of,
    pods_of,
    ready_group,
    restarts,
    run,
)

OWN = Ref("ControllerGroup", NAMESPACE, "orders")
LATER = ManifestSettings("epochmq/broker:2", "epochmq/controller:2", "epochmq-system")
OTHER_CONTROLLERS = {"replicas": 3, "image": "epochmq/broker:2"}


def ready_quorum() -> FakeApi:
    """A cluster with three controllers of their own."""
    api = FakeApi(renderer=manifest_renderer())
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    return api


def updated(api: FakeApi) -> bool:
    """Whether all pods have their StatefulSets' templates."""
    return all(
        pod["metadata"]["labels"]["controller-revision-hash"] == api.objects[sets]["status"]["updateRevision"]
        for sets in (BROKERS, CONTROLLERS)
        for pod in pods_of(api, sets)
    )


def config_maps(api: FakeApi) -> list[str]:
    """All ConfigMaps."""
    return sorted(ref.name for ref in api.objects if ref.kind == "ConfigMap")


# the order


def test_a_changed_configuration_restarts_the_replicas_and_then_the_former_master() -> None:
    api = ready_group()
    before = config_maps(api)
    master, epoch = api.masters["orders"]
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    assert restarts(api) == ["orders-broker-2", "orders-broker-1", master]
    assert api.masters["orders"] == ("orders-broker-1", epoch + 1)
    assert all("fileReservedTime=48" in files_of(api, pod) for pod in pods_of(api, BROKERS))
    assert api.status(ORDERS)["phase"] == "Ready"
    assert api.status(ORDERS)["plan"]["name"] == "update"
    after = config_maps(api)
    assert len(after) == len(before) == 2
    assert before != after


def test_every_restart_has_an_event_with_its_reason() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    reasons = [one.message for one in api.events.values() if one.reason == "RestartingPod"]
    assert reasons == [
        f"restarts orders-broker-{n}: the configuration changes: fileReservedTime" for n in (2, 1, 0)
    ]
    api.put("BrokerGroup", "orders", {**CHANGED, "image": "mine:2", "resources": {"requests": {"cpu": 2}}})
    api.settle()
    last = [one.message for one in api.events.values() if one.reason == "RestartingPod"][3:]
    assert len(last) == 3
    assert all("the image changes from epochmq/broker:1 to mine:2" in message for message in last)
    api.put("BrokerGroup", "orders", {**CHANGED, "image": "mine:2", "podLabels": {"team": "a"}})
    api.settle()
    last = [one.message for one in api.events.values() if one.reason == "RestartingPod"][6:]
    assert len(last) == 3
    assert all("the pod template changes" in message for message in last)


def test_a_pod_keeps_its_configuration_until_the_operator_restarts_it() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", CHANGED)
    seen = set()
    for _ in range(ROUNDS):
        api.tick()
        for pod in pods_of(api, BROKERS):
            template = pod["metadata"]["labels"]["controller-revision-hash"]
            seen.add((template, "fileReservedTime=48" in files_of(api, pod)))
        api.operate()
    assert sorted(new for _, new in seen) == [False, True]


def test_the_leading_controller_restarts_last_and_brokers_after_the_controllers() -> None:
    api = ready_group()
    leader = api.leaders["orders"]
    api.objects[OWN]["spec"] = {**api.objects[OWN]["spec"], "config": {"scanNotActiveBrokerInterval": 4000}}
    api.objects[OWN]["metadata"]["generation"] += 1
    api.put("BrokerGroup", "orders", CHANGED)
    # A group's own controllers are the operator's: their spec is restored unless a person made them.
    api.objects[OWN]["metadata"] |= {"ownerReferences": [], "annotations": {}}
    api.settle()
    assert restarts(api) == [
        *["orders-controller-2", "orders-controller-1", leader],
        *["orders-broker-2", "orders-broker-1", "orders-broker-0"],
    ]
    assert updated(api)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_group_without_a_replica_to_spare_is_updated_nevertheless(replicas: int) -> None:
    api = ready_group(replicas=replicas)
    api.put("BrokerGroup", "orders", {**CHANGED, "replicas": replicas})
    api.settle()
    assert len(restarts(api)) == replicas
    assert updated(api)


def test_scaling_up_raises_the_number_of_copies_of_all_replicas() -> None:
    api = ready_group(replicas=1)
    assert "minInSyncReplicas" not in files_of(api, pods_of(api, BROKERS)[0])
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert ["minInSyncReplicas=2" in files_of(api, pod) for pod in pods_of(api, BROKERS)] == [True] * 3
    assert api.status(ORDERS)["ready"] == "3/3"
    assert restarts(api) == ["orders-broker-1", "orders-broker-0"]


def test_scaling_down_lowers_the_number_of_copies_first_so_the_plan_is_an_update() -> None:
    """The configuration without a second copy is an update, and the plan keeps the name of its first step."""
    api = ready_group()
    api.put("BrokerGroup", "orders", {"replicas": 1})
    api.settle()
    assert api.status(ORDERS)["ready"] == "1/1"
    assert api.status(ORDERS)["plan"]["name"] == "update"
    assert len(restarts(api)) == 3


# what stops an update


def trouble_of_a_replica(api: FakeApi) -> None:
    """A replica is not ready."""
    api.unready = {"orders-broker-1"}


def trouble_of_a_slow_replica(api: FakeApi) -> None:
    """A ready replica is not in sync."""
    api.behind = {"orders-broker-1"}


def trouble_of_the_quorum(api: FakeApi) -> None:
    """Two of three controllers are not ready."""
    api.unready = {"orders-controller-0", "orders-controller-1"}


def trouble_of_the_network(api: FakeApi) -> None:
    """No sidecar responds."""
    api.silent = True


@pytest.mark.parametrize(
    "trouble",
    [trouble_of_a_replica, trouble_of_a_slow_replica, trouble_of_the_quorum, trouble_of_the_network],
)
def test_no_pod_restarts_without_a_quorum_and_replicas_in_sync(trouble: Callable[[FakeApi], None]) -> None:
    api = ready_group()
    trouble(api)
    run(api, 3)
    api.put("BrokerGroup", "orders", CHANGED)
    run(api)
    # A replica that is neither ready nor in sync serves nobody: it may restart.
    assert restarts(api) == (["orders-broker-1"] if trouble is trouble_of_a_replica else [])
    assert api.condition(ORDERS, "Progressing")["status"] == "True"
    api.unready, api.behind, api.silent = set(), set(), False
    api.settle()
    assert sorted(restarts(api)) == [f"orders-broker-{n}" for n in range(3)]
    assert updated(api)


@pytest.mark.parametrize(
    "bad", [{"image": "bad:1"}, {"config": {"fileReservedTime": "bad"}}], ids=["image", "configuration"]
)
def test_a_bad_update_stops_at_the_first_pod_and_reverting_it_recovers(bad: dict[str, Any]) -> None:
    api = ready_group()
    master, epoch = api.masters["orders"]
    api.put("BrokerGroup", "orders", {"replicas": 3, **bad})
    run(api)
    assert restarts(api) == ["orders-broker-2"]
    assert api.status(ORDERS)["ready"] == "2/3"
    assert api.condition(ORDERS, "Degraded")["status"] == "True"
    assert "does not run" in api.condition(ORDERS, "Ready")["message"]
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert restarts(api) == ["orders-broker-2"] * 2
    assert api.masters["orders"] == (master, epoch)
    assert api.status(ORDERS)["phase"] == "Ready"


def test_a_bad_update_of_controllers_stops_at_the_first_pod_and_reverting_it_recovers() -> None:
    api = ready_quorum()
    api.put("ControllerGroup", "quorum", {"replicas": 3, "image": "bad:1"})
    run(api)
    assert restarts(api) == ["quorum-controller-2"]
    assert api.leaders["quorum"] == "quorum-controller-0"
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    assert restarts(api) == ["quorum-controller-2"] * 2


def test_an_update_that_broke_several_pods_is_reverted() -> None:
    """Pods that were deleted while the bad template was in force broke, too."""
    api = ready_group()
    api.put("BrokerGroup", "orders", {"replicas": 3, "config": {"fileReservedTime": "bad"}})
    run(api)
    api.remove(Ref("Pod", NAMESPACE, "orders-broker-1"))
    run(api)
    assert api.status(ORDERS)["ready"] == "1/3"
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert api.status(ORDERS)["ready"] == "3/3"
    assert api.masters["orders"][0] == "orders-broker-0"


@pytest.mark.parametrize(
    ("ready", "kind", "name", "pods", "changed"),
    [
        (ready_group, "BrokerGroup", "orders", "orders-broker", CHANGED),
        (ready_quorum, "ControllerGroup", "quorum", "quorum-controller", OTHER_CONTROLLERS),
    ],
    ids=["broker", "controller"],
)
def test_a_pod_whose_sidecar_fails_is_not_restarted_beside_another_one(
    ready: Callable[[], FakeApi], kind: str, name: str, pods: str, changed: dict[str, Any]
) -> None:
    """It is not ready to Kubernetes, and the controllers still count on it."""
    api = ready()
    before = api.states()
    api.unready = {f"{pods}-1", f"{pods}-2"}
    run(api, 2)
    api.put(kind, name, changed)
    api.states = lambda: before  # type: ignore[method-assign]
    run(api)
    assert restarts(api) == []


def test_an_update_of_controllers_waits_for_a_leader_although_all_are_ready() -> None:
    api = ready_quorum()
    states = api.states
    api.states = lambda: dict.fromkeys(states(), ReportedControllerState())  # type: ignore[method-assign]
    api.put("ControllerGroup", "quorum", OTHER_CONTROLLERS)
    run(api, 2)
    quorum = Ref("ControllerGroup", NAMESPACE, "quorum")
    assert api.status(quorum)["ready"] == "3/3"
    assert api.condition(quorum, "Progressing")["reason"] == "AwaitingReady"
    assert restarts(api) == []


# images


def test_another_default_image_restarts_no_pod() -> None:
    api = ready_group()
    writes = api.writes
    api.renderer = manifest_renderer(LATER)
    api.settle()
    assert api.writes == writes
    assert api.status(ORDERS)["pinnedImage"] == "epochmq/broker:1"
    api.put("BrokerGroup", "bills", {"replicas": 1})
    api.settle()
    assert api.status(Ref("BrokerGroup", NAMESPACE, "bills"))["pinnedImage"] == "epochmq/broker:2"
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    assert {image_of(pod["spec"]) for pod in pods_of(api, BROKERS)} == {"epochmq/broker:1"}


def test_a_group_that_follows_the_operator_gets_its_default_image() -> None:
    api = ready_group(updatePolicy={"operatorChanges": "Follow"})
    api.renderer = manifest_renderer(LATER)
    api.settle()
    assert {image_of(pod["spec"]) for pod in pods_of(api, BROKERS)} == {"epochmq/broker:2"}
    assert {image_of(pod["spec"]) for pod in pods_of(api, CONTROLLERS)} == {"epochmq/controller:2"}
    assert len(restarts(api)) == 6


def test_a_group_that_no_longer_names_an_image_gets_the_present_default() -> None:
    api = ready_group(image="mine:1")
    assert api.status(ORDERS)["pinnedImage"] == ""
    api.renderer = manifest_renderer(LATER)
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert {image_of(pod["spec"]) for pod in pods_of(api, BROKERS)} == {"epochmq/broker:2"}


def test_a_deleted_status_changes_no_image() -> None:
    api = ready_group()
    api.renderer = manifest_renderer(LATER)
    for ref in (ORDERS, OWN):
        api.objects[ref]["status"] = {}
    api.settle()
    assert {image_of(pod["spec"]) for pod in pods_of(api, BROKERS)} == {"epochmq/broker:1"}
    assert restarts(api) == []


# groups of an earlier release


def made_by_an_earlier_release() -> FakeApi:
    """A ready group as an earlier release leaves it: StatefulSets without digests, whose ConfigMaps have
    their names and hold files of the existing pods only; a status without the fields of this release."""
    api = ready_group()
    for ref in (BROKERS, CONTROLLERS):
        found = api.objects[ref]
        volumes = found["spec"]["template"]["spec"]["volumes"]
        (volume,) = (one for one in volumes if "configMap" in one)
        data = api.objects.pop(Ref("ConfigMap", NAMESPACE, volume["configMap"]["name"]))["data"]
        volume["configMap"]["name"] = ref.name
        # Its template is not what this release renders, either.
        found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 77
        del found["metadata"]["annotations"]
        owner = Owner(*(("BrokerGroup", "orders") if ref is BROKERS else ("ControllerGroup", "orders")), "")
        meta = {"name": ref.name, "namespace": NAMESPACE}
        for manifest in (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data},
            {key: found[key] for key in ("apiVersion", "kind", "metadata", "spec")},
        ):
            resource = Ref(owner.kind, NAMESPACE, owner.name)
            made = with_owner(manifest, Owner(owner.kind, owner.name, api.uid(resource)))
            api._store(Ref(str(manifest["kind"]), NAMESPACE, ref.name), made)
        for pod in pods_of(api, ref):
            api.remove(Ref("Pod", NAMESPACE, pod["metadata"]["name"]))
    for ref in (ORDERS, OWN):
        for key in ("pinnedImage", "adopted", "targetReplicas"):
            api.objects[ref]["status"].pop(key, None)
    for _ in range(3):
        api.tick()
    api.renderer = manifest_renderer(LATER)
    return api


def test_a_group_of_an_earlier_release_is_adopted_without_a_restart() -> None:
    api = made_by_an_earlier_release()
    uids = {pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in api.pods()}
    api.settle()
    assert uids == {pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in api.pods()}
    assert updated(api)
    assert config_maps(api) == ["orders-broker", "orders-controller"]
    assert api.status(ORDERS)["pinnedImage"] == "epochmq/broker:1"
    assert api.status(ORDERS)["phase"] == "Ready"
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    assert len(restarts(api)) == 3
    assert all("fileReservedTime=48" in files_of(api, pod) for pod in pods_of(api, BROKERS))
    assert "orders-broker" not in config_maps(api)
    assert {image_of(pod["spec"]) for pod in pods_of(api, BROKERS)} == {"epochmq/broker:1"}


def test_a_change_from_before_the_adoption_is_carried_out() -> None:
    api = made_by_an_earlier_release()
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    assert restarts(api) == ["orders-broker-2", "orders-broker-1", "orders-broker-0"]
    assert all("fileReservedTime=48" in files_of(api, pod) for pod in pods_of(api, BROKERS))


@pytest.mark.long
@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("stop", range(16))
def test_an_operator_killed_while_it_adopts_a_group_restarts_no_pod_for_it(stop: int, changed: bool) -> None:
    api = made_by_an_earlier_release()
    if changed:
        api.put("BrokerGroup", "orders", CHANGED)
    api.operate(limit=stop)
    api.settle()
    assert len(restarts(api)) == (3 if changed else 0)
    assert api.status(ORDERS)["phase"] == "Ready"


@pytest.mark.parametrize("replicas", [2, 5])
def test_a_group_of_an_earlier_release_scales_without_a_restart(replicas: int) -> None:
    """Unless another number of replicas needs another number of copies."""
    api = made_by_an_earlier_release()
    api.settle()
    for wanted in (5, 3, replicas):
        api.put("BrokerGroup", "orders", {"replicas": wanted})
        api.settle()
        assert api.status(ORDERS)["ready"] == f"{wanted}/{wanted}"
        assert len(restarts(api)) == (3 if wanted == 2 else 0)


def test_a_former_configuration_that_was_deleted_is_replaced_by_the_present_one() -> None:
    api = made_by_an_earlier_release()
    api.settle()
    api.remove(Ref("ConfigMap", NAMESPACE, "orders-broker"))
    api.settle()
    assert updated(api)
    assert api.status(ORDERS)["phase"] == "Ready"


# an operator that is killed


def update(stop: int | None) -> tuple[FakeApi, int]:
    """A group that is updated by an operator which is killed after `stop` effects; the number of effects."""
    api = ready_group()
    api.put("BrokerGroup", "orders", {**CHANGED, "image": "mine:2"})
    total = 0
    for _ in range(ROUNDS):
        api.tick()
        done = api.operate(limit=stop)
        stop = None if stop is None or done >= stop else stop - done
        total += done
    return api, total


@pytest.mark.long
@pytest.mark.parametrize("stop", range(update(None)[1]))
def test_an_operator_killed_after_any_effect_of_an_update_finishes_with_one_switchover(stop: int) -> None:
    api, _ = update(stop)
    api.settle()
    assert restarts(api) == ["orders-broker-2", "orders-broker-1", "orders-broker-0"]
    assert api.deleted["Pod orders-broker-0"] == 1
    assert api.masters["orders"][1] == 2
    assert updated(api)
    assert len(config_maps(api)) == 2


# drift


def test_a_template_that_somebody_else_changed_is_reverted_without_a_restart() -> None:
    api = ready_group()
    uids = {pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in api.pods()}
    api.objects[BROKERS]["spec"]["template"]["spec"]["containers"][0]["image"] = "bad:1"
    api.settle()
    assert uids == {pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in api.pods()}
    assert "RevertingDrift" in api.reasons()
    assert image_of(api.objects[BROKERS]["spec"]["template"]["spec"]) == SETTINGS.broker_image


def test_deleted_and_changed_annotations_restart_no_pod() -> None:
    api = ready_group()
    for wrong in ({}, {"epochmq.io/template": "x", "epochmq.io/template-inputs": "y"}):
        applied = api.objects[BROKERS]["metadata"]["annotations"]["epochmq.io/applied"]
        api.objects[BROKERS]["metadata"]["annotations"] = {"epochmq.io/applied": applied, **wrong}
        api.settle()
        assert restarts(api) == []
        assert api.objects[BROKERS]["metadata"]["annotations"]["epochmq.io/template-inputs"] != "y"


# maintenance windows and supervised updates

NIGHTS = [{"schedule": "0 3 * * *", "minutes": 60}]


def test_a_supervised_update_waits_for_its_approval_and_pods_stay_as_they_are() -> None:
    supervised = {"updatePolicy": {"approval": "Supervised"}}
    api = ready_group(**supervised)
    api.put("BrokerGroup", "orders", {**CHANGED, **supervised})
    api.settle()
    assert restarts(api) == []
    assert api.status(ORDERS)["phase"] == "UpdatePending"
    assert api.condition(ORDERS, "Degraded")["status"] == "False"
    message = api.condition(ORDERS, "Progressing")["message"]
    name = message.rpartition("=")[2]
    api.remove(Ref("Pod", NAMESPACE, "orders-broker-1"))
    api.settle()
    assert not any("fileReservedTime=48" in files_of(api, pod) for pod in pods_of(api, BROKERS))
    api.annotate(ORDERS, approve_update="another")
    api.settle()
    assert restarts(api) == []
    api.annotate(ORDERS, approve_update=name)
    api.settle()
    assert len(restarts(api)) == 3
    assert api.status(ORDERS)["phase"] == "Ready"
    api.put("BrokerGroup", "orders", {"replicas": 3, **supervised})
    api.settle()
    assert len(restarts(api)) == 3, "an approval is for one update"


def test_an_update_waits_for_a_maintenance_window_and_stops_at_its_end() -> None:
    policy = {"updatePolicy": {"windows": NIGHTS}}
    api = ready_group(**policy)  # at 8:00
    api.put("BrokerGroup", "orders", {**CHANGED, **policy})
    api.settle()
    assert restarts(api) == []
    assert "2027-01-16T03:00:00Z" in api.condition(ORDERS, "Progressing")["message"]
    api.now = 1_800_068_400.0 - 2  # two seconds before 3:00
    for _ in range(10):
        if not restarts(api):
            run(api, 1)
    assert len(restarts(api)) == 1
    api.now += 3600
    run(api)
    assert len(restarts(api)) == 1
    api.now += 23 * 3600
    api.settle()
    assert len(restarts(api)) == 3
    assert api.status(ORDERS)["phase"] == "Ready"


def test_what_is_no_update_waits_for_no_window() -> None:
    policy = {"updatePolicy": {"windows": NIGHTS, "approval": "Supervised"}}
    api = ready_group(**policy)
    api.put("BrokerGroup", "orders", {**CHANGED, **policy, "replicas": 5})
    api.remove(Ref("Service", NAMESPACE, "orders-brokers"))
    api.settle()
    assert api.status(ORDERS)["ready"] == "5/5"
    assert Ref("Service", NAMESPACE, "orders-brokers") in api.objects
    assert restarts(api) == []


def test_every_deletion_of_a_pod_follows_its_event() -> None:
    """An Event is written before the deletion, and each deletion has one."""
    api = ready_group()
    api.put("BrokerGroup", "orders", CHANGED)
    deletions = 0
    for _ in range(ROUNDS):
        api.tick()
        for resource in api.resources():
            result = api.look(resource)
            for effect in result.effects if result else ():
                api.act(effect, resource)
                deletions += isinstance(effect, Delete) and effect.ref.kind == "Pod"
                assert deletions <= len(restarts(api))
                assert not isinstance(effect, Apply) or effect.manifest["kind"] != "Pod"
    assert deletions == len(restarts(api)) == 3
