"""Tests audits of a running group on a real cluster. Spark's driver and executors run as pods."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_operator.crd import audit_definition
from epochmq_operator.manifests.names import COMPONENT_LABEL, RUN_LABEL
from tests.kubernetes.chart import CHART, TAKE, WAIT, values
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, define, run_epochmq
from tests.kubernetes.snapshot_driver import CLASS as CLONING
from tests.kubernetes.snapshot_driver import snapshot_driver
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.images import image_name
from tests.kubernetes.testbed.processes import TestbedError

AUDIT = "BrokerGroupAudit"
PATIENCE_S = 600
"""An audit takes some 40 s on an idle machine, and minutes beside a group under full load."""
RATE, UNBOUND = 300, 1_000_000
"""Messages a second; the second is more than any group takes."""
LOAD = """
import os, sys, time
n, begin = 0, time.monotonic()
while os.path.exists("/tmp/load"):
    n += 10
    for number in range(n - 10, n):
        print(f"load-{number:08}-" + "x" * 300)
    sys.stdout.flush()
    time.sleep(max(begin + n / float(sys.argv[1]) - time.monotonic(), 0))
"""


@pytest.fixture(scope="module")
def definitions(cluster: Cluster) -> None:
    """Installs the CustomResourceDefinitions."""
    define(cluster)
    cluster.apply(audit_definition())
    name = audit_definition()["metadata"]["name"]
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=240s")


@pytest.fixture(scope="module")
def spark(cluster: Cluster) -> str:
    """The image of audits on every node. It has 1.4 GB, so only one test that is not long uses it."""
    return cluster.load_project_images(["spark"])["spark"]


@contextlib.contextmanager
def load(groups: Groups, group: str, rate: int = RATE) -> Iterator[None]:
    """Sends messages to the group at this rate at most, for the length of a block."""
    pod, place = f"{group}-broker-0", groups.namespace
    groups.cluster.execute(place, pod, "sh", "-c", "touch /tmp/load", container="broker")
    produce = f"epochmq produce load --keys k --timeout 30 --nameserver {group}-nameserver:9876"
    command = f"python3 -c '{LOAD}' {rate} | {produce} > /dev/null"
    kubectl = (
        groups.cluster.programs / "kubectl",
        f"--kubeconfig={groups.cluster.kubeconfig}",
        f"--namespace={place}",
    )
    sender = subprocess.Popen([*kubectl, "exec", pod, "--container=broker", "--", "sh", "-c", command])
    before = confirmed(groups, group)
    try:
        groups.cluster.wait(lambda: confirmed(groups, group) > before + 100_000, what="messages are taken")
        yield
    finally:
        groups.cluster.execute(place, pod, "rm", "-f", "/tmp/load", container="broker")
        sender.wait(READY_TIMEOUT_S)


def confirmed(groups: Groups, group: str) -> int:
    """The master's confirm offset."""

    def read() -> dict[str, int] | None:
        master = groups.status("BrokerGroup", group)["master"]
        call = ("epochmq", "admin-call", "state")
        text = groups.cluster.execute(groups.namespace, master, *call, container="broker") if master else ""
        return {"offset": json.loads(text)["confirmOffset"]} if text else None

    found: dict[str, int] = groups.cluster.wait(read, what=f"{group} has a master that responds")
    return found["offset"]


class Speed:
    """Measures the bytes a second that a group confirms from now on."""

    def __init__(self, groups: Groups, group: str) -> None:
        self._groups, self._group = groups, group
        self._from, self._since = confirmed(groups, group), time.monotonic()

    def __call__(self) -> float:
        return (confirmed(self._groups, self._group) - self._from) / (time.monotonic() - self._since)


def alone(groups: Groups, group: str) -> float:
    """The bytes a second that a group confirms without other load."""
    speed = Speed(groups, group)
    time.sleep(15)  # the measured time
    return speed()


def show(what: str, before: float, beside: float, took_s: float) -> None:
    """Prints how an audit affected the throughput."""
    result = f"{before / 1e3:.0f} kB/s confirmed without an audit, {beside / 1e3:.0f} kB/s beside one"
    print(f"{what}: {result} of {took_s:.0f} s", flush=True)


