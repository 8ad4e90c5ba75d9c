"""Simulates an API server for drivers of the operator: objects in memory, without watches."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from epochmq_operator.kube.api import ApiError, object_path
from epochmq_operator.plans.objects import Manifest, Ref, ref_of


class FakeApiServer:
    """An API server. Writes change its objects; `applied` lists the applied ones, `events` the reasons of the
    created Events."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {object_path(ref_of(one)): one for one in objects}
        self.applied: list[Ref] = []
        self.events: list[str] = []
        self._versions = 0
        for one in objects:
            self._store(one)

    def _store(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        self._versions += 1
        stored = copy.deepcopy(dict(manifest))
        stored["metadata"]["resourceVersion"] = str(self._versions)
        stored["metadata"].setdefault("uid", f"uid of {ref_of(stored)}")
        self.objects[object_path(ref_of(stored))] = stored
        return copy.deepcopy(stored)

    async def get(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise ApiError(404, f"{path} is not there")
        return copy.deepcopy(self.objects[path])

    async def apply(self, manifest: Manifest) -> dict[str, Any]:
        self.applied.append(ref_of(manifest))
        return self._store(manifest)

    async def put_status(self, ref: Ref, version: str, status: Mapping[str, Any]) -> dict[str, Any]:
        found = await self.get(object_path(ref))
        if version != found["metadata"]["resourceVersion"]:
            raise ApiError(409, f"{ref} has another version than {version}")
        return self._store({**found, "status": status})

    async def put_finalizers(self, ref: Ref, version: str, finalizers: tuple[str, ...]) -> dict[str, Any]:
        found = await self.get(object_path(ref))
        found["metadata"]["finalizers"] = list(finalizers)
        if found["metadata"].get("deletionTimestamp") and not finalizers:
            del self.objects[object_path(ref)]
            return found
        return self._store(found)

    async def annotate(self, ref: Ref, version: str, key: str, value: str) -> dict[str, Any]:
        found = await self.get(object_path(ref))
        if version != found["metadata"]["resourceVersion"]:
            raise ApiError(409, f"{ref} has another version than {version}")
        found["metadata"].setdefault("annotations", {})[key] = value
        return self._store(found)

    async def remove_annotation(self, ref: Ref, key: str, value: str) -> dict[str, Any] | None:
        found = await self.get(object_path(ref))
        if found["metadata"].get("annotations", {}).get(key) != value:
            return None
        del found["metadata"]["annotations"][key]
        return self._store(found)

    async def create(self, manifest: Manifest) -> dict[str, Any]:
        if ref_of(manifest).kind != "Event":
            if object_path(ref_of(manifest)) in self.objects:
                raise ApiError(409, f"{ref_of(manifest)} exists already")
            return self._store(manifest)
        self.events.append(str(manifest.get("reason")))
        return dict(manifest)

    def put(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """kubectl apply: creates or replaces an object, and returns it as stored."""
        return self._store(manifest)

    def may_write(self) -> None:
        """This operator holds the Lease."""
