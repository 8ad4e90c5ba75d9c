"""Runs the control plane: etcd, API server, controller manager, scheduler and CoreDNS, as processes in a
network of its own. So it is not affected when a test stops a node."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from tests.kubernetes.testbed import pki
from tests.kubernetes.testbed.layout import (
    API_PORT,
    API_SERVICE,
    CONTROL_PLANE,
    DOMAIN,
    SERVICES,
    Layout,
)
from tests.kubernetes.testbed.network import CONTROL_PLANE_NAMESPACE
from tests.kubernetes.testbed.processes import Processes, wait_for

READY_TIMEOUT_S = 120
ETCD_URL = "http://127.0.0.1:2379"
ISSUER = f"https://kubernetes.default.svc.{DOMAIN}"
NODE_GRACE_S = 16
"""The time without a heartbeat after which a node counts as lost; Kubernetes' default is 50 s."""

MASTERS = "system:masters"
USERS = {
    "admin": ("admin", MASTERS),
    "coredns": ("coredns", MASTERS),
    "controller-manager": ("system:kube-controller-manager", None),
    "scheduler": ("system:kube-scheduler", None),
    "proxy": ("system:kube-proxy", None),
    "volumes": ("volumes", MASTERS),
}

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "userGroups": ["system:nodes"]},
        {"level": "None", "namespaces": ["kube-node-lease"]},
        {"level": "Metadata"},
    ],
}
"""Logs every write except those of kubelets."""

COREFILE = """\
.:53 {{
  bind {address}
  errors
  ready 127.0.0.1:8181
  kubernetes {domain} in-addr.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 1
  }}
}}
"""


def write_files(layout: Layout, local_port: int) -> None:
    """Writes certificates, kubeconfigs and configuration. This machine reaches the API server at
    `local_port`."""
    layout.pki.mkdir(parents=True)
    authority = pki.Authority()
    (layout.pki / "ca.crt").write_bytes(authority.certificate)
    service = "kubernetes.default.svc"
    names = ("localhost", "kubernetes", "kubernetes.default", service, f"{service}.{DOMAIN}")
    hosts = (CONTROL_PLANE, "127.0.0.1", API_SERVICE, *names)
    authority.issue("kube-apiserver", hosts=hosts).write(layout.pki, "apiserver")
    authority.issue("front-proxy").write(layout.pki, "front-proxy")
    authority.issue("kube-apiserver-kubelet-client", MASTERS).write(layout.pki, "kubelet-client")
    private, public = pki.service_account_keys()
    pki.Pair(public, private).write(layout.pki, "service-account")
    users = USERS | {node.name: (f"system:node:{node.name}", "system:nodes") for node in layout.nodes}
    for user, (name, group) in users.items():
        server = f"127.0.0.1:{local_port}" if user == "admin" else f"{CONTROL_PLANE}:{API_PORT}"
        pair = authority.issue(name, group)
        config = layout.kubeconfig(user)
        config.touch(mode=0o600)
        config.write_text(pki.kubeconfig(f"https://{server}", authority.certificate, pair))
    (layout.folder / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
    corefile = COREFILE.format(address=CONTROL_PLANE, domain=DOMAIN, kubeconfig=layout.kubeconfig("coredns"))
    (layout.folder / "Corefile").write_text(corefile)


def _etcd(layout: Layout, programs: Path) -> list[str]:
    return [
        f"{programs}/etcd",
        f"--data-dir={layout.folder}/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
    ]


def _api_server(layout: Layout, programs: Path) -> list[str]:
    files = layout.pki
    return [
        f"{programs}/kube-apiserver",
        f"--etcd-servers={ETCD_URL}",
        f"--advertise-address={CONTROL_PLANE}",
        "--bind-address=0.0.0.0",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={files}/apiserver.crt",
        f"--tls-private-key-file={files}/apiserver.key",
        f"--client-ca-file={files}/ca.crt",
        f"--service-account-key-file={files}/service-account.crt",
        f"--service-account-signing-key-file={files}/service-account.key",
        f"--service-account-issuer={ISSUER}",
        f"--service-cluster-ip-range={SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={files}/kubelet-client.crt",
        f"--kubelet-client-key={files}/kubelet-client.key",
        # Webhooks are called at their pods' addresses: there is no kube-proxy in this network.
        "--enable-aggregator-routing=true",
        f"--requestheader-client-ca-file={files}/ca.crt",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={files}/front-proxy.crt",
        f"--proxy-client-key-file={files}/front-proxy.key",
        f"--audit-policy-file={layout.folder}/audit-policy.json",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-mode=blocking",
    ]


def _controller_manager(layout: Layout, programs: Path) -> list[str]:
    return [
        f"{programs}/kube-controller-manager",
        f"--kubeconfig={layout.kubeconfig('controller-manager')}",
        f"--service-account-private-key-file={layout.pki}/service-account.key",
        f"--root-ca-file={layout.pki}/ca.crt",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--node-monitor-period=2s",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
    ]


def _scheduler(layout: Layout, programs: Path) -> list[str]:
    return [
        f"{programs}/kube-scheduler",
        f"--kubeconfig={layout.kubeconfig('scheduler')}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]


class ControlPlane:
    """Its processes, by name: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, coredns."""

    def __init__(self, layout: Layout, programs: Path, processes: Processes) -> None:
        self._layout = layout
        self._programs = programs
        self._processes = processes

    def start_api(self) -> None:
        """Starts etcd and the API server, and waits until it is ready."""
        self._start("etcd", _etcd(self._layout, self._programs))
        self._start("kube-apiserver", _api_server(self._layout, self._programs))
        wait_for(self._ready, timeout_s=READY_TIMEOUT_S, what="the API server is ready")

    def start_others(self) -> None:
        """Starts the components that need the API server."""
        self._start("kube-controller-manager", _controller_manager(self._layout, self._programs))
        self._start("kube-scheduler", _scheduler(self._layout, self._programs))
        self._start("coredns", [f"{self._programs}/coredns", "-conf", f"{self._layout.folder}/Corefile"])

    def _start(self, name: str, command: list[str]) -> None:
        cgroup = f"{self._layout.cgroup}/control-plane"
        self._processes.start(name, command, node=CONTROL_PLANE_NAMESPACE, cgroup=cgroup)

    def _ready(self) -> bool:
        for name in ("etcd", "kube-apiserver"):
            if not self._processes.runs(name):
                output = self._processes.log(name).read_text(errors="replace")
                raise RuntimeError(f"{name} ended: {output[-3000:]}")
        config = json.loads(self._layout.kubeconfig().read_text())
        server = config["clusters"][0]["cluster"]["server"]
        trust = ssl.create_default_context(cafile=str(self._layout.pki / "ca.crt"))
        try:
            with urllib.request.urlopen(f"{server}/readyz", timeout=5, context=trust) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False
