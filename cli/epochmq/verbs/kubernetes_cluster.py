"""Does the part of `status`, `promote`, `fence`, `drain`, `replica replace`, `controllers replace` and
`report` that concerns a Kubernetes cluster.

It reads the resources, and calls the sidecars of replicas."""

from __future__ import annotations

import asyncio
import os
import shlex
from typing import Any

from epochmq.verbs.target import KubernetesTarget
from epochmq_operator.kube.api import Api
from epochmq_operator.kube.cluster_status import observe_namespace, report
from epochmq_operator.kube.connection import ClusterConnection, from_kubeconfig, in_cluster
from epochmq_operator.kube.pod_commands import call_replica
from epochmq_operator.kube.replacement_order import order_replacement
from epochmq_operator.local.readiness import int_or_none
from epochmq_operator.named_replica import (
    PromotionResult,
    ReplicaControlError,
    find_replica,
    named_controller,
)
from epochmq_operator.plans.objects import Ref
from epochmq_operator.pods import Component
from epochmq_operator.status_model import PodStatus, ReplicaStatus, StatusReport
from epochmq_protocol.errors import EpochMQError

HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets it in every container."""


def connect(target: KubernetesTarget) -> tuple[ClusterConnection, str]:
    """A connection to the cluster of the target, or to the one that this process runs in, and the
    namespace."""
    try:
        connection = from_kubeconfig(target.kubeconfig, target.context)
    except EpochMQError:
        # A pod has no kubeconfig: without one there either, the kubeconfig is what a person can give.
        if target.kubeconfig is not None or target.context is not None or HOST_VARIABLE not in os.environ:
            raise
        connection = in_cluster()
    return connection, target.namespace or connection.namespace


def read_status(target: KubernetesTarget) -> StatusReport:
    """The status of the namespace."""
    return _report(*connect(target))


def _report(connection: ClusterConnection, namespace: str) -> StatusReport:
    return report(connection, asyncio.run(observe_namespace(connection, namespace)))


def kubectl_command(target: KubernetesTarget) -> str:
    """The begin of a `kubectl` command for the namespace of the target."""
    _, namespace = connect(target)
    options = {"--kubeconfig": target.kubeconfig, "--context": target.context, "--namespace": namespace}
    given = [part for option, value in options.items() if value for part in (option, value)]
    return shlex.join(["kubectl", *given])


def audits(target: KubernetesTarget) -> list[tuple[str, dict[str, Any]]]:
    """The audits in the namespace: (name, status)."""
    connection, namespace = connect(target)

    async def listed() -> list[dict[str, Any]]:
        api = Api(connection)
        try:
            resources, _ = await api.list("BrokerGroupAudit", namespace, "")
            return resources
        finally:
            await api.close()

    return [(one["metadata"]["name"], one.get("status") or {}) for one in asyncio.run(listed())]


def pods(status: StatusReport) -> list[tuple[PodStatus, Component]]:
    """All pods: nameservers, controllers, then brokers."""
    return [
        *((pod, Component.NAMESERVER) for pod in status.nameserver_pods),
        *((pod, Component.CONTROLLER) for pod in status.controllers),
        *((pod, Component.BROKER) for group in status.broker_groups for pod in group.replicas),
    ]


def promote(target: KubernetesTarget, name: str, timeout_s: float) -> PromotionResult:
    """Makes a replica the master. Raises ReplicaControlError."""
    connection, namespace = connect(target)
    group, replica = find_replica(_report(connection, namespace), name)
    if replica.broker_id is None:
        raise ReplicaControlError(
            f"{replica.pod} reports no broker id: {replica.reason or 'it did not respond'}"
        )
    if replica.role == "master":
        return PromotionResult(replica.pod, replica.broker_id, group.master_epoch or 0, None)
    result = _call_sidecar(connection, namespace, replica, "promote", timeout_s)
    epoch = int_or_none(str(result.get("masterEpoch"))) or 0
    return PromotionResult(replica.pod, replica.broker_id, epoch, int_or_none(str(result.get("heldMs"))) or 0)


def fence(target: KubernetesTarget, name: str, *, on: bool) -> ReplicaStatus:
    """Fences a replica, or unfences it. Raises ReplicaControlError."""
    connection, namespace = connect(target)
    _, replica = find_replica(_report(connection, namespace), name)
    _call_sidecar(connection, namespace, replica, "fence" if on else "unfence", 5.0)
    return replica


def drain(target: KubernetesTarget, name: str, timeout_s: float, *, on: bool) -> ReplicaStatus:
    """Drains a replica, or undrains it. Raises ReplicaControlError."""
    connection, namespace = connect(target)
    _, replica = find_replica(_report(connection, namespace), name)
    _call_sidecar(connection, namespace, replica, "drain" if on else "undrain", timeout_s)
    return replica


def replace_replica(target: KubernetesTarget, name: str, timeout_s: float, *, accepts_fewer: bool) -> str:
    """Gives a lost replica a new volume; returns its pod. Raises ReplicaControlError, and ApiError if the API
    server rejects the order."""
    connection, namespace = connect(target)
    group, replica = find_replica(_report(connection, namespace), name)
    ref = Ref("BrokerGroup", namespace, group.name)
    asyncio.run(_order_replacement(connection, ref, replica.pod, timeout_s, fewer=accepts_fewer))
    return replica.pod


def replace_controller(target: KubernetesTarget, name: str, timeout_s: float) -> str:
    """Gives a lost controller a new volume; returns its pod. Raises ReplicaControlError, and ApiError if the
    API server rejects the order."""
    group, pod = named_controller(name)
    connection, namespace = connect(target)
    ref = Ref("ControllerGroup", namespace, group)
    asyncio.run(_order_replacement(connection, ref, pod, timeout_s, fewer=False))
    return pod


async def _order_replacement(
    connection: ClusterConnection, group: Ref, pod: str, timeout_s: float, *, fewer: bool
) -> None:
    api = Api(connection)
    try:
        await order_replacement(api, group, pod, timeout_s, fewer=fewer)
    finally:
        await api.close()


def _call_sidecar(
    connection: ClusterConnection, namespace: str, replica: ReplicaStatus, operation: str, timeout_s: float
) -> dict[str, Any]:
    return asyncio.run(call_replica(connection, namespace, replica.pod, operation, timeout_s))
