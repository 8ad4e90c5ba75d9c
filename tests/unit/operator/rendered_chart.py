"""The chart as helm renders it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "epochmq-operator"
NAMESPACE = "epochmq-system"
AGGREGATED = "rbac.authorization.k8s.io/aggregate-to-"
PROMETHEUS = (
    "monitoring.podMonitor.enabled=true",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.namespaces={monitoring}",
)
"""Values that turn monitoring by Prometheus' operator on."""


def helm() -> str:
    built = Path(os.environ.get("EPOCHMQ_CACHE", ROOT / ".cache")) / "kubernetes" / "programs"
    found = shutil.which("helm") or next((str(path) for path in sorted(built.glob("*/helm"))), None)
    if found is None:
        pytest.skip("no helm: it is not on the PATH, and the cluster's tests have not built it yet")
    return found


@functools.cache
def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *arguments], capture_output=True, text=True, timeout=300, check=False)


def rendered(*values: str, release: str = "epochmq") -> list[dict[str, Any]]:
    sets = [part for value in values for part in ("--set", value)]
    found = run("template", release, str(CHART), "-n", NAMESPACE, "--kube-version", "1.34.4", *sets)
    assert found.returncode == 0, found.stderr
    return [document for document in yaml.safe_load_all(found.stdout) if document]


def hook(one: dict[str, Any]) -> str | None:
    found = one["metadata"].get("annotations", {}).get("helm.sh/hook")
    return None if found is None else str(found)


def kinds(objects: list[dict[str, Any]], kind: str, when: str | None = None) -> list[dict[str, Any]]:
    """The release's objects of a kind, or those that a hook creates, without the aggregated roles."""
    return [one for one in objects if one["kind"] == kind and hook(one) == when and not aggregated_to(one)]


def aggregated_to(one: dict[str, Any]) -> set[str]:
    """Kubernetes' roles to which an object is added."""
    labels = one["metadata"].get("labels", {})
    return {label.removeprefix(AGGREGATED) for label in labels if label.startswith(AGGREGATED)}


Right = tuple[str, str, str]
"""API group, resource, verb."""


def rights(role: dict[str, Any]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rejection(*values: str) -> str:
    """What helm says of values that the chart rejects."""
    sets = [part for value in values for part in ("--set", value)]
    found = run("template", "epochmq", str(CHART), "--kube-version", "1.34.4", *sets)
    assert found.returncode != 0
    return found.stderr
