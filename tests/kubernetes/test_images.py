"""Tests the content of the images, and how their processes end."""

from __future__ import annotations

import json
import signal
import tarfile
from pathlib import Path

import pytest

from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.images import base_image, image_name, project_images
from tests.kubernetes.testbed.pods import USER, pod

TARGETS = ("broker", "controller", "operator")
NEVER_NEEDED = {"pip", "pytest", "hatchling", "mypy", "hypothesis", "httpx", "rocketmq"}
OPERATORS = {"kopf", "kubernetes"}
AUDITS = {"pyspark", "pyarrow", "pandas", "numba"}
LACKS = {
    "broker": NEVER_NEEDED | OPERATORS | AUDITS,
    "controller": NEVER_NEEDED | OPERATORS | AUDITS,
    "operator": NEVER_NEEDED | AUDITS,
}
OWN_MB_MAX = {"broker": 120, "controller": 120, "operator": 300}
"""The size that an image adds to its shared base."""


class Image:
    """An image in an archive."""

    def __init__(self, archive: Path) -> None:
        with tarfile.open(archive) as tar:
            manifest = json.loads(self._read(tar, "manifest.json"))[0]
            config = json.loads(self._read(tar, manifest["Config"]))
            self.config: dict[str, object] = config["config"]
            self.sizes: dict[str, int] = {}
            self.files: dict[str, int] = {}
            for digest, name in zip(config["rootfs"]["diff_ids"], manifest["Layers"], strict=True):
                member = tar.getmember(name)
                layer = tar.extractfile(member if member.isfile() else _target(tar, member))
                assert layer is not None
                with tarfile.open(fileobj=layer) as content:
                    members = content.getmembers()
                self.sizes[digest] = sum(each.size for each in members)
                self.files |= {each.name.lstrip("./"): each.mode for each in members}

    @staticmethod
    def _read(tar: tarfile.TarFile, name: str) -> bytes:
        file = tar.extractfile(name)
        assert file is not None, f"no {name}"
        return file.read()


def _target(tar: tarfile.TarFile, link: tarfile.TarInfo) -> tarfile.TarInfo:
    """A layer that an archive contains twice is a link the second time."""
    return tar.getmember(str(Path(link.name).parent / link.linkname) if link.issym() else link.linkname)


@pytest.mark.parametrize("target", TARGETS)
def test_image_is_complete_and_small(cluster: Cluster, target: str) -> None:
    """Its own layers hold the user and the packages of its lock file: no cache, no builder, no other
    packages."""
    assert cluster.nodes, "or this machine cannot build images"
    image = Image(project_images([target])[target])
    base = Image(base_image())
    own = {name for name in image.files if name not in base.files}
    megabytes = sum(size for digest, size in image.sizes.items() if digest not in base.sizes) / 1e6
    print(f"{target}: {megabytes:.0f} MB on a base of {sum(base.sizes.values()) / 1e6:.0f} MB")
    assert megabytes < OWN_MB_MAX[target]
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.config["Entrypoint"] == ["epochmq"], "in exec form, so that the command is process 1"
    packages = {
        name.split("site-packages/")[1].split("/")[0]
        for name in own
        if name.startswith("opt/epochmq/lib") and "site-packages/" in name
    }
    assert {"epochmq", "epochmq_broker", "epochmq_controller", "uvicorn"} <= packages
    assert not packages & LACKS[target]
    assert not [name for name in own if "/.cache/" in name or name.startswith(("root/", "build/", "tmp/"))]
    set_ids = [name for name in own if image.files[name] & 0o6000]
    assert not set_ids, "nothing that runs as somebody else"


def test_nameserver_as_process_1_ends_on_sigterm(cluster: Cluster, namespace: str) -> None:
    """On SIGTERM, which Kubernetes sends first, it ends with exit code 0."""
    nameserver = pod("nameserver", image_name("controller"), arguments=["nameserver"], restart="Never")
    nameserver["spec"]["terminationGracePeriodSeconds"] = 60
    nameserver["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 9876}, "periodSeconds": 1}
    cluster.apply(nameserver, namespace=namespace)
    cluster.wait_pod(namespace, "nameserver")
    cluster.kill_container(namespace, "nameserver", "main", signal.SIGTERM)
    ended = cluster.wait_pod(namespace, "nameserver", phase="Succeeded")
    assert ended.status.container_statuses[0].state.terminated.exit_code == 0
