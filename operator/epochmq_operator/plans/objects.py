"""Kubernetes objects as the API server gives and takes them: plain data, and a few ways to look at it."""

# pure: names, owners and digests of data.

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochmq_operator.resources import API_VERSION

Manifest = Mapping[str, Any]
"""A whole object: apiVersion, kind, metadata, and what its kind has besides."""

APPLIED = "epochmq.io/applied"
"""The annotation that holds the digest of what the operator last applied: a field that the operator no longer
wants is missing from what it wants, so comparing fields alone would leave it standing."""
PAUSED = "epochmq.io/paused"
"""The annotation that pauses a group, as `spec.paused` does."""
CONFIRM_DELETION = "epochmq.io/confirm-deletion"
"""The annotation that lets a guarded group be deleted; its value is the group's name."""
FINALIZER = "epochmq.io/deletion-guard"
"""What holds a guarded group until its deletion was confirmed and has gone its way. Groups without the guard
have no finalizer: they can be deleted while no operator runs."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Which object: a kind's name is unique among those that the operator handles."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The resource that objects belong to, as their ownerReferences name it."""

    kind: str
    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """For metadata.ownerReferences: the object goes when its owner has gone."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def metadata(manifest: Manifest) -> Mapping[str, Any]:
    """Its metadata; empty if it has none."""
    found = manifest.get("metadata")
    return found if isinstance(found, Mapping) else {}


def ref_of(manifest: Manifest) -> Ref:
    """Which object this is."""
    meta = metadata(manifest)
    return Ref(str(manifest.get("kind", "")), str(meta.get("namespace", "")), str(meta.get("name", "")))


def annotation(manifest: Manifest, key: str) -> str | None:
    """An annotation's value, None without it."""
    found = (metadata(manifest).get("annotations") or {}).get(key)
    return found if isinstance(found, str) else None


def is_deleting(manifest: Manifest) -> bool:
    """Whether it is on its way out."""
    return metadata(manifest).get("deletionTimestamp") is not None


def owner_of(manifest: Manifest) -> Owner | None:
    """The one that controls it, None when it belongs to nobody."""
    for reference in metadata(manifest).get("ownerReferences") or ():
        if reference.get("controller"):
            return Owner(reference.get("kind", ""), reference.get("name", ""), reference.get("uid", ""))
    return None


def digest(value: object) -> str:
    """16 hexadecimal digits that stand for a value of JSON; equal for equal values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_owner(manifest: Manifest, owner: Owner) -> dict[str, Any]:
    """The manifest as it is applied: it belongs to its owner and says what was applied."""
    meta = dict(metadata(manifest))
    meta["ownerReferences"] = [owner.reference()]
    mark = digest({**manifest, "metadata": meta})
    meta["annotations"] = {**(meta.get("annotations") or {}), APPLIED: mark}
    return {**manifest, "metadata": meta}
