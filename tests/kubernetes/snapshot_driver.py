"""Implements snapshots and clones for tests: the CustomResourceDefinition of VolumeSnapshot, and what a
storage driver and its sidecars do. A snapshot is a copy of a volume's directory, a clone a copy of the
snapshot."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.prerequisites import MissingPrerequisiteError
from tests.kubernetes.testbed.volumes import SELECTED_NODE, volume_for

CLASS = "cloning"
GROUP, VERSION, PLURAL = "snapshot.storage.k8s.io", "v1", "volumesnapshots"
PERIOD_S = 0.3

MODULE = "github.com/kubernetes-csi/external-snapshotter/client/v8@v8.4.0"
SUM = "h1:bMqrb3UHgHbP+PW9VwiejfDJU1R0PpXVZNMdeH8WYKI="
"""The hash of the module's sources."""
STORAGE_CLASS: dict[str, Any] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": CLASS},
    "provisioner": "epochmq.example/cloning",
    "reclaimPolicy": "Retain",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def definition() -> str:
    """The CustomResourceDefinition of VolumeSnapshot from its Go module. MissingPrerequisiteError if it
    cannot be downloaded."""
    command = ["go", "mod", "download", "-json", MODULE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout or "{}")
    if done.returncode != 0 or found.get("Sum") != SUM:
        output = found.get("Error") or done.stderr or f"sum {found.get('Sum')}, expected {SUM}"
        raise MissingPrerequisiteError(f"missing: the Go module {MODULE}: {output}")
    return Path(found["Dir"], "config", "crd", f"{GROUP}_{PLURAL}.yaml").read_text()


class SnapshotDriver:
    """Creates the volumes, snapshots and clones of a namespace. `snapshots` counts the snapshots."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._folder = cluster.layout.volumes / f"cloning-{namespace}"
        self._made: dict[str, Path] = {}
        self._stop = threading.Event()
        self.snapshots = 0
        self.fault: Exception | None = None

    def run(self) -> None:
        """Runs until `stop`."""
        while not self._stop.wait(PERIOD_S):
            try:
                self._pass()
                self.fault = None
            except (client.ApiException, OSError, subprocess.SubprocessError) as error:
                self.fault = error  # the next round tries again

    def stop(self) -> None:
        """Ends it."""
        self._stop.set()

    def _pass(self) -> None:
        listed = self._cluster.custom.list_namespaced_custom_object(GROUP, VERSION, self._namespace, PLURAL)
        claims = self._cluster.core.list_namespaced_persistent_volume_claim(self._namespace).items
        volumes = {claim.metadata.name: claim.spec.volume_name for claim in claims}
        taken = {}
        for one in listed["items"]:
            uid = one["metadata"]["uid"]
            source = volumes.get(one["spec"]["source"]["persistentVolumeClaimName"])
            if uid not in self._made and source is not None:
                self._made[uid] = self._copy(self._folder / source, self._folder / f"snapshot-{uid}")
                self.snapshots += 1
            if uid in self._made:
                self._say_ready(one)
                taken[one["metadata"]["name"]] = self._made[uid]
        for claim in claims:
            given = SELECTED_NODE in (claim.metadata.annotations or {})
            if claim.spec.storage_class_name != CLASS or claim.spec.volume_name or not given:
                continue
            folder = self._folder / f"pvc-{claim.metadata.uid}"
            source = claim.spec.data_source
            if source is not None and source.name not in taken:
                continue
            if folder.exists():
                continue
            if source is None:
                folder.mkdir(mode=0o777, parents=True)
                folder.chmod(0o777)
            else:
                self._copy(taken[source.name], folder)
            self._cluster.core.create_persistent_volume(volume_for(claim, "Retain", folder))

    def _say_ready(self, snapshot: dict[str, Any]) -> None:
        if not snapshot.get("status", {}).get("readyToUse"):
            uid, name = snapshot["metadata"]["uid"], snapshot["metadata"]["name"]
            status = {"readyToUse": True, "boundVolumeSnapshotContentName": f"snapcontent-{uid}"}
            self._cluster.custom.patch_namespaced_custom_object_status(
                GROUP, VERSION, self._namespace, PLURAL, name, {"status": status}
            )

    @staticmethod
    def _copy(source: Path, target: Path) -> Path:
        command = ["cp", "--archive", "--sparse=always", str(source), str(target)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return target


@contextlib.contextmanager
def snapshot_driver(cluster: Cluster, namespace: str) -> Iterator[SnapshotDriver]:
    """A driver for the length of a block, with the objects that it needs."""
    try:
        output = definition()
    except MissingPrerequisiteError as missing:
        pytest.skip(str(missing))
    cluster.apply(output)
    cluster.apply(STORAGE_CLASS)
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{PLURAL}.{GROUP}", "--timeout=60s")
    driver = SnapshotDriver(cluster, namespace)
    thread = threading.Thread(target=driver.run)
    thread.start()
    try:
        yield driver
    finally:
        driver.stop()
        thread.join(150)
