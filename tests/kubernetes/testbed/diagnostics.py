"""What explains a failure, kept in a folder: events, objects, the logs of pods and of the cluster's own
processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.kubernetes.testbed.layout import Layout
from tests.kubernetes.testbed.processes import TestbedError

KINDS = (
    *("nodes", "persistentvolumes", "persistentvolumeclaims", "statefulsets", "deployments", "jobs"),
    *("services", "endpointslices", "configmaps", "poddisruptionbudgets", "networkpolicies", "leases"),
)
LOG_LINES = 2000
PODS_MAX = 100
SERVER_LOG_BYTES = 4_000_000


def collect(layout: Layout, kubectl: Callable[..., str], folder: Path) -> Path:
    """Writes everything into `folder`, which is made; what cannot be had is said in its place."""
    folder.mkdir(parents=True, exist_ok=True)
    everywhere = ("--all-namespaces", "--request-timeout=20s")

    def write(name: str, *arguments: str) -> str:
        try:
            said = kubectl(*arguments)
        except TestbedError as error:
            said = f"{error}\n"
        (folder / name).write_text(said)
        return said

    write("events.txt", "get", "events", *everywhere, "--sort-by=.lastTimestamp")
    write("pods.txt", "get", "pods", *everywhere, "--output=wide")
    write("pods.yaml", "get", "pods", *everywhere, "--output=yaml")
    for kind in KINDS:
        write(f"{kind}.yaml", "get", kind, *everywhere, "--output=yaml")
    names = write(
        "custom-kinds.txt", "get", "customresourcedefinitions", "--output=name", "--request-timeout=20s"
    )
    for name in names.split()[:20]:
        kind = name.rpartition("/")[2]
        write(f"{kind}.yaml", "get", kind, *everywhere, "--output=yaml")
    _pod_logs(kubectl, folder / "logs")
    _server_logs(layout, folder / "servers")
    return folder


def _pod_logs(kubectl: Callable[..., str], folder: Path) -> None:
    columns = "--output=jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{'\\n'}{end}"
    try:
        pods = [line.split() for line in kubectl("get", "pods", "--all-namespaces", columns).splitlines()]
    except TestbedError:
        return
    folder.mkdir(exist_ok=True)
    for namespace, pod in pods[:PODS_MAX]:
        arguments = (
            "logs",
            f"--namespace={namespace}",
            pod,
            "--all-containers",
            "--prefix",
            f"--tail={LOG_LINES}",
        )
        for suffix, more in (("", ()), (".before", ("--previous",))):
            try:
                said = kubectl(*arguments, *more)
            except TestbedError as error:
                said = "" if more else str(error)
            if said:
                (folder / f"{namespace}.{pod}{suffix}.log").write_text(said)


def _server_logs(layout: Layout, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for log in [*layout.logs.glob("*.log"), layout.audit_log]:
        if not log.exists():
            continue
        with log.open("rb") as source, (folder / log.name).open("wb") as target:
            source.seek(max(0, log.stat().st_size - SERVER_LOG_BYTES))
            shutil.copyfileobj(source, target)
