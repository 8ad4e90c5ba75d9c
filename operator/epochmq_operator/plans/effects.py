"""Defines the effects of a reconciliation, which its driver carries out. An effect may be carried out twice
without harm, also by another operator after this one was killed."""

# pure: plain data.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from epochmq_operator.plans.objects import Manifest, Ref


class EventType(StrEnum):
    """The two types of Event in Kubernetes."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of this object with the operator as field manager."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Create:
    """Creates this object. One of this name that exists stays as it is. Fields of a created object that the
    operator does not apply later stay, too: server-side apply would take them back."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes the object with this uid. A later object of the same name has another uid and stays. `forced`:
    without waiting for the node of a pod, which is lost."""

    ref: Ref
    uid: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Replaces all finalizers of the resource if it still has this resourceVersion."""

    finalizers: tuple[str, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class RemoveAnnotation:
    """Removes an annotation of the resource if it still has this value."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class SetAnnotation:
    """Sets an annotation of an object if it still has this resourceVersion."""

    ref: Ref
    resource_version: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """Replaces the whole status of the resource."""

    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CreateEvent:
    """Creates an Event about the resource. The Event's name is derived from `key`, which identifies the
    occurrence, so that one occurrence makes one Event however often the effect is carried out."""

    type: EventType
    reason: str
    message: str
    key: str


@dataclass(frozen=True, slots=True)
class ReloadConfiguration:
    """Has the broker in the pod with this uid apply a configuration file, given by key, through its sidecar.
    `version` is the name of the file's ConfigMap, which the broker reports from then on."""

    pod: Ref
    uid: str
    version: str
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChangeQuorumMembers:
    """Has the leader of a quorum of controllers or of a DLedger group, in the pod with this uid, add a member
    or, without an address, remove it, through its sidecar. The effects after this one are carried out only if
    the leader responds that the change is in effect."""

    pod: Ref
    uid: str
    member: str
    address: str | None = None


Effect = (
    Apply
    | Create
    | Delete
    | SetFinalizers
    | RemoveAnnotation
    | SetAnnotation
    | PatchStatus
    | CreateEvent
    | ReloadConfiguration
    | ChangeQuorumMembers
)


@dataclass(frozen=True, slots=True)
class ReconciliationResult:
    """The result of one reconciliation. `requeue_after_s`: reconcile again after this many seconds even if no
    change is observed."""

    effects: tuple[Effect, ...] = ()
    requeue_after_s: float = field(default=30.0)

    @property
    def writes(self) -> bool:
        """Whether the result writes anything to the API server."""
        return bool(self.effects)
