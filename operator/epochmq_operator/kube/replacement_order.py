"""Orders a new volume for a lost replica or controller, by the annotation that the operator acts on, and
waits for the result."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from epochmq_operator.kube.api import Api, ApiError, object_path
from epochmq_operator.named_replica import ReplicaControlError
from epochmq_operator.plans.objects import REPLACE_REPLICA, Manifest, Ref, annotation, metadata, status_of
from epochmq_operator.plans.replica_replacement import (
    REPLACEMENT,
    ReplacementOrder,
    ReplacementState,
    claim_of,
)
from epochmq_operator.pod_rendering import component_name
from epochmq_operator.pods import Component

POLL_S: Final = 0.5


async def order_replacement(api: Api, group: Ref, pod: str, timeout_s: float, *, fewer: bool) -> None:
    """Orders a new volume for the replica in `pod` of a BrokerGroup, or for the controller of a
    ControllerGroup, and returns when it has one. `fewer`: also if fewer others have every acknowledged
    message than an acknowledgement needs. ReplicaControlError if the operator refuses the order, or has not
    carried it out within the time."""
    component = Component.BROKER if group.kind == "BrokerGroup" else Component.CONTROLLER
    name = component_name(group.name, component)
    stateful_set = await _existing(
        api, Ref("StatefulSet", group.namespace, name), f"{group} has no {component}s in this namespace"
    )
    claim_ref = Ref("PersistentVolumeClaim", group.namespace, claim_of(stateful_set, pod))
    claim = await _existing(api, claim_ref, "Kubernetes makes it with its pod")
    order = str(ReplacementOrder(pod, str(metadata(claim)["uid"]), accepts_fewer=fewer))
    found = await api.get(object_path(group))
    present = annotation(found, REPLACE_REPLICA)
    if present not in (None, order):
        raise ReplicaControlError(f"{group}: another order is being carried out: {present}")
    await api.annotate(group, str(metadata(found)["resourceVersion"]), REPLACE_REPLICA, order)
    deadline = time.monotonic() + timeout_s
    while annotation(found := await api.get(object_path(group)), REPLACE_REPLICA) == order:
        if time.monotonic() > deadline:
            raise ReplicaControlError(_unfinished(group, pod, found, order, timeout_s))
        await asyncio.sleep(POLL_S)
    result = status_of(found).get(REPLACEMENT) or {}
    if result.get("order") != order:
        raise ReplicaControlError(f"{pod} is not replaced: somebody removed the order {order}")
    if result.get("state") == ReplacementState.REFUSED:
        raise ReplicaControlError(f"the operator {result.get('message')}")


async def _existing(api: Api, ref: Ref, why: str) -> dict[str, Any]:
    try:
        return await api.get(object_path(ref))
    except ApiError as error:
        if error.status != 404:
            raise
        raise ReplicaControlError(f"{ref} does not exist: {why}") from None


def _unfinished(group: Ref, pod: str, found: Manifest, order: str, timeout_s: float) -> str:
    """What an order waits for that has not ended in time, and how a person takes it back."""
    result = status_of(found).get(REPLACEMENT) or {}
    why = result.get("message") if result.get("order") == order else "the operator has not read the order"
    return (
        f"{pod} has no new volume after {timeout_s:g} s: {why}; the order stays; to take it back: kubectl "
        f"annotate {group.kind.lower()} {group.name} --namespace {group.namespace} {REPLACE_REPLICA}-"
    )
