"""Makes the volumes that claims wait for: the storage class binds a claim when its first pod has been given a
node; then a directory is made for it, and a PersistentVolume that says that node. When a claim is gone, so is
its directory, unless the volume's reclaim policy is Retain.

    volumes.py KUBECONFIG FOLDER

It looks through all of them whenever one changes, so nothing depends on having seen a change."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch

PROVISIONER = "epochmq.example/testbed"
STORAGE_CLASS = "testbed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
WATCH_S = 300
RETRY_S = 1.0

STORAGE_CLASS_OBJECT = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": STORAGE_CLASS,
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def volume_for(claim: Any, reclaim_policy: str, folder: Path) -> dict[str, Any]:
    """The PersistentVolume for a claim that has been given a node."""
    node = claim.metadata.annotations[SELECTED_NODE]
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"pvc-{claim.metadata.uid}",
            "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
        },
        "spec": {
            "capacity": {"storage": claim.spec.resources.requests["storage"]},
            "accessModes": claim.spec.access_modes,
            "persistentVolumeReclaimPolicy": reclaim_policy,
            "storageClassName": claim.spec.storage_class_name,
            "volumeMode": "Filesystem",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "uid": claim.metadata.uid,
            },
        },
    }


class Provisioner:
    """Creates and removes directories and PersistentVolumes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._core = client.CoreV1Api()
        self._storage = client.StorageV1Api()
        self._pass = threading.Lock()

    def follow(self, list_all: Any) -> None:
        """Handles everything at the start and at every change of what `list_all` lists; never returns."""
        while True:
            try:
                version = list_all(limit=1).metadata.resource_version
                self.one_pass()
                for _ in watch.Watch().stream(list_all, resource_version=version, timeout_seconds=WATCH_S):
                    self.one_pass()
            except Exception as error:  # the API server may be down for a while
                print(f"{type(error).__name__}: {error}", flush=True)
                time.sleep(RETRY_S)

    def one_pass(self) -> None:
        """Handles all claims and volumes once."""
        with self._pass:
            classes = {
                found.metadata.name: found
                for found in self._storage.list_storage_class().items
                if found.provisioner == PROVISIONER
            }
            volumes = self._core.list_persistent_volume().items
            known = {volume.metadata.name for volume in volumes}
            for claim in self._core.list_persistent_volume_claim_for_all_namespaces().items:
                wanted = claim.spec.storage_class_name in classes and not claim.spec.volume_name
                given = SELECTED_NODE in (claim.metadata.annotations or {})
                if wanted and given and f"pvc-{claim.metadata.uid}" not in known:
                    self._make(claim, classes[claim.spec.storage_class_name].reclaim_policy)
            for volume in volumes:
                released = volume.status.phase == "Released" and volume.metadata.deletion_timestamp is None
                if released and volume.spec.persistent_volume_reclaim_policy == "Delete":
                    self._remove(volume)

    def _make(self, claim: Any, reclaim_policy: str) -> None:
        folder = self._folder / f"pvc-{claim.metadata.uid}"
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            self._core.create_persistent_volume(volume_for(claim, reclaim_policy, folder))
        except client.ApiException as error:
            if error.status != 409:
                raise
        print(f"made {folder.name} for {claim.metadata.namespace}/{claim.metadata.name}", flush=True)

    def _remove(self, volume: Any) -> None:
        if (volume.metadata.annotations or {}).get("pv.kubernetes.io/provisioned-by") != PROVISIONER:
            return
        shutil.rmtree(self._folder / volume.metadata.name, ignore_errors=True)
        self._core.delete_persistent_volume(volume.metadata.name)
        print(f"removed {volume.metadata.name}", flush=True)


def main() -> None:
    """Follows claims and volumes until it is killed."""
    config.load_kube_config(sys.argv[1])
    provisioner = Provisioner(Path(sys.argv[2]))
    volumes = threading.Thread(
        target=provisioner.follow, args=(client.CoreV1Api().list_persistent_volume,), daemon=True
    )
    volumes.start()
    provisioner.follow(client.CoreV1Api().list_persistent_volume_claim_for_all_namespaces)


if __name__ == "__main__":
    main()
