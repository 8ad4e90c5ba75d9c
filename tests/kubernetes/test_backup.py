"""Tests backups of a running group on a real cluster, on a volume that the test can read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_operator.crd import SIMPLE_KINDS, definition_of
from epochmq_operator.resources.backup import BACKUP_KIND
from tests.kubernetes.killed_operators import KilledOperators
from tests.kubernetes.messages import TOPIC, everything, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, define, operator, run_epochmq
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.images import image_name
from tests.kubernetes.testbed.processes import TestbedError

CLAIM, URL = "backups", "file:///backups/orders"
MESSAGES = 10


@pytest.fixture(scope="module")
def definitions(cluster: Cluster) -> None:
    """Installs the CustomResourceDefinitions."""
    define(cluster)
    (kind,) = (one for one in SIMPLE_KINDS if one.kind == BACKUP_KIND)
    cluster.apply(definition_of(kind))
    name = definition_of(kind)["metadata"]["name"]
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=240s")


@pytest.fixture
def storage(groups: Groups) -> Iterator[Path]:
    """A volume for backups that every node can mount; returns its directory on this machine."""
    cluster, place = groups.cluster, groups.namespace
    folder = cluster.layout.volumes / f"backups-{place}"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    size: dict[str, Any] = {"storage": "1Gi"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"backups-{place}"},
        "spec": {
            "capacity": size,
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": place, "name": CLAIM},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": place},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": size}},
    }
    cluster.apply([volume, claim])
    yield folder / "orders"
    cluster.kubectl("delete", "persistentvolume", f"backups-{place}", "--wait=false")


def two_replicas(groups: Groups) -> None:
    """Creates the group `orders` and waits until it is ready."""
    groups.apply("ControllerGroup", "orders", {"replicas": 1})
    groups.apply("BrokerGroup", "orders", {"replicas": 2, "controllerGroup": "orders"})
    groups.ready("orders", 2)


def apply_backup(groups: Groups, name: str, **spec: Any) -> None:
    """Applies a backup of the group. The broker's image has all that backups on a volume need."""
    common = {"brokerGroup": "orders", "url": URL, "claimName": CLAIM, "image": image_name("broker")}
    chosen = {key: value for key, value in {**common, **spec}.items() if value is not None}
    groups.apply(BACKUP_KIND, name, chosen)


def ended(groups: Groups, name: str, number: int) -> dict[str, Any]:
    """Waits until a run has ended; returns its history entry."""

    def entry() -> dict[str, Any] | None:
        history = groups.status(BACKUP_KIND, name).get("history") or []
        return next((one for one in history if one["number"] == number), None)

    found: dict[str, Any] = groups.cluster.wait(entry, READY_TIMEOUT_S, f"run {number} of {name} has ended")
    return found


def pods(groups: Groups) -> list[str]:
    """The pods of backups."""
    listed = groups.cluster.core.list_namespaced_pod(groups.namespace).items
    return [one.metadata.name for one in listed if "-backup-" in one.metadata.name]


def bodies_of(folder: Path) -> bytes:
    """The log of a restored store."""
    return b"".join(path.read_bytes() for path in sorted((folder / "commitlog").iterdir()))


@pytest.mark.usefixtures("started")
def test_a_group_is_backed_up_while_it_serves_and_everything_comes_back(
    groups: Groups, storage: Path, tmp_path: Path
) -> None:
    two_replicas(groups)
    first = [f"first-{number:04}" for number in range(MESSAGES)]
    send(groups, "orders", first)
    apply_backup(groups, "nightly", retention=1)
    entry = ended(groups, "nightly", 1)
    assert (entry["reason"], entry["message"]) == ("", ""), entry
    assert entry["replica"] == groups.status("BrokerGroup", "orders")["master"]
    groups.wait(BACKUP_KIND, "nightly", phase="Done", backup=entry["backup"])
    place = ("--namespace", groups.namespace)
    groups.cluster.kubectl("wait", "--for=condition=Ready", f"{BACKUP_KIND}/nightly", "--timeout=60s", *place)
    groups.cluster.wait(lambda: not pods(groups), what="the pod of the run is deleted")

    second = [f"second-{number:04}" for number in range(MESSAGES)]
    send(groups, "orders", second)
    groups.cluster.kubectl("annotate", BACKUP_KIND, "nightly", "epochmq.io/backup-now=again", *place)
    later = ended(groups, "nightly", 2)
    assert (later["parent"], later["deleted"]) == (entry["backup"], 1), later
    assert later["uploadedBytes"] < later["bytes"]
    assert [one["id"] for one in listed(storage)] == [later["backup"]], "one backup is retained"
    run_epochmq("backup", "verify", str(storage))
    run_epochmq("restore", str(storage), "--to", str(tmp_path / "restored"), "--group", "orders")
    log = bodies_of(tmp_path / "restored")
    assert not [body for body in (*first, *second) if body.encode() not in log]
    topics = (tmp_path / "restored" / "config" / "topics.json").read_text()
    assert TOPIC in json.loads(topics)["topicConfigTable"]

    groups.cluster.kubectl("delete", BACKUP_KIND, "nightly", "--timeout=60s", *place)
    assert [one["id"] for one in listed(storage)] == [later["backup"]], "the resource is not the backup"


