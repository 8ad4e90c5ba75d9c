"""Tests the plan of an audit: what a run creates, how it ends, and that it leaves nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from epochmq_operator.audits import manifests
from epochmq_operator.audits.manifests import AuditRunNames
from epochmq_operator.plans.effects import EventType
from epochmq_operator.plans.objects import Ref
from tests.unit.operator.audits.fake_audit_cluster import AUDITED, DAMAGED, NAMESPACE, FakeAuditCluster

REPORT = "ConfigMap nightly-audit-1-report"


def for_tools(cluster: FakeAuditCluster) -> tuple[str, ...]:
    """The conditions that tools wait for."""
    return tuple(cluster.condition(kind)[0] for kind in ("Ready", "Reconciling", "Stalled"))


def test_an_audit_runs_once_and_keeps_its_verdict_and_report() -> None:
    cluster = FakeAuditCluster()
    cluster.audit()
    cluster.run()
    status = cluster.status
    assert (status["phase"], status["verdict"], status["errors"]) == ("Done", "healthy", 0)
    assert status["report"] == "nightly-audit-1-report"
    assert cluster.condition("Complete") == ("True", "Verdict")
    assert cluster.condition("Healthy") == ("True", "Healthy")
    assert for_tools(cluster) == ("True", "False", "False")
    assert cluster.own() == [REPORT]
    assert [one.reason for one in cluster.events.values()] == ["AuditStarted", "AuditCut", "AuditHealthy"]
    cluster.tick(1e6)
    assert cluster.look().effects == ()


def test_the_cut_bounds_every_replica_and_readers_run_beside_the_volumes() -> None:
    cluster = FakeAuditCluster(hangs=True)
    cluster.audit(tolerations=[{"key": "spot", "operator": "Exists"}])
    cluster.run(8)
    assert for_tools(cluster) == ("False", "True", "False")
    job = json.loads(cluster.objects[Ref("ConfigMap", NAMESPACE, "nightly-audit-1-job")]["data"]["job.json"])
    assert {one["name"][-1]: one["end"] for one in job["replicas"]} == {"0": 1000, "1": 1000, "2": 700}
    assert job["view"] == {
        "brokerName": "orders",
        "masterEpoch": 4,
        "syncStateSet": [1, 2],
        "replicas": [{"brokerId": 1}, {"brokerId": 2}, {"brokerId": 3}],
    }
    for ordinal in range(3):
        spec = cluster.objects[Ref("Pod", NAMESPACE, f"nightly-audit-1-reader-{ordinal}")]["spec"]
        claim = {"claimName": f"store-orders-broker-{ordinal}", "readOnly": True}
        assert {"name": "store", "persistentVolumeClaim": claim} in spec["volumes"]
        (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchFields"][0]["values"] == [f"n{ordinal % 2}"]
        assert spec["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    driver = cluster.objects[Ref("Pod", NAMESPACE, "nightly-audit-1-driver")]["spec"]
    env = {one["name"]: one.get("value") for one in driver["containers"][0]["env"]}
    assert json.loads(str(env["READERS"])) == {f"orders-broker-{n}": "10.0.0.7:9885" for n in range(3)}
    assert cluster.asked == 1, "the cut is made once"


def test_the_executors_template_quotes_texts_that_kubernetes_takes_for_numbers() -> None:
    cluster = FakeAuditCluster(hangs=True)
    cluster.audit(tolerations=[{"key": "spot", "operator": "Equal", "value": "12e3"}])
    cluster.run(8)
    job = cluster.objects[Ref("ConfigMap", NAMESPACE, "nightly-audit-1-job")]["data"]
    assert "value: '12e3'" in job["executor.yaml"]


def test_every_pod_is_restricted_and_the_driver_has_few_rights() -> None:
    cluster = FakeAuditCluster(hangs=True)
    cluster.audit()
    cluster.run(8)
    job = cluster.objects[Ref("ConfigMap", NAMESPACE, "nightly-audit-1-job")]["data"]
    specs = [
        found["spec"] for ref, found in cluster.objects.items() if "audit" in ref.name and ref.kind == "Pod"
    ]
    specs.append(yaml.safe_load(job["executor.yaml"])["spec"])
    assert len(specs) == 5
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    assert [spec["automountServiceAccountToken"] for spec in specs].count(True) == 1
    role = cluster.objects[Ref("Role", NAMESPACE, "nightly-audit-1-driver")]["rules"]
    assert {resource for rule in role for resource in rule["resources"]} == {"pods", "configmaps"}
    assert role[1]["resourceNames"] == ["nightly-audit-1-report"]


def test_damage_is_reported_in_conditions_and_an_event() -> None:
    cluster = FakeAuditCluster(verdict=DAMAGED)
    cluster.audit()
    cluster.run()
    assert cluster.condition("Healthy") == ("False", "Damaged")
    assert (cluster.status["verdict"], cluster.status["errors"]) == ("damaged", 2)
    last = list(cluster.events.values())[-1]
    assert (last.type, last.reason) == (EventType.WARNING, "AuditDamaged")
    assert "record.checksum" in last.message


def finished(cluster: FakeAuditCluster, reason: str) -> None:
    """Asserts that the run failed for this reason and left nothing, not even a report."""
    assert cluster.status["phase"] == "Failed"
    assert cluster.condition("Complete") == ("False", reason)
    assert for_tools(cluster) == ("False", "False", "True")
    assert cluster.status["history"][0]["verdict"] == ""
    assert cluster.own() == []


def test_a_failed_driver_is_reported_and_nothing_is_left() -> None:
    cluster = FakeAuditCluster(verdict=None)
    cluster.audit()
    cluster.run()
    finished(cluster, "DriverFailed")
    assert "OSError: no" in cluster.status["history"][0]["message"]


def test_a_replica_in_the_mode_dledger_is_read_up_to_what_it_has_committed() -> None:
    """So all of them have to respond."""
    cluster = FakeAuditCluster(mode="DLedger", hangs=True, silent={"orders-broker-0"})
    cluster.audit()
    cluster.run(5)
    assert cluster.own() == []
    assert cluster.status["run"]["message"] == "waits: orders-broker-0 does not report what it has committed"
    cluster.silent = set()
    cluster.run(8)
    job = json.loads(cluster.objects[Ref("ConfigMap", NAMESPACE, "nightly-audit-1-job")]["data"]["job.json"])
    assert {one["name"][-1]: one["end"] for one in job["replicas"]} == {"0": 1000, "1": 1000, "2": 700}
    assert {one["epochs"] for one in job["replicas"]} == {None}
    assert job["view"] is None
    cluster.hangs = False
    cluster.run()
    assert cluster.status["verdict"] == "healthy"


def test_a_failed_run_takes_the_former_verdict_away() -> None:
    cluster = FakeAuditCluster()
    cluster.audit(schedule="0 * * * *")
    cluster.tick(3600)
    cluster.run()
    assert (cluster.status["verdict"], cluster.condition("Healthy")) == ("healthy", ("True", "Healthy"))
    cluster.verdict = None
    cluster.tick(3600)
    cluster.run()
    assert cluster.condition("Complete") == ("False", "DriverFailed")
    assert cluster.condition("Healthy") == ("Unknown", "DriverFailed")
    assert not cluster.status.keys() & {"verdict", "errors"}
    assert [one["verdict"] for one in cluster.status["history"]] == ["", "healthy"]


@pytest.mark.parametrize("pod", ["reader-1", "driver"])
def test_a_bad_image_is_reported_and_nothing_is_left(pod: str) -> None:
    cluster = FakeAuditCluster(stuck=pod)
    cluster.audit(image="nobody/has:this")
    cluster.run(300)
    finished(cluster, "PodStuck")
    assert "ErrImagePull" in cluster.status["history"][0]["message"]


def test_an_audit_that_takes_too_long_fails() -> None:
    cluster = FakeAuditCluster(hangs=True)
    cluster.audit(timeoutSeconds=100)
    cluster.run(150)
    finished(cluster, "TimedOut")


def test_a_group_of_a_master_and_its_slaves_is_audited_with_and_without_its_master() -> None:
    for master in ("orders-broker-0", ""):
        cluster = FakeAuditCluster(master=master, mode="MasterSlave")
        cluster.audit()
        cluster.run()
        assert (cluster.status["phase"], cluster.status["verdict"]) == ("Done", "healthy"), master
        cut = next(one.message for one in cluster.events.values() if one.reason == "AuditCut")
        acting = "orders-broker-1"
        assert cut == f"audit 1: up to offset 1000 of {master or acting}, epoch 0"


def test_an_audit_waits_for_a_master_until_its_timeout() -> None:
    cluster = FakeAuditCluster(master="")
    cluster.audit(timeoutSeconds=100)
    cluster.run(50)
    assert "no replica reports that it is the master" in cluster.status["run"]["message"]
    cluster.run(100)
    finished(cluster, "TimedOut")


def test_a_volume_without_a_ready_reader_is_left_out_after_a_while() -> None:
    cluster = FakeAuditCluster(unready="reader-2", hangs=True)
    cluster.audit()
    cluster.run(250)
    driver = cluster.objects[Ref("Pod", NAMESPACE, "nightly-audit-1-driver")]["spec"]["containers"][0]
    env = {one["name"]: one.get("value") for one in driver["env"]}
    assert json.loads(str(env["READERS"]))["orders-broker-2"] == ""


def test_failed_readers_are_left_out_and_reported_when_all_fail() -> None:
    cluster = FakeAuditCluster(failing="reader-2", hangs=True)
    cluster.audit()
    cluster.run(8)
    assert Ref("Pod", NAMESPACE, "nightly-audit-1-driver") in cluster.objects
    cluster = FakeAuditCluster(failing="reader")
    cluster.audit()
    cluster.run()
    finished(cluster, "ReaderFailed")
    assert "exit status 2 (Error)" in cluster.status["history"][0]["message"]


def test_snapshots_are_taken_after_a_delay_and_owned_by_their_readers() -> None:
    cluster = FakeAuditCluster(unready="reader")
    cluster.audit(volumeSnapshotClassName="fast")
    cluster.run(5)
    assert not [ref for ref in cluster.objects if ref.kind == "VolumeSnapshot"]
    cluster.run(30)
    reader = cluster.objects[Ref("Pod", NAMESPACE, "nightly-audit-1-reader-1")]
    snapshot = cluster.objects[Ref("VolumeSnapshot", NAMESPACE, "nightly-audit-1-reader-1")]
    assert snapshot["metadata"]["ownerReferences"][0]["uid"] == reader["metadata"]["uid"]
    assert snapshot["spec"] == {
        "volumeSnapshotClassName": "fast",
        "source": {"persistentVolumeClaimName": "store-orders-broker-1"},
    }
    (volume,) = (one for one in reader["spec"]["volumes"] if one["name"] == "store")
    spec = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert spec["dataSource"]["name"] == "nightly-audit-1-reader-1"
    assert spec["resources"]["requests"] == {"storage": "5Gi"}
    assert "affinity" not in reader["spec"]
    cluster.unready = ""
    cluster.run()
    assert cluster.own() == [REPORT]


def test_a_scheduled_audit_runs_when_due_and_keeps_a_bounded_history() -> None:
    cluster = FakeAuditCluster()
    cluster.audit(schedule="0 * * * *", historyLimit=2)
    cluster.run()
    assert cluster.status["phase"] == "Waiting"
    assert cluster.status["nextRun"] == "2027-01-15T09:00:00Z"
    for _ in range(3):
        cluster.tick(3600)
        cluster.run()
    assert [one["number"] for one in cluster.status["history"]] == [3, 2]
    assert cluster.own() == [f"ConfigMap nightly-audit-{n}-report" for n in (2, 3)]
    cluster.tick(100 * 3600)  # no operator was running
    cluster.run()
    assert cluster.status["history"][0]["number"] == 4, "what was missed is done once"


def test_the_annotation_starts_an_audit_unless_it_is_suspended() -> None:
    cluster = FakeAuditCluster()
    cluster.audit()
    cluster.run()
    meta: dict[str, Any] = cluster.objects[AUDITED]["metadata"]
    meta["annotations"] = {"epochmq.io/audit-now": "after the repair"}
    cluster.objects[AUDITED]["spec"]["suspend"] = True
    cluster.run()
    assert (cluster.status["phase"], len(cluster.status["history"])) == ("Suspended", 1)
    cluster.objects[AUDITED]["spec"]["suspend"] = False
    for _ in range(2):
        cluster.run()
        assert [one["trigger"] for one in cluster.status["history"]] == ["asked after the repair", "once"]


@pytest.mark.parametrize("verdict", [DAMAGED, None])
def test_an_operator_killed_after_any_effect_finishes_the_run_once(verdict: Any) -> None:
    whole = FakeAuditCluster(verdict=verdict)
    whole.audit()
    total = 0
    for _ in range(60):
        effects = whole.look().effects
        total += len(effects)
        for effect in effects:
            whole.act(effect)
        whole.tick()
    assert total > 15
    for survived in range(total):
        cluster, done = FakeAuditCluster(verdict=verdict), 0
        cluster.audit()
        for _ in range(60):
            for effect in cluster.look().effects:
                if done == survived:
                    done += 1
                    break  # killed; the next operator observes the cluster again
                cluster.act(effect)
                done += 1
            cluster.tick()
        assert len(cluster.status["history"]) == 1, survived
        assert cluster.status["history"][0]["verdict"] == (verdict or {}).get("verdict", ""), survived
        assert cluster.own() == ([REPORT] if verdict else []), survived
        pods = [name for name in cluster.created if name.startswith("Pod nightly")]
        assert len(pods) == len(set(pods)) == 4, survived


def test_a_deleted_audit_is_left_to_the_garbage_collector() -> None:
    cluster = FakeAuditCluster(hangs=True)
    cluster.audit()
    cluster.run(8)
    executor = AuditRunNames("nightly", 1)
    driver = cluster.objects[Ref("Pod", NAMESPACE, executor.driver)]
    owner = {"kind": "Pod", "name": executor.driver, "uid": driver["metadata"]["uid"]}
    meta = {"name": f"{executor.run}-exec-1", "namespace": NAMESPACE, "ownerReferences": [owner]}
    cluster.put({"kind": "Pod", "metadata": meta | {"labels": executor.labels("executor")}, "spec": {}})
    assert len(cluster.own()) > 8
    cluster.objects[AUDITED]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert cluster.look().effects == ()
    cluster.remove(AUDITED)
    assert cluster.own() == []


def test_an_invalid_spec_is_reported() -> None:
    cluster = FakeAuditCluster()
    cluster.audit(schedule="0 0 31 2 *")
    cluster.run()
    assert cluster.status["phase"] == "Invalid"
    assert cluster.condition("Progressing") == ("False", "InvalidSpec")
    assert cluster.own() == []


def test_names_of_the_longest_audit_are_valid() -> None:
    names = AuditRunNames("a" * 40, 99999)
    longest = max((names.job, names.report, names.driver, names.reader(8), f"{names.run}-exec-32"), key=len)
    assert len(longest) <= 63
    assert manifests.mebibytes("2Gi") == 2048
