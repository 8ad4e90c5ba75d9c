"""Tests the plan of a backup: what a run creates, how it ends, and that it leaves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from epochmq_operator.backups import backup_pod
from epochmq_operator.backups.backup_pod import CUT_ANNOTATION
from epochmq_operator.plans.effects import Apply, EventType, SetAnnotation
from epochmq_operator.plans.objects import Ref
from tests.unit.operator.backups.fake_backup_cluster import (
    BACKED_UP,
    NAMESPACE,
    URL,
    ConflictError,
    FakeBackupCluster,
)

POD = Ref("Pod", NAMESPACE, "nightly-backup-1")


def for_tools(cluster: FakeBackupCluster) -> tuple[str, ...]:
    """The conditions that tools wait for."""
    return tuple(cluster.condition(kind)[0] for kind in ("Ready", "Reconciling", "Stalled"))


def test_a_backup_is_taken_once_and_its_status_says_what_it_has() -> None:
    cluster = FakeBackupCluster()
    cluster.backup()
    cluster.run()
    status, (cut,) = cluster.status, cluster.storage.values()
    assert (status["phase"], status["logEnd"], status["bytes"]) == ("Done", cut, 5000)
    assert status["backup"] == "20270115T080000Z-000000"
    assert status["lastMessage"] == "2027-01-15T07:59:59Z"
    assert status["lastSuccess"] == "2027-01-15T08:00:00Z", "what came after the run began may be missing"
    assert cluster.condition("Complete") == ("True", "Taken")
    assert for_tools(cluster) == ("True", "False", "False")
    (entry,) = status["history"]
    assert (entry["replica"], entry["uploadedBytes"], entry["reason"]) == ("orders-broker-1", 700, "")
    assert cluster.pods() == []
    assert [one.reason for one in cluster.events.values()] == ["BackupStarted", "BackupCut", "BackupTaken"]
    cluster.tick(1e6)
    assert cluster.look().effects == ()


def test_the_pod_reads_the_masters_volume_beside_its_broker_and_is_restricted() -> None:
    cluster = FakeBackupCluster(hangs=True)
    cluster.backup(
        credentialsSecret="s3", retention=14, serviceAccountName="archive", tolerations=[{"key": "x"}]
    )
    cluster.run(6)
    assert for_tools(cluster) == ("False", "True", "False")
    pod = cluster.objects[POD]
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    claim = {"claimName": "store-orders-broker-1", "readOnly": True}
    assert {"name": "store", "persistentVolumeClaim": claim} in spec["volumes"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchFields"][0]["values"] == ["n1"]
    assert spec["tolerations"] == [{"key": "spot", "operator": "Exists"}, {"key": "x", "operator": "Equal"}]
    assert spec["serviceAccountName"] == "archive"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    words = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert (words["--url"], words["--keep"], words["--broker-name"]) == (URL, "14", "orders-a")
    assert (words["--cluster"], words["--mode"]) == ("DefaultCluster", "Controller")
    assert words["--order"] == f"{cluster.objects[BACKED_UP]['metadata']['uid']}/1"
    assert cluster.asked == 2, "the replicas are asked for the volume and for the cut"


def test_backups_on_a_volume_mount_its_claim() -> None:
    cluster = FakeBackupCluster(hangs=True)
    cluster.backup(url="file:///backups/orders", claimName="nfs")
    cluster.run(6)
    spec = cluster.objects[POD]["spec"]
    assert {"name": "backups", "persistentVolumeClaim": {"claimName": "nfs"}} in spec["volumes"]
    assert {"name": "backups", "mountPath": "/backups"} in spec["containers"][0]["volumeMounts"]
    assert spec["securityContext"]["fsGroup"] == 10001
    cluster.settings = replace(cluster.settings, pod_user=None)
    cluster.remove(POD)
    cluster.run(3)
    assert "fsGroup" not in cluster.objects[POD]["spec"]["securityContext"]


def test_the_cut_is_made_after_the_pod_has_read_what_was_processed() -> None:
    """A confirm offset that was reported before the pod was ready may precede what the pod has read."""
    cluster = FakeBackupCluster(hangs=True)
    cluster.backup()
    for effect in (*cluster.look().effects, *cluster.look().effects):
        cluster.act(effect)
    assert "run" in cluster.status
    for _ in range(8):
        ready = bool(cluster.pods()) and cluster.pods()[0].get("status", {}).get("phase") == "Running"
        effects = cluster.look().effects
        if any(isinstance(one, SetAnnotation) for one in effects):
            assert ready
        for effect in effects:
            cluster.act(effect)
        cluster.tick()
    annotated = int(cluster.objects[POD]["metadata"]["annotations"][CUT_ANNOTATION])
    assert annotated >= cluster.processed[cluster.objects[POD]["metadata"]["uid"]]


def test_a_pod_whose_replica_is_no_longer_the_master_is_replaced_before_the_cut() -> None:
    cluster = FakeBackupCluster()
    cluster.backup()
    while POD not in cluster.objects:
        for effect in cluster.look().effects:
            cluster.act(effect)
    cluster.master = "orders-broker-2"
    cluster.run()
    (entry,) = cluster.status["history"]
    assert (entry["replica"], cluster.status["phase"]) == ("orders-broker-2", "Done")
    assert [one for one in cluster.created if "-backup-" in one] == ["Pod nightly-backup-1"] * 2
    assert len(cluster.storage) == 1


def failed(cluster: FakeBackupCluster, reason: str, message: str) -> None:
    """Asserts that the run failed for this reason and left no pod."""
    assert cluster.status["phase"] == "Failed"
    assert cluster.condition("Complete") == ("False", reason)
    assert for_tools(cluster) == ("False", "False", "True")
    assert message in cluster.status["error"]
    assert cluster.status["history"][0]["backup"] == ""
    assert cluster.pods() == []
    last = list(cluster.events.values())[-1]
    assert (last.type, last.reason) == (EventType.WARNING, f"Backup{reason}")


def test_a_failed_run_is_reported_and_the_next_one_clears_it() -> None:
    cluster = FakeBackupCluster(error="s3://backups: cannot reach backups: no route")
    cluster.backup(schedule="0 * * * *")
    cluster.tick(3600)
    cluster.run()
    failed(cluster, "PodFailed", "cannot reach backups: no route")
    assert "backup" not in cluster.status
    cluster.error = ""
    cluster.tick(3600)
    cluster.run()
    assert (cluster.status["phase"], len(cluster.storage)) == ("Done", 1)
    assert "error" not in cluster.status
    success = cluster.status["lastSuccess"]
    cluster.error = "no route"
    cluster.tick(3600)
    cluster.run()
    assert cluster.status["phase"] == "Failed"
    assert cluster.status["lastSuccess"] == success, "the former backup is still there"
    assert [bool(one["backup"]) for one in cluster.status["history"]] == [False, True, False]


def test_old_backups_that_could_not_be_deleted_are_a_warning() -> None:
    cluster = FakeBackupCluster(warning="older backups were not deleted: no right")
    cluster.backup(retention=2)
    cluster.run()
    assert cluster.status["phase"] == "Done"
    assert cluster.condition("Complete") == ("True", "OldBackupsRemain")
    assert for_tools(cluster) == ("True", "False", "False")
    assert list(cluster.events.values())[-1].type is EventType.WARNING


def test_a_bad_image_a_missing_image_and_a_dledger_group_are_reported() -> None:
    cluster = FakeBackupCluster(stuck=True)
    cluster.backup(image="nobody/has:this")
    cluster.run(300)
    failed(cluster, "PodStuck", "ErrImagePull")
    cluster = FakeBackupCluster(settings=backup_pod.BackupSettings())
    cluster.backup()
    cluster.run()
    failed(cluster, "NoImage", "spec.image")
    cluster = FakeBackupCluster(mode="DLedger")
    cluster.backup()
    cluster.run()
    failed(cluster, "UnsupportedMode", "DLedger")


def test_a_backup_waits_for_a_master_and_for_its_group_until_its_timeout() -> None:
    cluster = FakeBackupCluster(master="")
    cluster.backup(timeoutSeconds=100)
    cluster.run(50)
    assert "no replica reports that it is the master" in cluster.status["run"]["message"]
    cluster.remove(Ref("BrokerGroup", NAMESPACE, "orders"))
    cluster.run(2)
    assert "BrokerGroup orders does not exist" in cluster.status["run"]["message"]
    cluster.run(100)
    failed(cluster, "TimedOut", "not finished within 100 s")
    cluster = FakeBackupCluster(hangs=True)
    cluster.backup(timeoutSeconds=100)
    cluster.run(150)
    failed(cluster, "TimedOut", "upload")


def test_a_pod_of_this_name_that_belongs_to_something_else_stays() -> None:
    cluster = FakeBackupCluster()
    cluster.put({"kind": "Pod", "metadata": {"name": POD.name, "namespace": NAMESPACE}, "spec": {}})
    cluster.backup()
    cluster.run(5)
    assert cluster.condition("Complete") == ("False", "NameTaken")
    assert POD in cluster.objects


def test_a_pod_that_is_lost_is_created_anew_and_its_run_makes_one_backup() -> None:
    cluster = FakeBackupCluster()
    cluster.backup()
    while not cluster.storage:
        for effect in cluster.look().effects:
            cluster.act(effect)
        cluster.tick()
    cluster.remove(POD)  # its node was drained before the operator saw the outcome
    cluster.run()
    assert len(cluster.storage) == 1
    assert cluster.status["logEnd"] == next(iter(cluster.storage.values()))


def test_a_scheduled_backup_runs_when_due_and_keeps_a_bounded_history() -> None:
    cluster = FakeBackupCluster()
    cluster.backup(schedule="0 * * * *", historyLimit=2)
    cluster.run()
    assert (cluster.status["phase"], cluster.status["nextRun"]) == ("Waiting", "2027-01-15T09:00:00Z")
    assert for_tools(cluster) == ("True", "False", "False")
    for _ in range(3):
        cluster.tick(3600)
        cluster.run()
    assert [one["number"] for one in cluster.status["history"]] == [3, 2]
    cluster.tick(100 * 3600)  # no operator was running
    cluster.run()
    assert cluster.status["history"][0]["number"] == 4, "what was missed is done once"
    assert len(cluster.storage) == 4


def test_the_annotation_starts_a_backup_unless_it_is_suspended() -> None:
    cluster = FakeBackupCluster()
    cluster.backup()
    cluster.run()
    cluster.objects[BACKED_UP]["metadata"]["annotations"] = {"epochmq.io/backup-now": "before the change"}
    cluster.objects[BACKED_UP]["spec"]["suspend"] = True
    cluster.run()
    assert (cluster.status["phase"], len(cluster.status["history"])) == ("Suspended", 1)
    cluster.objects[BACKED_UP]["spec"]["suspend"] = False
    for _ in range(2):
        cluster.run()
        assert [one["trigger"] for one in cluster.status["history"]] == ["asked before the change", "once"]


@pytest.mark.parametrize("error", ["", "no route"])
def test_an_operator_killed_after_any_effect_finishes_the_run_once(error: str) -> None:
    whole = FakeBackupCluster(error=error)
    whole.backup()
    total = 0
    for _ in range(30):
        effects = whole.look().effects
        total += len(effects)
        for effect in effects:
            whole.act(effect)
        whole.tick()
    assert total > 10
    for survived in range(total):
        cluster, done = FakeBackupCluster(error=error), 0
        cluster.backup()
        for _ in range(40):
            for effect in cluster.look().effects:
                if done == survived:
                    done += 1
                    break  # killed; the next operator observes the cluster again
                cluster.act(effect)
                done += 1
            cluster.tick()
        (entry,) = cluster.status["history"]
        assert bool(entry["backup"]) == (not error), survived
        assert len(cluster.storage) == (0 if error else 1), survived
        assert cluster.pods() == [], survived
        assert [one for one in cluster.created if "-backup-" in one] == [str(POD)], survived
        reasons = [one.reason for one in cluster.events.values()]
        assert len(reasons) == len(set(reasons)), survived


def test_a_second_operator_does_not_replace_the_cut() -> None:
    """The annotation is set on the version of the pod that was seen without it."""
    cluster = FakeBackupCluster(hangs=True)
    cluster.backup()
    effects: tuple[Any, ...] = ()
    while not any(isinstance(one, SetAnnotation) for one in effects):
        for effect in effects:
            cluster.act(effect)
        cluster.tick()
        effects = cluster.look().effects
    (setting,) = (one for one in effects if isinstance(one, SetAnnotation))
    cluster.act(setting)
    with pytest.raises(ConflictError):
        cluster.act(setting)


def test_a_deleted_backup_is_left_to_the_garbage_collector() -> None:
    cluster = FakeBackupCluster(hangs=True)
    cluster.backup()
    cluster.run(6)
    assert len(cluster.pods()) == 1
    assert "finalizers" not in cluster.objects[BACKED_UP]["metadata"]
    cluster.objects[BACKED_UP]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert cluster.look().effects == ()
    cluster.remove(BACKED_UP)
    assert cluster.pods() == []


def test_an_invalid_spec_is_reported() -> None:
    cluster = FakeBackupCluster()
    cluster.backup(schedule="0 0 31 2 *")
    cluster.run()
    assert cluster.status["phase"] == "Invalid"
    assert cluster.condition("Progressing") == ("False", "InvalidSpec")
    assert cluster.pods() == []


def test_names_of_the_longest_backup_are_valid() -> None:
    assert len(backup_pod.pod_name("a" * 40, 99999)) <= 63


def test_nothing_is_applied_twice() -> None:
    cluster, applied = FakeBackupCluster(), 0
    cluster.backup()
    for _ in range(20):
        for effect in cluster.look().effects:
            applied += isinstance(effect, Apply)
            cluster.act(effect)
        cluster.tick()
    assert applied == 1
