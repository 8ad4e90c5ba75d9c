"""A cache of objects whose watch the test plays."""

from __future__ import annotations

import asyncio
from typing import Any

from epochmq_operator.kube.api import ApiError, WatchEvent


def pod(name: str, version: int, uid: str = "u", **more: Any) -> dict[str, Any]:
    """A pod of namespace `a`."""
    meta = {"name": name, "namespace": "a", "uid": uid, "resourceVersion": str(version), "managedFields": [1]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, **more}


class Watching:
    """An API server with a sequence of lists, each followed by watch events."""

    def __init__(self, *turns: tuple[list[dict[str, Any]], list[WatchEvent | ApiError]]) -> None:
        self.turns = list(turns)
        self.idle = asyncio.Event()
        self._events: list[WatchEvent | ApiError] = []

    async def list(self, kind: str, namespace: str | None, selector: str) -> tuple[list[Any], str]:
        items, self._events = self.turns.pop(0)
        return items, "10"

    async def watch(self, kind: str, namespace: str | None, selector: str, since: str) -> Any:
        while self._events:
            event = self._events.pop(0)
            if isinstance(event, ApiError):
                raise event
            yield event
        self.idle.set()
        await asyncio.Event().wait()
