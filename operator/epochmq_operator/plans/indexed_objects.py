"""Keeps the objects of a namespace by kind, owner, resource and StatefulSet, so that a reconciliation looks
at the objects of its own group and not at those of all groups."""

# pure: a data structure.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from epochmq_operator.manifests.names import COMPONENT_LABEL, GROUP_LABEL, KIND_LABEL, RESTORE
from epochmq_operator.plans.objects import Manifest, Ref, metadata, owner_of

ORDINAL = re.compile(r"-(0|[1-9][0-9]{0,5})\Z")
Key = tuple[str, str, str]
NOTHING: Mapping[Ref, Manifest] = {}


def split_ordinal(name: str) -> tuple[str, int | None]:
    """A name without its ordinal, and the ordinal; None if it has none."""
    found = ORDINAL.search(name)
    return (name, None) if found is None else (name[: found.start()], int(found[1]))


class IndexedObjects(Mapping[Ref, Manifest]):
    """Objects by name. The functions of this module find some of them without looking at the others."""

    def __init__(self) -> None:
        self._objects: dict[Ref, dict[str, Any]] = {}
        self._index: dict[Key, dict[Ref, dict[str, Any]]] = {}

    def __getitem__(self, ref: Ref) -> dict[str, Any]:
        return self._objects[ref]

    def __iter__(self) -> Iterator[Ref]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, ref: Ref, found: dict[str, Any]) -> None:
        """Stores an object."""
        self.remove(ref)
        self._objects[ref] = found
        for key in _keys(ref, found):
            self._index.setdefault(key, {})[ref] = found

    def remove(self, ref: Ref) -> None:
        """Removes an object, if it is there."""
        known = self._objects.pop(ref, None)
        for key in _keys(ref, known) if known is not None else ():
            entries = self._index[key]
            del entries[ref]
            if not entries:
                del self._index[key]

    def under(self, key: Key) -> Mapping[Ref, Manifest]:
        """The objects under a key of the index."""
        return self._index.get(key, NOTHING)


def _keys(ref: Ref, found: Manifest) -> Iterator[Key]:
    yield "kind", ref.kind, ""
    stem, ordinal = split_ordinal(ref.name)
    if ordinal is not None:
        yield "stem", ref.kind, stem
    owner = owner_of(found)
    if owner is not None:
        yield "owner", ref.kind, owner.uid
    labels = metadata(found).get("labels") or {}
    kind, group = labels.get(KIND_LABEL), labels.get(GROUP_LABEL)
    if kind and group:
        yield f"resource {ref.kind}", str(kind), str(group)


def _found(objects: Mapping[Ref, Manifest], kind: str, key: Key) -> Mapping[Ref, Manifest]:
    if isinstance(objects, IndexedObjects):
        return objects.under(key)
    return {ref: one for ref, one in objects.items() if ref.kind == kind and key in _keys(ref, one)}


def of_kind(objects: Mapping[Ref, Manifest], kind: str) -> Mapping[Ref, Manifest]:
    """The objects of a kind."""
    return _found(objects, kind, ("kind", kind, ""))


def with_ordinals(objects: Mapping[Ref, Manifest], kind: str, stem: str) -> Mapping[Ref, Manifest]:
    """The objects of a kind whose name is this one with an ordinal."""
    return _found(objects, kind, ("stem", kind, stem))


def of_owner(objects: Mapping[Ref, Manifest], kind: str, uid: str) -> Mapping[Ref, Manifest]:
    """The objects of a kind with this owner."""
    return _found(objects, kind, ("owner", kind, uid))


def of_resource(objects: Mapping[Ref, Manifest], kind: str, resource: Ref) -> Mapping[Ref, Manifest]:
    """The objects of a kind that belong to a resource by their labels."""
    return _found(objects, kind, (f"resource {kind}", resource.kind, resource.name))


def members_of(objects: Mapping[Ref, Manifest], resource: Ref) -> list[Manifest]:
    """The pods of brokers, controllers and nameservers that belong to a resource by their labels; not those
    that restore its volumes."""
    found = of_resource(objects, "Pod", resource).values()
    return [pod for pod in found if (metadata(pod).get("labels") or {}).get(COMPONENT_LABEL) != RESTORE]
