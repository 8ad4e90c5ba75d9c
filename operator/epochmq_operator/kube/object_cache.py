"""Keeps objects of the API server in memory, filled by lists and watches."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog

from epochmq_operator.kube.api import Api, ApiError, WatchEvent
from epochmq_operator.kube.watch_states import WatchStates
from epochmq_operator.plans.indexed_objects import IndexedObjects, of_kind
from epochmq_operator.plans.objects import Manifest, Ref, metadata, ref_of

BACK_OFF_FIRST_S, BACK_OFF_MAX_S = 0.5, 15.0
DELETIONS_MAX = 4096
"""So many deletions are remembered; a response is late by a request's timeout at most."""
NO_OBJECTS: Mapping[Ref, Manifest] = {}
DROPPED = ("managedFields", "selfLink")

log = structlog.get_logger()


def drop_unused_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """The object without the fields that the operator does not use."""
    meta = {key: value for key, value in metadata(found).items() if key not in DROPPED}
    if found.get("kind") == "Pod":
        spec = found.get("spec") or {}
        used = {
            "nodeName": spec.get("nodeName"),
            "containers": [
                {"name": one.get("name"), "image": one.get("image")} for one in spec.get("containers") or ()
            ],
            "volumes": [one for one in spec.get("volumes") or () if "configMap" in one],
        }
        return {**found, "metadata": meta, "spec": used}
    return {**found, "metadata": meta}


