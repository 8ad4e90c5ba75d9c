"""What a pass asks the driver to do. Each may be done twice without harm, or done by an operator that was
killed before it could note it."""

# pure: plain data.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from epochmq_operator.plans.objects import Manifest, Ref


class EventType(StrEnum):
    """Kubernetes' two types of Event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of this object, under the operator's name as field manager."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes this very object: one of the same name that came after it has another uid and stays."""

    ref: Ref
    uid: str


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """The resource's own finalizers, all of them, if it is still the version that was looked at."""

    finalizers: tuple[str, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """The resource's status, whole: what the old one has besides goes."""

    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Emit:
    """An Event about the resource. `key` says which happening it tells of: the Event's name follows from it,
    so that one happening makes one Event, however often it is told."""

    type: EventType
    reason: str
    message: str
    key: str


Effect = Apply | Delete | SetFinalizers | PatchStatus | Emit


@dataclass(frozen=True, slots=True)
class ReconciliationResult:
    """The outcome of one look at a resource. `again_s`: look again after so many seconds although nothing
    was heard meanwhile."""

    effects: tuple[Effect, ...] = ()
    requeue_after_s: float = field(default=30.0)

    @property
    def writes(self) -> bool:
        """Whether the API server would hear anything of it."""
        return bool(self.effects)
