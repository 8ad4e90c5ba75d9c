"""Tests that another release of the chart takes over groups that are in use, and the former one takes them
back, and that neither restarts a pod."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.chaos.journals import SEND_OK
from tests.kubernetes.chart import CHART, TAKE, WAIT, values
from tests.kubernetes.operator_process import Groups
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.images import base_image, build_image, image_name
from tests.kubernetes.traffic import Traffic

pytestmark = pytest.mark.soak

ROOT = CHART.parents[1]
FORMER = os.environ.get("EPOCHMQ_FORMER_RELEASE")
"""A revision of the repository whose chart and operator are the former release. Without it, the present ones
are, under other names of the images."""
OPERATOR = "docker.io/epochmq/operator"


class Release:
    """A release of the chart: its folder, and the names of its images."""

    def __init__(self, chart: Path, tag: str) -> None:
        self.chart = chart
        self.tag = tag

    def install(self, cluster: Cluster, namespace: str, verb: str, name: str) -> None:
        """helm install, or helm upgrade."""
        images = {f"groupImages__{kind}": self.image(kind) for kind in ("broker", "controller")}
        chosen = values(namespace, replicas="1", image__tag=self.tag, **images)
        cluster.helm(verb, name, str(self.chart), TAKE, *chosen, *WAIT)

    def image(self, kind: str) -> str:
        """The default image of a kind of pods; its content is that of the present sources."""
        return f"docker.io/epochmq/{kind}:{self.tag}"


def former_release(cluster: Cluster, folder: Path) -> Release:
    """The former release, with its images on every node."""
    for kind in ("broker", "controller", "operator"):
        cluster.tag_image(image_name(kind), f"docker.io/epochmq/{kind}:former")
    if not FORMER:
        return Release(CHART, "former")
    tree = folder / "former"
    tree.mkdir()
    with subprocess.Popen(["git", "-C", str(ROOT), "archive", FORMER], stdout=subprocess.PIPE) as packed:
        subprocess.run(["tar", "-x", "-C", str(tree)], stdin=packed.stdout, check=True)
    assert packed.returncode == 0
    archive = folder / "operator.tar"
    build_image(f"{OPERATOR}:former", archive, base_image(), tree / "Dockerfile", tree, "--target=operator")
    cluster.load_image(archive)
    return Release(tree / "charts" / "epochmq-operator", "former")


def pods(groups: Groups) -> dict[str, tuple[str, int]]:
    """The groups' pods: uid, and how often their containers restarted."""
    found = groups.cluster.core.list_namespaced_pod(
        groups.namespace, label_selector="app.kubernetes.io/managed-by=epochmq-operator"
    )
    return {
        pod.metadata.name: (
            pod.metadata.uid,
            sum(one.restart_count for one in pod.status.container_statuses or ()),
        )
        for pod in found.items
    }


def test_an_upgrade_of_the_release_and_its_rollback_restart_no_pod(
    cluster: Cluster, namespace: str, release: str, clients: str, tmp_path: Path
) -> None:
    former, present = (
        former_release(cluster, tmp_path),
        Release(CHART, image_name("operator").rpartition(":")[2]),
    )
    former.install(cluster, namespace, "install", release)
    groups = Groups(cluster, namespace)
    groups.apply("BrokerGroup", "orders", {"replicas": 3})
    groups.ready("orders", 3)
    traffic = Traffic(groups, clients, "orders")
    traffic.start()
    before, epoch = pods(groups), groups.status("BrokerGroup", "orders")["masterEpoch"]
    assert len(before) == 6
    begun_s = time.monotonic()
    present.install(cluster, namespace, "upgrade", release)
    groups.settled(20)
    groups.ready("orders", 3)
    assert pods(groups) == before
    # Whether the operator works: a change of others is reverted.
    place = f"--namespace={namespace}"
    cluster.kubectl("scale", "statefulset/orders-broker", "--replicas=4", place)
    cluster.wait(
        lambda: groups.get("StatefulSet", "orders-broker")["spec"]["replicas"] == 3, 120, "scaled back"
    )
    cluster.wait(lambda: pods(groups) == before, 120, "the pod that was added is gone")
    cluster.helm("rollback", release, "1", place, *WAIT)
    groups.settled(20)
    groups.ready("orders", 3)
    assert pods(groups) == before
    assert groups.status("BrokerGroup", "orders")["masterEpoch"] == epoch
    silence_s = traffic.silence_s(begun_s, time.monotonic())
    traffic.stop()
    print(f"{traffic.summary()}; none acknowledged for {silence_s:.2f} s at most")
    assert traffic.outcomes().keys() == {SEND_OK}
    traffic.check()
    traffic.check_equal(3)