def listed(storage: Path) -> list[dict[str, Any]]:
    """The backups at the URL."""
    found: list[dict[str, Any]] = json.loads(run_epochmq("backup", "list", str(storage), "-o", "json"))
    return found


@pytest.mark.usefixtures("started")
def test_a_backup_that_cannot_be_taken_says_why(groups: Groups, storage: Path) -> None:
    def rejection_of(**spec: Any) -> str:
        with pytest.raises(TestbedError) as result:
            apply_backup(groups, "nightly", **spec)
        return str(result.value)

    assert "belong together" in rejection_of(url="s3://bucket/orders")
    assert "begins with file:///backups/" in rejection_of(url="file:///etc", claimName=None)
    assert "into a Secret" in rejection_of(url="s3://key:secret@bucket/orders", claimName=None)
    assert "retention" in rejection_of(retention=0)
    two_replicas(groups)
    storage.write_text("no directory")
    apply_backup(groups, "nightly")
    entry = ended(groups, "nightly", 1)
    assert (entry["backup"], entry["reason"]) == ("", "PodFailed")
    assert "Not a directory" in entry["message"], entry
    groups.wait(BACKUP_KIND, "nightly", phase="Failed")
    assert groups.condition(BACKUP_KIND, "nightly", "Stalled")["status"] == "True"
    assert "brokerGroup cannot change" in rejection_of(brokerGroup="payments")
    groups.cluster.wait(lambda: not pods(groups), what="the pod of the run is deleted")


def apply_copy(groups: Groups, replicas: int, **restore: Any) -> None:
    """Applies the group `copy`, which starts from a backup of the group `orders`."""
    source = {"url": URL, "claimName": CLAIM, **restore}
    spec = {"replicas": replicas, "controllerGroup": "copy", "restoreFrom": source}
    groups.apply("BrokerGroup", "copy", spec)


def restore_pods(groups: Groups) -> list[str]:
    """The pods of restores."""
    listed = groups.cluster.core.list_namespaced_pod(groups.namespace).items
    return [one.metadata.name for one in listed if "-restore" in one.metadata.name]


@pytest.mark.usefixtures("started", "storage")
def test_a_new_group_starts_from_a_backup_and_later_replicas_copy_its_log(groups: Groups) -> None:
    two_replicas(groups)
    bodies = [f"body-{number:04}" for number in range(MESSAGES)]
    send(groups, "orders", bodies)
    apply_backup(groups, "nightly")
    entry = ended(groups, "nightly", 1)
    assert entry["backup"], entry

    groups.apply("ControllerGroup", "copy", {"replicas": 1})
    apply_copy(groups, 2)
    groups.ready("copy", 2)
    status = groups.status("BrokerGroup", "copy")
    assert status["restore"]["state"] == "Restored", status
    assert status["restore"]["backup"] == entry["backup"]
    assert status["restore"]["logEnd"] == entry["logEnd"]
    assert len(status["syncStateSet"]) == 2
    assert sorted(everything(groups, "copy", bodies)) == bodies
    groups.cluster.wait(lambda: not restore_pods(groups), what="the pods of the restore are deleted")

    send(groups, "copy", ["after"])
    apply_copy(groups, 3)
    groups.ready("copy", 3)
    assert restore_pods(groups) == []
    assert "after" in everything(groups, "copy", [*bodies, "after"])


@pytest.mark.soak
@pytest.mark.usefixtures("started", "storage")
def test_a_restore_that_fails_starts_no_broker_and_says_what_to_do(groups: Groups) -> None:
    groups.apply("ControllerGroup", "copy", {"replicas": 1})
    apply_copy(groups, 1)
    groups.wait("BrokerGroup", "copy", phase="Blocked")
    stalled = groups.condition("BrokerGroup", "copy", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "RestoreBlocked")
    assert f"{URL} has no backup" in stalled["message"]
    assert f"kubectl delete pod copy-restore --namespace {groups.namespace}" in stalled["message"]
    sets = groups.cluster.kubectl("get", "statefulset", "--namespace", groups.namespace, "-o", "name")
    assert "copy-broker" not in sets


@pytest.mark.soak
def test_operators_killed_after_every_write_of_a_backup_take_one(
    groups: Groups, storage: Path, tmp_path: Path
) -> None:
    with operator(groups.cluster, groups.namespace, tmp_path):
        two_replicas(groups)
        send(groups, "orders", [f"body-{number}" for number in range(MESSAGES)])
        groups.settled()
    groups.forget_lease()
    apply_backup(groups, "nightly")
    died = KilledOperators(groups, tmp_path).until(
        lambda: groups.status(BACKUP_KIND, "nightly").get("phase") == "Done" and not pods(groups)
    )
    status = groups.status(BACKUP_KIND, "nightly")
    assert [one["id"] for one in listed(storage)] == [status["backup"]]
    assert len(status["history"]) == 1
    assert len([one for one in died if one.startswith("DELETE")]) == 1
    run_epochmq("backup", "verify", str(storage))
