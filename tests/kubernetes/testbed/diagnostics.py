"""Collects diagnostics of a failure in a folder: events, objects, the logs of pods and of the cluster's
processes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kubernetes.testbed.layout import Layout
from tests.kubernetes.testbed.processes import TestbedError

KINDS = (
    *("nodes", "persistentvolumes", "persistentvolumeclaims", "statefulsets", "deployments", "jobs"),
    *("services", "endpointslices", "configmaps", "poddisruptionbudgets", "networkpolicies", "leases"),
)
STATUSES = ("initContainerStatuses", "containerStatuses")
LOG_LINES = 2000
PODS_MAX = 100
SERVER_LOG_BYTES = 4_000_000
COLLECTED_WITHIN_S = 120.0
"""A large cluster on a busy machine responds slowly; what is not collected within this time is left out."""
QUESTION_TIMEOUT_S = 30.0


class _Collector:
    """Writes the output of kubectl commands to files, as long as there is time."""

    def __init__(self, kubectl: Callable[..., str], folder: Path) -> None:
        self._kubectl = kubectl
        self._folder = folder
        self._over_s = time.monotonic() + COLLECTED_WITHIN_S

    def keep(self, name: str, *arguments: str) -> str:
        """Writes the output, or why there is none, to a file; returns the output."""
        left_s = self._over_s - time.monotonic()
        output = ""
        try:
            if left_s <= 0:
                raise TestbedError(f"left out, {COLLECTED_WITHIN_S:.0f} s were over")
            output = self._kubectl(*arguments, timeout_s=min(left_s, QUESTION_TIMEOUT_S))
        except TestbedError as error:
            (self._folder / name).write_text(f"{error}\n")
        else:
            (self._folder / name).write_text(output)
        return output


def collect(layout: Layout, kubectl: Callable[..., str], folder: Path) -> Path:
    """Writes everything into `folder`, which it creates. A file says so if its content could not be collected
    in time."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    _server_logs(layout, folder / "servers")
    collector = _Collector(kubectl, folder)
    everywhere = ("--all-namespaces", "--request-timeout=20s")
    collector.keep("events.txt", "get", "events", *everywhere, "--sort-by=.lastTimestamp")
    collector.keep("pods.txt", "get", "pods", *everywhere, "--output=wide")
    _pod_logs(collector, collector.keep("pods.json", "get", "pods", *everywhere, "--output=json"))
    names = collector.keep(
        "custom-kinds.txt", "get", "customresourcedefinitions", "--output=name", "--request-timeout=20s"
    )
    for kind in (*(name.rpartition("/")[2] for name in names.split()[:20]), *KINDS):
        collector.keep(f"{kind}.yaml", "get", kind, *everywhere, "--output=yaml")
    return folder


def _pod_logs(collector: _Collector, pods: str) -> None:
    """Writes the logs of the pods in this list that ever ran."""
    started = [one for one in json.loads(pods or '{"items": []}')["items"] if _statuses(one)]
    for pod in started[:PODS_MAX]:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        command = ("logs", f"--namespace={namespace}", name, "--all-containers", "--prefix")
        collector.keep(f"logs/{namespace}.{name}.log", *command, f"--tail={LOG_LINES}")
        for status in _statuses(pod):
            if status["restartCount"]:
                container = status["name"]
                command = ("logs", f"--namespace={namespace}", name, f"--container={container}", "--previous")
                file = f"logs/{namespace}.{name}.{container}.before.log"
                collector.keep(file, *command, f"--tail={LOG_LINES}")


def _statuses(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The statuses of the containers that ran."""
    found = [one for key in STATUSES for one in pod["status"].get(key) or []]
    return [one for one in found if one.get("containerID")]


def _server_logs(layout: Layout, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for log in [*layout.logs.glob("*.log"), layout.audit_log]:
        if not log.exists():
            continue
        with log.open("rb") as source, (folder / log.name).open("wb") as target:
            source.seek(max(0, log.stat().st_size - SERVER_LOG_BYTES))
            shutil.copyfileobj(source, target)
