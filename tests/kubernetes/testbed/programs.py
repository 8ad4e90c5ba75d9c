"""Builds the programs of a cluster from Go modules, once for each list of versions. `go/go.mod` has the
versions of Kubernetes and etcd, `go/go.sum` the hashes of their sources; the versions of Helm, CoreDNS and
promtool are here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.kubernetes.testbed.cache import cached, digest_of, say
from tests.kubernetes.testbed.prerequisites import MissingPrerequisiteError

SOURCES = Path(__file__).resolve().parent / "go"
BUILD_TIMEOUT_S = 2400
COMMANDS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
ETCD = "go.etcd.io/etcd/server/v3"
OTHERS = ("github.com/coredns/coredns@v1.12.4", "helm.sh/helm/v3/cmd/helm@v3.21.3")
PROMTOOL = "github.com/prometheus/prometheus/cmd/promtool@v0.316.0"
"""Prometheus 3.16's tool, which evaluates rules as Prometheus does, in simulated time."""
PROMTOOL_TAGS = "remove_all_sd"
"""Without the discovery of targets, which the tests do not use."""


def kubernetes_version() -> str:
    """The release, such as 1.34.4, from the only place that has it."""
    found = re.search(r"^\s*k8s\.io/kubernetes v(\S+)", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    assert found, f"{SOURCES}/go.mod requires no k8s.io/kubernetes"
    return found[1]


def programs() -> Path:
    """The folder of the programs. The first build takes ten minutes on two cores. MissingPrerequisiteError if
    it fails."""
    sources = [path.read_bytes() for path in sorted(SOURCES.rglob("*")) if path.is_file()]
    version = kubernetes_version()
    return cached(
        f"programs/{version}-{digest_of(*sources, *OTHERS)}", lambda folder: _build(folder, version)
    )


def promtool() -> Path:
    """Prometheus' promtool. MissingPrerequisiteError if it cannot be built."""
    return cached(f"programs/promtool-{digest_of(PROMTOOL, PROMTOOL_TAGS)}", _build_promtool) / "promtool"


def _build_promtool(folder: Path) -> None:
    if shutil.which("go") is None:
        raise MissingPrerequisiteError("missing: Go, to build Prometheus' promtool")
    say(f"building {PROMTOOL}")
    folder.mkdir()
    _go("install", "-trimpath", "-ldflags", "-s -w", "-tags", PROMTOOL_TAGS, PROMTOOL, GOBIN=str(folder))


def _build(folder: Path, version: str) -> None:
    say(f"building Kubernetes {version} and etcd (six minutes on two cores)")
    major, minor, _ = version.split(".", 2)
    stamp = "-X k8s.io/component-base/version.git"
    stamps = f"{stamp}Version=v{version} {stamp}Major={major} {stamp}Minor={minor}"
    packages = [*(f"k8s.io/kubernetes/cmd/{name}" for name in COMMANDS), ETCD, "./pause"]
    _go("build", "-trimpath", "-ldflags", f"-s -w {stamps}", "-o", f"{folder}/", *packages)
    (folder / Path(ETCD).parent.name).rename(folder / "etcd")
    for package in OTHERS:
        say(f"building {package}")
        _go("install", "-trimpath", "-ldflags", "-s -w", package, GOBIN=str(folder))


def _go(*arguments: str, **environment: str) -> None:
    """Builds static programs, which run on the machine and in images, with low priority."""
    try:
        done = subprocess.run(
            ["nice", "go", *arguments],
            cwd=SOURCES,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            env={**os.environ, "CGO_ENABLED": "0", **environment},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MissingPrerequisiteError(
            f"missing: the tests' programs; the build took more than {BUILD_TIMEOUT_S} s"
        ) from None
    if done.returncode != 0:
        raise MissingPrerequisiteError(
            f"missing: the tests' programs; the build said: {done.stderr.strip()[-800:]}"
        )
