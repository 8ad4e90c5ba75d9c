"""Installs the chart on the cluster of the tests: the operator runs in a pod, with the chart's own rights."""

from __future__ import annotations

from pathlib import Path

from tests.kubernetes.testbed.images import image_name

CHART = Path(__file__).resolve().parents[2] / "charts" / "epochmq-operator"
TAKE = "--take-ownership"
"""Releases of other tests install the same definitions."""
WAIT = ("--wait", "--timeout=240s")


def values(namespace: str, **more: str) -> list[str]:
    """Values for a release that manages only its own namespace, with the images of the cluster. `more` are
    further values, with `__` in place of dots."""
    repository, _, tag = image_name("operator").rpartition(":")
    chosen = {
        "scope": "namespaced",
        "image.repository": repository,
        "image.tag": tag,
        "groupImages.broker": image_name("broker"),
        "groupImages.controller": image_name("controller"),
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    sets = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
    return ["--namespace", namespace, *sets]