def apply_audit(groups: Groups, name: str, **spec: Any) -> None:
    """Applies an audit of the group `orders` with two executors."""
    groups.apply(
        AUDIT,
        name,
        {"brokerGroup": "orders", "image": image_name("spark"), "timeoutSeconds": PATIENCE_S, **spec},
    )


def ended(groups: Groups, name: str, number: int) -> dict[str, Any]:
    """Waits until a run has ended; returns its history entry."""

    def entry() -> dict[str, Any] | None:
        history = groups.status(AUDIT, name).get("history") or []
        return next((one for one in history if one["number"] == number), None)

    found: dict[str, Any] = groups.cluster.wait(entry, PATIENCE_S, f"run {number} of {name} has ended")
    return found


def remains(groups: Groups) -> list[str]:
    """The objects of audits in the namespace, without the audits and their reports."""
    kinds = (
        "pods,configmaps,services,serviceaccounts,roles,rolebindings,networkpolicies,persistentvolumeclaims"
    )
    return [one for one in names(groups, kinds) if "-audit-" in one and not one.endswith("-report")]


def names(groups: Groups, kinds: str) -> list[str]:
    """The names of the objects of these kinds in the namespace."""
    return groups.cluster.kubectl("get", kinds, "--namespace", groups.namespace, "--output=name").split()


def running_components(groups: Groups) -> set[str]:
    """The components of an audit of which a pod runs."""
    pods = groups.cluster.core.list_namespaced_pod(
        groups.namespace, label_selector=f"{COMPONENT_LABEL},{RUN_LABEL}"
    ).items
    return {one.metadata.labels[COMPONENT_LABEL] for one in pods if one.status.phase == "Running"}


def clean(groups: Groups) -> None:
    """Waits until all objects of audits are deleted."""
    groups.cluster.wait(lambda: not remains(groups), what="nothing of the audit is left")


def corrupt(groups: Groups, pod: str, folder: str = "commitlog") -> int:
    """Flips a bit of a message in the log on a replica's volume; returns the offset in the log."""
    claim = groups.cluster.core.read_namespaced_persistent_volume_claim(f"store-{pod}", groups.namespace)
    (volume,) = groups.cluster.layout.volumes.rglob(f"pvc-{claim.metadata.uid}")
    segment = min((volume / folder).iterdir())
    with segment.open("r+b") as file:
        at = file.read(1 << 20).index(b"load-00000050-")
        file.seek(at)
        file.write(b"L")
    return at


