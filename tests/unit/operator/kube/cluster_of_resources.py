"""An API server over HTTP that serves BrokerGroups and ControllerGroups, of which a test ends the watches."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes.client import Configuration

from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.resources import API_VERSION
from tests.unit.operator.kube.running_reconcilers import until

KINDS = {"brokergroups": "BrokerGroup", "controllergroups": "ControllerGroup"}
GROUP, _, VERSION = API_VERSION.partition("/")


class ClusterOfResources:
    """The API server. `watches` are the running watches, each with its path; `forbidden` are namespaces whose
    requests it rejects."""

    def __init__(self) -> None:
        self.watches: list[tuple[str, asyncio.Queue[dict[str, Any]]]] = []
        self.started: list[str] = []
        self.items: list[dict[str, Any]] = []
        self.forbidden: set[str] = set()
        self._version = 5

    def running(self, plural: str) -> int:
        """The number of running watches of a kind."""
        return sum(1 for path, _ in self.watches if path.endswith(f"/{plural}"))

    def send(self, plural: str, event: dict[str, Any]) -> None:
        """Sends an event to all watches of a kind."""
        for path, queue in self.watches:
            if path.endswith(f"/{plural}"):
                queue.put_nowait(event)

    def fail(self, plural: str, code: int = 500) -> None:
        """Ends the watches of a kind with an error."""
        self.send(plural, {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "etcd"}})

    def create(self, name: str, namespace: str = "shop") -> None:
        """Creates a BrokerGroup."""
        self._version += 1
        meta = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": str(self._version)}
        group = {"apiVersion": API_VERSION, "kind": "BrokerGroup", "metadata": meta, "spec": {}}
        self.items.append(group)
        for path, queue in self.watches:
            if path.endswith(f"/namespaces/{namespace}/brokergroups"):
                queue.put_nowait({"type": "ADDED", "object": group})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The response to a request."""
        parts = request.path.strip("/").split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
        if namespace in self.forbidden:
            return web.json_response({"kind": "Status", "code": 403, "message": "forbidden"}, status=403)
        known = _discovery(request.path)
        if known is not None:
            return web.json_response(known)
        if request.query.get("watch"):
            return await self._watch(request)
        items = [one for one in self.items if parts[-1] == "brokergroups" and _in(one, namespace)]
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        entry: tuple[str, asyncio.Queue[dict[str, Any]]] = (request.path, asyncio.Queue())
        self.watches.append(entry)
        self.started.append(request.path)
        try:
            while True:
                event = await entry[1].get()
                await response.write(json.dumps(event).encode() + b"\n")
                if event["type"] == "ERROR":
                    return response
        finally:
            self.watches.remove(entry)


def _in(item: dict[str, Any], namespace: str) -> bool:
    return namespace in ("", item["metadata"]["namespace"])


def _discovery(path: str) -> dict[str, Any] | None:
    if path == f"/apis/{API_VERSION}":
        return {"resources": [_resource(plural, kind) for plural, kind in KINDS.items()]}
    if path == "/apis":
        version = {"groupVersion": API_VERSION, "version": VERSION}
        return {"groups": [{"name": GROUP, "versions": [version], "preferredVersion": version}]}
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/api/v1":
        return {"resources": [_resource("namespaces", "Namespace"), _resource("events", "Event")]}
    return None


def _resource(plural: str, kind: str) -> dict[str, Any]:
    verbs = ["get", "list", "watch", "patch", "create"]
    return {
        "name": plural,
        "singularName": kind.lower(),
        "namespaced": kind != "Namespace",
        "kind": kind,
        "verbs": verbs,
    }


@asynccontextmanager
async def served(cluster: ClusterOfResources, host: str) -> AsyncIterator[ClusterConnection]:
    """Serves the cluster; yields a connection to it. At the end it waits for the threads of kopf: they end a
    while after their owner, and may connect until then."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", cluster.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0).start()
        configuration = Configuration()
        configuration.host = f"http://{host}:{runner.addresses[0][1]}"
        yield ClusterConnection(configuration.host, "ops", configuration)
    finally:
        await until(lambda: all(thread.name != "kopf" for thread in threading.enumerate()))
        await runner.cleanup()
