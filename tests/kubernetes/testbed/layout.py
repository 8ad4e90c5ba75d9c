"""Defines where everything of one cluster is: its folder, addresses and names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CONTROL_PLANE = "100.64.0.1"
API_PORT = 6443
NODES = "100.64.0.0/24"
PODS = "100.66.0.0/16"
SERVICES = "100.65.0.0/16"
API_SERVICE = "100.65.0.1"
DNS_SERVICE = "100.65.0.10"
DOMAIN = "cluster.local"
# All of these exist in the cluster's own namespaces only.


@dataclass(frozen=True)
class NodeLayout:
    """One node: number 1, 2, … of its cluster."""

    number: int
    folder: Path
    cgroup: str
    """Its control group, from the root of a hierarchy."""

    @property
    def name(self) -> str:
        """Its name in Kubernetes, and that of its network namespace."""
        return f"n{self.number}"

    @property
    def address(self) -> str:
        """Its address among the nodes."""
        return f"100.64.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        """The addresses of its pods."""
        return f"100.66.{self.number}.0/24"

    @property
    def containerd_socket(self) -> Path:
        """Where its containerd listens."""
        return self.folder / "containerd.sock"


@dataclass(frozen=True)
class Layout:
    """One cluster, named `name`, with all its files in `folder`."""

    name: str
    folder: Path
    node_count: int

    @property
    def cgroup(self) -> str:
        """The control group of the whole cluster, from the root of a hierarchy."""
        return f"/epochmq-{self.name}"

    @property
    def nodes(self) -> tuple[NodeLayout, ...]:
        """Its nodes, in order."""
        return tuple(
            NodeLayout(number, self.folder / f"n{number}", f"{self.cgroup}/n{number}")
            for number in range(1, self.node_count + 1)
        )

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        """The logs of the cluster's own processes."""
        return self.folder / "log"

    @property
    def volumes(self) -> Path:
        """The directories behind its persistent volumes."""
        return self.folder / "volumes"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log of every write, a line of JSON each."""
        return self.folder / "audit.jsonl"

    def kubeconfig(self, user: str = "admin") -> Path:
        """The kubeconfig of `user` for use inside the namespaces; that of `admin` works outside, through
        127.0.0.1."""
        return self.folder / f"{user}.kubeconfig"