def _version(manifest: Manifest) -> int:
    text = str(metadata(manifest).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


def _uid(manifest: Manifest) -> str:
    return str(metadata(manifest).get("uid", ""))


class ObjectCache:
    """Objects by namespace. `on_change` is called with each object that changed or was deleted."""

    def __init__(self, on_change: Callable[[Manifest], None] = lambda manifest: None) -> None:
        self._objects: dict[str, IndexedObjects] = {}
        self._deletions: OrderedDict[str, int] = OrderedDict()
        """By uid the version of an object's deletion. The response to a write may arrive after the deletion
        that followed the write."""
        self._changes = 0
        self._changed: dict[Ref, int] = {}
        """The number of the last change of each object in the cache."""
        self.on_change = on_change

    def get(self, ref: Ref) -> dict[str, Any] | None:
        """The object, None if it is not in the cache."""
        objects = self._objects.get(ref.namespace)
        return None if objects is None or ref not in objects else objects[ref]

    def namespace(self, name: str) -> Mapping[Ref, Manifest]:
        """All objects of a namespace, as a view."""
        return self._objects.get(name, NO_OBJECTS)

    def all(self, kind: str) -> Iterator[tuple[Ref, Manifest]]:
        """All objects of a kind."""
        for objects in list(self._objects.values()):
            yield from list(of_kind(objects, kind).items())

    def put(self, found: Mapping[str, Any]) -> None:
        """Stores an object, unless the cache has it in the same or a later version or knows that it was
        deleted after this version."""
        ref = ref_of(found)
        if _version(found) <= self._deletions.get(_uid(found), -1):
            return
        known = self.get(ref)
        if known is not None and _uid(known) == _uid(found):
            if _version(found) < _version(known):
                return
            if _version(found) == _version(known) and _version(found):
                return
        self._store(found)

    def _store(self, found: Mapping[str, Any]) -> None:
        ref, made = ref_of(found), drop_unused_fields(found)
        self._objects.setdefault(ref.namespace, IndexedObjects()).put(ref, made)
        self._changes += 1
        self._changed[ref] = self._changes
        self.on_change(made)

    @property
    def changes(self) -> int:
        """The number of changes of the cache until now."""
        return self._changes

    def put_fetched(self, found: Mapping[str, Any], since: int) -> None:
        """Stores an object that a request fetched which began when the cache had made `since` changes. If the
        cache has not changed the object meanwhile, the response counts, even in a smaller version: the API
        server may have been restored from a backup."""
        ref = ref_of(found)
        known = self.get(ref)
        if known is not None and _version(found) < _version(known) and self._changed.get(ref, 0) <= since:
            self._store(found)
        else:
            self.put_existing(found)

    def put_existing(self, found: Mapping[str, Any]) -> None:
        """Stores an object that the API server has just returned. If a watch reported its deletion in this
        very version, it only lost the operator's label in it: deletions have versions of their own."""
        if self._deletions.get(_uid(found)) == _version(found):
            del self._deletions[_uid(found)]
        self.put(found)

    def drop(self, found: Manifest) -> None:
        """Removes a deleted object; a later object of the same name stays, and so does a later version of
        the object: a watch also reports DELETED when an object loses the operator's label, which may return.
        """
        self._remember_deletion(found)
        self._remove(found)

    def _remove(self, found: Manifest) -> None:
        ref = ref_of(found)
        objects = self._objects.get(ref.namespace)
        known = self.get(ref)
        if (
            objects is None
            or known is None
            or _uid(known) != _uid(found)
            or _version(known) > _version(found)
        ):
            return
        objects.remove(ref)
        self._changed.pop(ref, None)
        if not objects:
            del self._objects[ref.namespace]
        self.on_change(known)

    def _remember_deletion(self, found: Manifest) -> None:
        uid = _uid(found)
        self._deletions[uid] = max(_version(found), self._deletions.pop(uid, 0))
        if len(self._deletions) > DELETIONS_MAX:
            self._deletions.popitem(last=False)

    def replace(
        self, kind: str, namespace: str | None, items: list[dict[str, Any]], *, restored: bool = False
    ) -> None:
        """Stores the items of a list, and removes all other objects of the kind. One that was created after
        the list was made comes back with the watch that follows. `restored`: the versions of the API server
        have gone back, so those that the cache knows say nothing any more."""
        if restored:
            self._deletions.clear()
        listed = {ref_of(item) for item in items}
        for ref, known in list(self.all(kind)):
            if ref not in listed and namespace in (None, ref.namespace):
                self._remove(known)
        for item in items:
            if restored:
                self._store(item)
            else:
                self.put(item)


def has_gone_back(before: str, version: str) -> bool:
    """Whether the version of a list is smaller than an earlier one of the same kind. Lists are consistent, so
    the API server was restored from a backup in between."""
    return before.isdigit() and version.isdigit() and int(version) < int(before)


class Informer:
    """Keeps the cache up to date for one kind, in one namespace or in all."""

    def __init__(
        self,
        api: Api,
        cache: ObjectCache,
        kind: str,
        namespace: str | None,
        selector: str,
        states: WatchStates,
    ) -> None:
        self._states = states
        states.expect(kind, namespace)
        self._api = api
        self._cache = cache
        self._kind = kind
        self._namespace = namespace
        self._selector = selector
        self._version = ""
        """The version of the last list or event."""

    async def run(self) -> None:
        """Lists, then watches; starts again when the watch breaks. Runs until cancelled."""
        back_off_s = BACK_OFF_FIRST_S
        while True:
            self._states.begin(self._kind, self._namespace)
            try:
                items, version = await self._api.list(self._kind, self._namespace, self._selector)
                restored = has_gone_back(self._version, version)
                self._version = version
                self._cache.replace(self._kind, self._namespace, items, restored=restored)
                self._states.listed(self._kind, self._namespace)
                back_off_s = BACK_OFF_FIRST_S
                await self._watch()
            except ApiError as fault:
                if fault.status != 410:
                    self._states.failed(self._kind, self._namespace, fault.status, str(fault))
                    log.warning("a watch broke", kind=self._kind, namespace=self._namespace, error=str(fault))
                    await asyncio.sleep(back_off_s)
                    back_off_s = min(back_off_s * 2, BACK_OFF_MAX_S)

    async def _watch(self) -> None:
        while True:
            self._states.begin(self._kind, self._namespace)
            async for event in self._api.watch(self._kind, self._namespace, self._selector, self._version):
                self._version = str(event.object["metadata"]["resourceVersion"])
                self._states.heard(self._kind, self._namespace)
                self._take(event)
            self._states.heard(self._kind, self._namespace)

    def _take(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            return
        if event.type == "DELETED":
            self._cache.drop(event.object)
        else:
            self._cache.put(event.object)
