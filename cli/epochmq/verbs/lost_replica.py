"""Implements `epochmq replica replace` and `epochmq controllers replace`: gives a replica or a controller on
Kubernetes a new volume."""

from __future__ import annotations

import json

from epochmq.exits import ExitCode
from epochmq.verbs.kubernetes_cluster import replace_controller, replace_replica
from epochmq.verbs.target import KubernetesTarget


def replace(
    target: KubernetesTarget, name: str, timeout_s: float, *, accepts_fewer: bool, as_json: bool
) -> int:
    """Replaces the volume of the lost replica GROUP/REPLICA."""
    pod = replace_replica(target, name, timeout_s, accepts_fewer=accepts_fewer)
    text = f"{pod} has a new volume; it copies the log, and joins the group as a new replica"
    print(json.dumps({"pod": pod, "state": "Replaced"}) if as_json else text)
    return ExitCode.OK


def replace_lost_controller(target: KubernetesTarget, name: str, timeout_s: float, *, as_json: bool) -> int:
    """Replaces the volume of the lost controller GROUP/CONTROLLER."""
    pod = replace_controller(target, name, timeout_s)
    text = f"{pod} has a new volume; it copies the log, and then votes"
    print(json.dumps({"pod": pod, "state": "Replaced"}) if as_json else text)
    return ExitCode.OK
