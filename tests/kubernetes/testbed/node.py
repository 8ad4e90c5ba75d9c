"""Runs a node: containerd, kubelet and kube-proxy in a network namespace of their own, with the faults that
tests inject."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.kubernetes.testbed.cleanup import hierarchies
from tests.kubernetes.testbed.layout import DNS_SERVICE, DOMAIN, PODS, Layout, NodeLayout
from tests.kubernetes.testbed.network import cni_config, link_script
from tests.kubernetes.testbed.prerequisites import CNI_PLUGINS
from tests.kubernetes.testbed.processes import Processes, run, wait_for

PAUSE_IMAGE = "docker.io/testbed/pause:1"
IMPORT_TIMEOUT_S = 300
SOCKET_TIMEOUT_S = 60
PARTS = ("kubelet", "proxy", "containerd")
CPU_SHARES = {"cpu.shares": 16 * 1024, "cpu.weight": 16 * 100}
"""What all pods of a cluster get together, by the names of version 1 and 2 of control groups: as much as so
many processes outside. A group that is told nothing counts as one of them."""

CONTAINERD_CONFIG = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/run"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Not every machine that runs tests lets root lower it.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def _kubelet_config(layout: Layout, node: NodeLayout) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": DOMAIN,
        "resolvConf": "/dev/null",
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "podLogsDir": str(node.folder / "pod-logs"),
        "volumePluginDir": str(node.folder / "volume-plugins"),
        "nodeStatusUpdateFrequency": "3s",
        "nodeLeaseDurationSeconds": 12,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
    }


class Node:
    """One node of a running cluster."""

    def __init__(self, layout: Layout, node: NodeLayout, programs: Path, processes: Processes) -> None:
        self._cluster = layout
        self.layout = node
        self._programs = programs
        self._processes = processes

    @property
    def name(self) -> str:
        """Its name in Kubernetes."""
        return self.layout.name

    @property
    def enter(self) -> list[str]:
        """The prefix of a command that runs in this node's network, where pods' and Services' addresses and
        names are valid. The command replaces it, so that signals reach the command."""
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        namespace = self._processes.namespace(self.name)
        resolv = str(self._cluster.folder / "resolv.conf")
        return ["nsenter", f"--net={namespace}", "unshare", "--mount", "sh", "-c", script, resolv]

    def write_files(self) -> None:
        """Writes the configuration and creates the control groups."""
        folder = self.layout.folder
        for name in ("cni", "kubelet", "pod-logs"):
            (folder / name).mkdir(parents=True)
        (folder / "cni" / "10-testbed.conflist").write_text(json.dumps(cni_config(self.layout)))
        (folder / "containerd.toml").write_text(
            CONTAINERD_CONFIG.format(
                folder=folder,
                socket=self.layout.containerd_socket,
                pause=PAUSE_IMAGE,
                plugins=CNI_PLUGINS,
            )
        )
        (folder / "kubelet.yaml").write_text(json.dumps(_kubelet_config(self._cluster, self.layout)))
        make_cgroup(self.layout.cgroup)

    def start_containerd(self) -> None:
        """Starts containerd and waits until it accepts connections."""
        self._start("containerd", ["containerd", "-c", self.layout.folder / "containerd.toml", "-l", "warn"])
        wait_for(
            lambda: self._containerd("version", check=False),
            timeout_s=SOCKET_TIMEOUT_S,
            what=f"containerd of {self.name} answers",
        )

    def start_kubelet(self) -> None:
        """Starts the kubelet, also after it was stopped or killed."""
        folder = self.layout.folder
        self._start(
            "kubelet",
            [
                self._programs / "kubelet",
                f"--config={folder}/kubelet.yaml",
                f"--kubeconfig={self._cluster.kubeconfig(self.name)}",
                f"--root-dir={folder}/kubelet",
                f"--cert-dir={folder}/pki",
                f"--hostname-override={self.name}",
                f"--node-ip={self.layout.address}",
            ],
        )

    def start_proxy(self) -> None:
        """Starts kube-proxy."""
        self._start(
            "proxy",
            [
                self._programs / "kube-proxy",
                f"--kubeconfig={self._cluster.kubeconfig('proxy')}",
                f"--hostname-override={self.name}",
                f"--cluster-cidr={PODS}",
                "--proxy-mode=iptables",
                "--iptables-min-sync-period=100ms",
                "--conntrack-max-per-core=0",
            ],
        )

    def stop_kubelet(self) -> None:
        """Ends the kubelet by SIGTERM. Its pods keep running; after a while the control plane marks the node
        as not ready."""
        self._processes.stop(self._process("kubelet"))

    def kill_kubelet(self) -> None:
        """Kills the kubelet. Its pods keep running."""
        self._processes.kill(self._process("kubelet"))

    def power_off(self) -> None:
        """Simulates a power failure: disconnects the node, then kills everything on it."""
        self.unplug()
        for part in PARTS:
            self._processes.signal(self._process(part), 9)
        self._processes.kill_group(self.layout.cgroup)
        for part in PARTS:
            self._processes.kill(self._process(part))

    def power_on(self) -> None:
        """Starts the node again; its disks keep their content."""
        self.layout.containerd_socket.unlink(missing_ok=True)
        self.plug()
        self.start_containerd()
        self.start_kubelet()
        self.start_proxy()

    def unplug(self) -> None:
        """Disconnects the node; everything on it keeps running."""
        self._processes.inside(link_script(self.layout, up=False))

    def plug(self) -> None:
        """Connects the node again."""
        self._processes.inside(link_script(self.layout, up=True))

    def load(self, archive: Path) -> None:
        """Loads the images of an archive on this node."""
        self._containerd("images", "import", str(archive), timeout_s=IMPORT_TIMEOUT_S)

    def tag_image(self, image: str, name: str) -> None:
        """Gives an image on this node one more name."""
        self._containerd("images", "tag", "--force", image, name)

    def images(self) -> set[str]:
        """The names of the images on this node."""
        return set(self._containerd("images", "list", "--quiet").split())

    def _containerd(self, *arguments: str, check: bool = True, timeout_s: float = 300) -> str:
        command = [
            "ctr",
            "--address",
            str(self.layout.containerd_socket),
            "--namespace",
            "k8s.io",
            *arguments,
        ]
        try:
            return run(command, timeout_s=timeout_s)
        except Exception:
            if check:
                raise
            return ""

    def _process(self, part: str) -> str:
        return f"{part}-{self.name}"

    def _start(self, part: str, command: Sequence[str | Path]) -> None:
        cgroup = f"{self.layout.cgroup}/system"
        self._processes.start(self._process(part), command, node=self.name, cgroup=cgroup)


def make_cgroup(name: str) -> None:
    """Makes a control group in every hierarchy, able to hold others; the top one of it with the share of
    processors that a cluster needs."""
    for hierarchy in hierarchies():
        path = hierarchy
        for part in name.strip("/").split("/"):
            parent, path = path, path / part
            controllers = parent / "cgroup.subtree_control"
            if controllers.exists() and (parent / "cgroup.controllers").exists():  # version 2
                offered = (parent / "cgroup.controllers").read_text().split()
                controllers.write_text(" ".join(f"+{name}" for name in offered))
            path.mkdir(exist_ok=True)
            if parent == hierarchy:
                for share, amount in CPU_SHARES.items():
                    if (path / share).exists():
                        (path / share).write_text(str(amount))
            for inherited in ("cpuset.cpus", "cpuset.mems"):
                # A new group of version 1 has no processors and no memory until it is told which.
                if (path / inherited).exists() and not (path / inherited).read_text().strip():
                    (path / inherited).write_text((parent / inherited).read_text())
