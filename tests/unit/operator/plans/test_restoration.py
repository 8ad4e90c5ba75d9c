"""A new group with `spec.restoreFrom` starts with the same store in every replica, whatever fails meanwhile,
and is never restored again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from epochmq_operator.manifests.restore_pod import ORDER_ANNOTATION
from epochmq_operator.plans.objects import Ref, annotation
from epochmq_operator.plans.restoration import RESTORED_ANNOTATION
from tests.unit.operator.plans.fake_api import NAMESPACE, manifest_renderer
from tests.unit.operator.plans.restoring_api import BROKERS, END, NEWEST, ORDERS, SETTINGS, RestoringApi

OTHER = "20300130T140000Z-0a1b2c"
RESTORED = {"state": "Restored", "backup": NEWEST, "logStart": 0, "logEnd": END, "replicas": 3}


def claim(ordinal: int) -> Ref:
    return Ref("PersistentVolumeClaim", NAMESPACE, f"store-orders-broker-{ordinal}")


def pod(name: str) -> Ref:
    return Ref("Pod", NAMESPACE, name)


def rounds(api: RestoringApi, count: int) -> None:
    for _ in range(count):
        api.tick()
        api.operate()


def test_every_replica_starts_with_the_newest_backup() -> None:
    api = RestoringApi()
    api.group()
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"
    assert api.status(ORDERS)["restore"] == RESTORED
    assert api.contents() == [NEWEST] * 3
    assert api.restore_pods() == []
    reasons = api.reasons()
    assert reasons.count("BackupRestored") == 1
    assert "RestoreBlocked" not in reasons


def test_a_backup_and_a_point_are_passed_on() -> None:
    api = RestoringApi(hanging={"orders-restore-0"})
    api.group(restoreFrom={"url": "s3://b/o", "backup": OTHER, "time": "2030-01-30T12:00:00Z"})
    rounds(api, 12)
    assert api.contents() == ["", OTHER, OTHER]
    words = api.objects[pod("orders-restore-0")]["spec"]["containers"][0]["args"]
    assert words[words.index("--time-ms") + 1] == "1896004800000"


def test_the_pods_run_as_the_brokers_do_and_are_kept_apart_as_they_are() -> None:
    api = RestoringApi(hanging={"orders-restore-1"})
    secret = {"url": "s3://b/o", "credentialsSecret": "s3", "serviceAccountName": "reader"}
    api.group(restoreFrom=secret, hostSpread="Required", nodeSelector={"disk": "ssd"})
    rounds(api, 12)
    spec = api.objects[pod("orders-restore-1")]["spec"]
    (rule,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"]["epochmq.io/component"] == "restore"
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["securityContext"]["fsGroup"] == 10001
    assert spec["serviceAccountName"] == "reader"
    (container,) = spec["containers"]
    assert container["image"] == "epochmq/spark:1"
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert spec["volumes"][-1] == {"name": "store", "persistentVolumeClaim": {"claimName": claim(1).name}}


def test_a_claim_with_backups_is_mounted_and_the_brokers_image_used() -> None:
    api = RestoringApi(
        hanging={"orders-restore"}, renderer=manifest_renderer(replace(SETTINGS, audit_image=None))
    )
    api.group(restoreFrom={"url": "file:///backups/orders", "claimName": "nfs"}, image="mirror/broker:2")
    rounds(api, 8)
    spec = api.objects[pod("orders-restore")]["spec"]
    assert spec["containers"][0]["image"] == "mirror/broker:2"
    assert {"name": "backups", "mountPath": "/backups", "readOnly": True} in spec["containers"][0][
        "volumeMounts"
    ]


def test_the_claims_are_those_that_a_stateful_set_makes() -> None:
    api = RestoringApi(hanging={"orders-restore"})
    api.group(storage={"size": "20Gi", "storageClassName": "fast", "retention": "Delete"})
    rounds(api, 8)
    found = api.objects[claim(2)]
    assert found["spec"]["resources"] == {"requests": {"storage": "20Gi"}}
    assert found["spec"]["storageClassName"] == "fast"
    assert found["metadata"]["labels"]["epochmq.io/component"] == "broker"
    assert annotation(found, ORDER_ANNOTATION) == api.uid(ORDERS)
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (api.uid(ORDERS), False)


def test_the_owner_of_a_restored_volume_is_one_that_server_side_apply_can_take_back() -> None:
    api = RestoringApi()
    api.group(storage={"retention": "Delete"})
    api.settle()
    created, *applied = (one for one in api.written if one["metadata"]["name"] == claim(0).name)
    assert "ownerReferences" not in created["metadata"]
    assert [one["metadata"]["ownerReferences"][0]["uid"] for one in applied] == [api.uid(ORDERS)]
    assert set(applied[0]["spec"]) == {"resources"}
    api.group(storage={"retention": "Retain"})
    api.settle()
    assert not api.objects[claim(0)]["metadata"].get("ownerReferences")


@pytest.mark.long
def test_an_operator_that_is_killed_after_any_effect_is_followed_by_one_that_continues() -> None:
    whole = RestoringApi()
    whole.group()
    total = 0
    while BROKERS not in whole.objects:
        whole.tick()
        total += whole.operate()
    for kill in range(total + 1):
        api = RestoringApi()
        api.group()
        done = 0
        while done < kill:
            api.tick()
            made = api.operate(limit=kill - done)
            done += made
        api.replace_operator()
        api.settle()
        assert api.contents() == [NEWEST] * 3
        assert api.status(ORDERS)["restore"] == RESTORED, kill
        assert max(api.created[f"Pod orders-restore-{n}"] for n in range(3)) == 1


def test_all_volumes_get_the_same_backup_although_a_newer_one_appears() -> None:
    api = RestoringApi(hanging={"orders-restore-1"})
    api.group()
    rounds(api, 12)
    assert api.contents() == [NEWEST, "", NEWEST]
    api.newest = "20300201T140000Z-0a1b2c"
    api.remove(pod("orders-restore-1"))
    api.hanging.clear()
    api.settle()
    assert api.contents() == [NEWEST] * 3


def test_no_volume_is_restored_before_all_pods_have_a_node() -> None:
    api = RestoringApi(homeless={"orders-restore-2"})
    api.group()
    rounds(api, 15)
    assert api.contents() == ["", "", ""]
    condition = api.condition(ORDERS, "Ready")
    assert (condition["status"], condition["reason"]) == ("False", "RestoringBackup")
    assert "orders-restore-2 cannot be scheduled: 0/3 nodes are available" in condition["message"]
    assert api.condition(ORDERS, "Reconciling")["status"] == "True"
    api.now += 700
    rounds(api, 2)
    stalled = api.condition(ORDERS, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "NoProgress")
    assert "cannot be scheduled" in stalled["message"]
    api.homeless.clear()
    api.settle()
    assert api.contents() == [NEWEST] * 3


def test_a_long_restore_is_no_fault() -> None:
    api = RestoringApi(hanging={"orders-restore-2"})
    api.group()
    rounds(api, 12)
    api.now += 7200
    rounds(api, 2)
    assert api.condition(ORDERS, "Stalled")["status"] == "False"
    assert "orders-restore-2 runs" in api.condition(ORDERS, "Progressing")["message"]
    assert api.status(ORDERS)["phase"] == "Creating"


@pytest.mark.parametrize("name", ["orders-restore", "orders-restore-1"])
def test_a_pod_that_fails_waits_for_a_person_and_begins_anew(name: str) -> None:
    api = RestoringApi(errors={name: "s3://backups/orders has no backup"})
    api.group()
    rounds(api, 15)
    assert api.status(ORDERS)["phase"] == "Blocked"
    stalled = api.condition(ORDERS, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "RestoreBlocked")
    assert f"{name}: s3://backups/orders has no backup" in stalled["message"]
    assert f"kubectl delete pod {name} --namespace trade" in stalled["message"]
    assert api.condition(ORDERS, "Ready")["reason"] == "RestoreBlocked"
    assert BROKERS not in api.objects
    api.errors.clear()
    api.remove(pod(name))
    api.settle()
    assert api.contents() == [NEWEST] * 3


def test_a_pod_that_its_node_ended_is_followed_by_another_one() -> None:
    api = RestoringApi(evicted={"orders-restore-1"})
    api.group()
    rounds(api, 15)
    assert "the node was low on memory" in api.condition(ORDERS, "Progressing")["message"]
    api.evicted.clear()
    api.now += 31
    api.settle()
    assert api.contents() == [NEWEST] * 3
    assert api.created["Pod orders-restore-1"] == 2


def test_replicas_that_are_added_or_replaced_later_copy_the_masters_log() -> None:
    api = RestoringApi()
    api.group()
    api.settle()
    api.group(replicas=5)
    api.settle()
    assert api.contents() == [NEWEST] * 3 + ["written by a broker"] * 2
    api.remove(claim(1))
    api.remove(pod("orders-broker-1"))
    api.remove(claim(1))
    api.settle()
    assert api.contents()[1] == "written by a broker"
    assert max(api.created[f"Pod orders-restore-{n}"] for n in range(5)) == 1


def test_a_lost_status_restores_nothing_again() -> None:
    api = RestoringApi()
    api.group()
    api.settle()
    api.objects[ORDERS]["status"] = {}
    api.objects[ORDERS]["spec"]["replicas"] = 4
    api.settle()
    assert api.contents() == [NEWEST] * 3 + ["written by a broker"]
    assert sum(api.created[f"Pod orders-restore-{n}"] for n in range(5)) == 3


def test_replicas_that_are_added_while_the_group_starts_come_one_by_one() -> None:
    api = RestoringApi()
    api.group()
    for _ in range(60):
        rounds(api, 1)
        if api.status(ORDERS).get("restore") == RESTORED:
            break
    assert BROKERS not in api.objects
    api.group(replicas=5)
    api.settle()
    first = api.applied[BROKERS][0]
    assert first["spec"]["replicas"] == 3
    assert api.contents() == [NEWEST] * 3 + ["written by a broker"] * 2
    assert api.status(ORDERS)["phase"] == "Ready"


def test_the_volumes_of_an_earlier_group_are_used_as_they_are() -> None:
    api = RestoringApi()
    api.group()
    api.settle()
    api.newest = OTHER
    for ref in [one for one in api.objects if one.kind != "PersistentVolumeClaim"]:
        api.objects.pop(ref, None)
    api.replace_operator()
    api.leaders.clear()
    api.masters.clear()
    api.quorums.clear()
    api.group()
    api.settle()
    assert api.contents() == [NEWEST] * 3
    assert api.status(ORDERS)["restore"]["state"] == "Skipped"
    assert "RestoreSkipped" in api.reasons()


def test_a_restore_that_an_earlier_group_did_not_finish_is_begun_for_the_new_one() -> None:
    api = RestoringApi(hanging={"orders-restore"})
    api.group()
    rounds(api, 10)
    for ref in [one for one in api.objects if one.kind != "PersistentVolumeClaim"]:
        api.objects.pop(ref, None)
    api.hanging.clear()
    api.group()
    api.settle()
    assert annotation(api.objects[claim(0)], ORDER_ANNOTATION) == api.uid(ORDERS)
    assert api.contents() == [NEWEST] * 3


def put_earlier_claim(api: RestoringApi, ordinal: int) -> None:
    spec = {"resources": {"requests": {"storage": "10Gi"}}}
    api._store(
        claim(ordinal),
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim(ordinal).name, "namespace": NAMESPACE},
            "spec": spec,
            "status": {"phase": "Bound"},
        },
    )
    api.volumes[api.uid(claim(ordinal))] = "of an earlier group"


def blocked(api: RestoringApi) -> str:
    """Why the group waits for a person."""
    rounds(api, 20)
    assert api.status(ORDERS)["phase"] == "Blocked", api.status(ORDERS)
    assert BROKERS not in api.objects
    return str(api.condition(ORDERS, "Stalled")["message"])


def test_a_volume_of_an_earlier_group_beside_new_ones_waits_for_a_person() -> None:
    api = RestoringApi()
    put_earlier_claim(api, 1)
    api.group()
    assert "kubectl delete persistentvolumeclaim store-orders-broker-1 --namespace trade" in blocked(api)
    assert api.contents() == ["of an earlier group"]
    api.remove(claim(1))
    api.settle()
    assert api.contents() == [NEWEST] * 3


def test_controllers_that_know_the_group_make_the_restore_wait() -> None:
    api = RestoringApi(known=True)
    api.group()
    assert "ControllerGroup orders knows a group with the brokerName orders" in blocked(api)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"restores": False}, "set features.restores"), ({"audit_image": None}, "set spec.restoreFrom.image")],
)
def test_an_operator_that_cannot_restore_says_so(settings: dict[str, Any], why: str) -> None:
    api = RestoringApi(renderer=manifest_renderer(replace(SETTINGS, **settings)))
    api.group()
    assert why in blocked(api)


def test_volumes_that_differ_start_no_group() -> None:
    api = RestoringApi(hanging={"orders-restore-1"})
    api.group()
    rounds(api, 12)
    found = {"backup": NEWEST, "logStart": 0, "logEnd": END - 100}
    api.annotate(claim(1), restored=json.dumps(found))
    assert RESTORED_ANNOTATION == "epochmq.io/restored"
    message = blocked(api)
    assert f"up to offset {END - 100}" in message
    assert "kubectl delete persistentvolumeclaim store-orders-broker-0 store-orders-broker-1" in message


def test_a_group_in_the_mode_master_slave_is_restored() -> None:
    api = RestoringApi()
    api.group(mode="MasterSlave", replicas=2)
    api.settle()
    assert api.contents() == [NEWEST] * 2
    words = api.applied[pod("orders-restore")][0]["spec"]["containers"][0]["args"]
    assert words[:3] == ["choose", "--mode", "MasterSlave"]


def test_a_deleted_group_leaves_no_pods() -> None:
    api = RestoringApi(hanging={"orders-restore-1"})
    api.group(storage={"retention": "Delete"})
    rounds(api, 12)
    assert api.restore_pods()
    api.remove(ORDERS)
    api.tick()
    api.tick()
    assert api.restore_pods() == []
    assert api.claims() == []
