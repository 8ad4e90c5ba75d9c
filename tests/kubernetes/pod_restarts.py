"""The restarts of pods that the operator reported."""

from __future__ import annotations

import json
from typing import Any

from tests.kubernetes.operator_process import Groups


def restarts(groups: Groups) -> list[str]:
    """The messages of the Events about restarts, in order."""
    text = groups.cluster.kubectl(
        "get",
        "events",
        "--field-selector=reason=RestartingPod",
        "--output=json",
        f"--namespace={groups.namespace}",
    )
    found: list[dict[str, Any]] = json.loads(text)["items"]
    return [one["message"] for one in sorted(found, key=lambda one: one["metadata"]["creationTimestamp"])]
