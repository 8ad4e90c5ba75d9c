"""Finds the replica that a person names for `epochmq promote`, `fence` or `drain`, and has the result of a
promotion: the same on this machine and on a cluster."""

# pure: plain data in, data out.

from __future__ import annotations

from dataclasses import dataclass

from epochmq_operator.pod_rendering import component_name
from epochmq_operator.pods import Component
from epochmq_operator.status_model import BrokerGroupStatus, ReplicaStatus, StatusReport
from epochmq_protocol.errors import EpochMQError


class ReplicaControlError(EpochMQError):
    """A replica could not be controlled; the message says why, and what the present state is."""


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """The result of a switchover. `held_ms`: how long sends were held, or in the mode DLedger rejected; None
    if the replica already was the master. In the mode DLedger `epoch` is the term."""

    pod: str
    broker_id: int
    epoch: int
    held_ms: int | None
    rejects: bool = False
    """Whether sends were rejected, not held, meanwhile."""


def find_group(status: StatusReport, name: str) -> BrokerGroupStatus:
    """The broker group of this name. ReplicaControlError if it does not run."""
    group = next((group for group in status.broker_groups if group.name == name), None)
    if group is None:
        running = ", ".join(group.name for group in status.broker_groups) or "none"
        raise ReplicaControlError(
            f"broker group {name} does not run in {status.state}; running groups: {running}"
        )
    return group


def named_controller(name: str) -> tuple[str, str]:
    """The ControllerGroup and the pod of the name GROUP/CONTROLLER, where CONTROLLER is the name or the
    ordinal of a pod. ReplicaControlError for another form."""
    group, _, controller = name.partition("/")
    pods = component_name(group, Component.CONTROLLER)
    ordinal = controller.removeprefix(f"{pods}-")
    if not group or not (ordinal.isascii() and ordinal.isdecimal()):
        raise ReplicaControlError(f"{name}: expected GROUP/CONTROLLER, such as orders/0 or orders/{pods}-0")
    return group, f"{pods}-{int(ordinal)}"


def find_replica(status: StatusReport, name: str) -> tuple[BrokerGroupStatus, ReplicaStatus]:
    """The group and the replica of the name GROUP/REPLICA, where REPLICA is the name or the ordinal of a pod.
    ReplicaControlError if there is none."""
    group_name, slash, pod = name.partition("/")
    if not slash or not pod:
        raise ReplicaControlError(
            f"{name}: expected GROUP/REPLICA, such as orders/0 or orders/orders-broker-0"
        )
    group = find_group(status, group_name)
    for replica in group.replicas:
        if pod in (replica.pod, replica.pod.rpartition("-")[2]):
            return group, replica
    pods = ", ".join(replica.pod for replica in group.replicas)
    raise ReplicaControlError(f"{group_name} has no replica {pod}; its replicas are {pods}")