def three_replicas(groups: Groups) -> None:
    """Creates the group `orders` and waits until it is ready."""
    groups.apply("ControllerGroup", "orders", {"replicas": 1})
    groups.apply("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "orders"})
    groups.ready("orders", 3)


def rejection_of(groups: Groups, name: str, spec: dict[str, Any]) -> str:
    """The message with which the API server rejects an audit."""
    with pytest.raises(TestbedError) as result:
        groups.apply(AUDIT, name, spec)
    return str(result.value)


@pytest.mark.soak
@pytest.mark.usefixtures("started")
def test_an_audit_whose_pods_fail_says_why_and_leaves_nothing(groups: Groups) -> None:
    assert "brokerGroup" in rejection_of(groups, "of-nothing", {})
    assert "schedule" in rejection_of(groups, "daily", {"brokerGroup": "orders", "schedule": "@daily"})
    assert "at most 40 characters" in rejection_of(groups, "a" * 41, {"brokerGroup": "orders"})
    groups.apply("ControllerGroup", "orders", {"replicas": 1})
    groups.apply("BrokerGroup", "orders", {"replicas": 1, "controllerGroup": "orders"})
    # The broker's image has no reader.
    apply_audit(groups, "nightly", image=image_name("broker"))
    entry = ended(groups, "nightly", 1)
    assert (entry["verdict"], entry["reason"]) == ("", "ReaderFailed")
    assert "nightly-audit-1-reader-0: exit status" in entry["message"]
    assert groups.condition(AUDIT, "nightly", "Complete")["reason"] == "ReaderFailed"
    status = groups.status(AUDIT, "nightly")
    assert (status["phase"], status.get("verdict")) == ("Failed", None)
    groups.wait(AUDIT, "nightly", phase="Failed")
    clean(groups)
    assert "brokerGroup cannot change" in rejection_of(groups, "nightly", {"brokerGroup": "payments"})
    spec = groups.get(AUDIT, "nightly")["spec"]
    assert (spec["executors"]["instances"], spec["historyLimit"]) == (2, 3)


@pytest.mark.soak
@pytest.mark.usefixtures("started", "spark")
def test_a_group_under_load_is_audited_and_a_flipped_bit_is_found(groups: Groups) -> None:
    three_replicas(groups)
    with load(groups, "orders"):
        before = alone(groups, "orders")
        began, beside = time.monotonic(), Speed(groups, "orders")
        apply_audit(groups, "nightly")
        first = ended(groups, "nightly", 1)
        show(f"{RATE} messages a second", before, beside(), time.monotonic() - began)
    assert (first["verdict"], first["errors"], first["warnings"]) == ("healthy", 0, 0), first
    clean(groups)

    master = groups.status("BrokerGroup", "orders")["master"]
    other = next(pod for pod in ("orders-broker-1", "orders-broker-2") if pod != master)
    at = corrupt(groups, other)
    place = ("--namespace", groups.namespace)
    with load(groups, "orders", UNBOUND):
        before = alone(groups, "orders")
        began, beside = time.monotonic(), Speed(groups, "orders")
        groups.cluster.kubectl("annotate", AUDIT, "nightly", "epochmq.io/audit-now=again", *place)
        second = ended(groups, "nightly", 2)
        show("as many as it takes", before, beside(), time.monotonic() - began)
    assert second["verdict"] == "damaged", second
    assert "record.checksum" in second["message"]
    assert f"replica {other}" in second["message"]
    assert groups.condition(AUDIT, "nightly", "Healthy")["status"] == "False"
    report = groups.get("ConfigMap", second["report"])
    findings = json.loads(report["data"]["summary.json"])["findings"]
    errors = [one for one in findings if one["severity"] == "error"]
    assert {one["replica"] for one in errors} == {other}
    assert any(one["start_offset"] <= at < one["end_offset"] for one in errors if "end_offset" in one)
    assert "report.html.gz" in report["binaryData"]
    clean(groups)


@pytest.mark.soak
@pytest.mark.usefixtures("started", "spark")
def test_a_group_on_a_dledger_log_is_audited_under_load_and_a_flipped_bit_is_found(groups: Groups) -> None:
    groups.apply("BrokerGroup", "ledger", {"mode": "DLedger", "replicas": 3, "controllers": {"replicas": 1}})
    groups.ready("ledger", 3)
    with load(groups, "ledger"):
        apply_audit(groups, "nightly", brokerGroup="ledger")
        first = ended(groups, "nightly", 1)
    assert (first["verdict"], first["errors"], first["warnings"]) == ("healthy", 0, 0), first
    report = json.loads(groups.get("ConfigMap", first["report"])["data"]["summary.json"])
    assert report["coverage"]["replicasCompared"] == 3
    assert min(one["records"] for one in report["replicas"]) > 0
    clean(groups)

    corrupt(groups, "ledger-broker-1", "dledger-n1/data")
    place = ("--namespace", groups.namespace)
    groups.cluster.kubectl("annotate", AUDIT, "nightly", "epochmq.io/audit-now=again", *place)
    second = ended(groups, "nightly", 2)
    assert second["verdict"] == "damaged", second
    assert "record.checksum" in second["message"]
    assert "replica ledger-broker-1" in second["message"]
    clean(groups)


@pytest.mark.soak
@pytest.mark.usefixtures("started", "spark")
def test_an_audit_that_fails_or_is_deleted_leaves_nothing(groups: Groups) -> None:
    cluster, place = groups.cluster, groups.namespace
    three_replicas(groups)
    apply_audit(groups, "unpulled", image="docker.io/epochmq/there-is-none:1")
    apply_audit(groups, "killed")
    driver = "killed-audit-1-driver"
    cluster.wait_pod(place, driver, phase="Running", timeout_s=PATIENCE_S)
    cluster.kill_container(place, driver, "driver")
    killed = ended(groups, "killed", 1)
    assert (killed["verdict"], killed["reason"]) == ("", "DriverFailed")
    assert driver in killed["message"]

    apply_audit(groups, "deleted")
    executor = "deleted-audit-1-exec-1"
    cluster.wait_pod(place, executor, phase="Running", timeout_s=PATIENCE_S)
    cluster.kubectl("delete", AUDIT, "deleted", "--namespace", place, "--wait=false")

    unpulled = ended(groups, "unpulled", 1)
    assert (unpulled["verdict"], unpulled["reason"]) == ("", "PodStuck")
    assert "ErrImageNeverPull" in unpulled["message"]
    clean(groups)
    reports = [one for one in names(groups, "configmaps") if "-audit-" in one]
    assert reports == []
    assert groups.status("BrokerGroup", "orders")["phase"] == "Ready"


def check_report(groups: Groups, folder: Path) -> None:
    """Checks what `epochmq report` prints about the audit `nightly` of a healthy group: the verdict, and a
    command that writes the report to the working directory."""
    cluster = groups.cluster
    there = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", groups.namespace)
    verdict, command = run_epochmq("report", *there).splitlines()
    assert verdict.startswith("nightly: healthy, no errors; finished at ")
    programs = f"{cluster.programs}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs}
    subprocess.run(command, shell=True, cwd=folder, env=environment, timeout=READY_TIMEOUT_S, check=True)
    assert ": healthy</title>" in (folder / "report.html").read_text()


@pytest.mark.usefixtures("spark")
def test_the_operator_of_the_chart_has_the_rights_and_the_image_for_audits(
    groups: Groups, release: str, tmp_path: Path
) -> None:
    cluster, place = groups.cluster, groups.namespace
    image = ("--set", f"groupImages.audit={image_name('spark')}", "--set", "replicas=1")
    cluster.helm("install", release, str(CHART), TAKE, *values(place), *image, *WAIT)
    groups.apply("ControllerGroup", "orders", {"replicas": 1})
    groups.apply("BrokerGroup", "orders", {"replicas": 2, "controllerGroup": "orders"})
    groups.ready("orders", 2)
    with load(groups, "orders"):
        groups.apply(AUDIT, "nightly", {"brokerGroup": "orders", "timeoutSeconds": PATIENCE_S})
        cluster.wait(
            lambda: {"driver", "executor"} <= running_components(groups),
            PATIENCE_S,
            "the driver and an executor run as pods",
        )
        entry = ended(groups, "nightly", 1)
    assert (entry["verdict"], entry["errors"], entry["warnings"]) == ("healthy", 0, 0), entry
    check_report(groups, tmp_path)
    clean(groups)
    cluster.kubectl("delete", AUDIT, "nightly", "--namespace", place)
    cluster.wait(lambda: "-audit-" not in " ".join(names(groups, "configmaps")), what="the report is gone")


@pytest.mark.soak
@pytest.mark.usefixtures("started", "spark")
def test_clones_of_snapshots_are_audited_and_deleted(groups: Groups) -> None:
    with snapshot_driver(groups.cluster, groups.namespace) as storage:
        groups.apply("ControllerGroup", "orders", {"replicas": 1})
        spec = {"replicas": 2, "controllerGroup": "orders", "storage": {"storageClassName": CLONING}}
        groups.apply("BrokerGroup", "orders", spec)
        groups.ready("orders", 2)
        with load(groups, "orders"):
            apply_audit(groups, "nightly", volumeSnapshotClassName="any")
            entry = ended(groups, "nightly", 1)
        assert (entry["verdict"], entry["errors"]) == ("healthy", 0), (entry, storage.fault)
        assert storage.snapshots == 2
        clean(groups)
        groups.cluster.wait(lambda: not names(groups, "volumesnapshots"), 120, "no snapshot is left")
