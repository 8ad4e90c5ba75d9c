"""Reads Kubernetes objects, which are plain data as the API server sends and accepts them."""

# pure: names, owners and digests of data.

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochmq_operator.resources import API_VERSION

Manifest = Mapping[str, Any]
"""A whole object: apiVersion, kind, metadata, and the fields of its kind."""

APPLIED = "epochmq.io/applied"
"""The annotation with the digest of the manifest that the operator last applied. Comparing fields alone would
not find a field that the operator no longer sets."""
PAUSED = "epochmq.io/paused"
"""The annotation that pauses a group, like `spec.paused`."""
CONFIRM_DELETION = "epochmq.io/confirm-deletion"
"""The annotation that confirms the deletion of a guarded group; its value is the group's name."""
APPROVE_UPDATE = "epochmq.io/approve-update"
"""The annotation that starts an update which waits for a person; its value names the update."""
FORCE_SCALE_DOWN = "epochmq.io/force-scale-down"
"""The annotation that removes one replica although others are not ready or not in sync; its value names the
replica and the generation of the resource."""
REPLACE_REPLICA = "epochmq.io/replace-replica"
"""The annotation that gives a lost replica a new volume; its value names the replica and the uid of its
volume claim. The operator removes it when the order is carried out or refused."""
FINALIZER = "epochmq.io/deletion-guard"
"""The deletion guard: the finalizer that keeps a group until its deletion is confirmed and its steps are
done. Groups without the guard have no finalizer: they can be deleted while no operator runs."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """A reference to an object. The name of a kind is unique among the kinds that the operator handles."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The resource that owns objects, as their ownerReferences name it."""

    kind: str
    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """The entry for metadata.ownerReferences: the garbage collector deletes the object after its
        owner."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def metadata(manifest: Manifest) -> Mapping[str, Any]:
    """The object's metadata; empty if it has none."""
    found = manifest.get("metadata")
    return found if isinstance(found, Mapping) else {}


def spec_of(manifest: Manifest) -> Mapping[str, Any]:
    """The object's spec; empty if it has none, or one of another shape."""
    found = manifest.get("spec")
    return found if isinstance(found, Mapping) else {}


def status_of(manifest: Manifest) -> Mapping[str, Any]:
    """The object's status; empty if it has none, or one of another shape."""
    found = manifest.get("status")
    return found if isinstance(found, Mapping) else {}


def controller_group_of(group: Manifest) -> str:
    """The name of a broker group's ControllerGroup: the one that its spec names, else its own name."""
    named = spec_of(group).get("controllerGroup")
    return named if isinstance(named, str) and named else str(metadata(group).get("name", ""))


def ref_of(manifest: Manifest) -> Ref:
    """The reference to an object."""
    meta = metadata(manifest)
    return Ref(str(manifest.get("kind", "")), str(meta.get("namespace", "")), str(meta.get("name", "")))


def annotation(manifest: Manifest, key: str) -> str | None:
    """The value of an annotation, None without it."""
    found = (metadata(manifest).get("annotations") or {}).get(key)
    return found if isinstance(found, str) else None


def is_deleting(manifest: Manifest) -> bool:
    """Whether the object is being deleted."""
    return metadata(manifest).get("deletionTimestamp") is not None


def owner_of(manifest: Manifest) -> Owner | None:
    """The owner that controls the object, None without one."""
    for reference in metadata(manifest).get("ownerReferences") or ():
        if reference.get("controller"):
            return Owner(reference.get("kind", ""), reference.get("name", ""), reference.get("uid", ""))
    return None


def digest(value: object) -> str:
    """A digest of a JSON value in 16 hexadecimal digits; equal values have equal digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_owner(manifest: Manifest, owner: Owner) -> dict[str, Any]:
    """The manifest as the operator applies it: with the owner reference and the annotation `APPLIED`."""
    meta = dict(metadata(manifest))
    meta["ownerReferences"] = [owner.reference()]
    applied = digest({**manifest, "metadata": meta})
    meta["annotations"] = {**(meta.get("annotations") or {}), APPLIED: applied}
    return {**manifest, "metadata": meta}
