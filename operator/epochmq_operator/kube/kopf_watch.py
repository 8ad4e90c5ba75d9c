"""Watches groups and audits by kopf, on a thread of its own.

Every event of a resource goes into the cache, which wakes the resource's worker. Event handlers alone make
kopf write nothing to a resource: no annotations, no finalizers, no progress."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import kopf

from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.resources import API_VERSION, KINDS
from epochmq_operator.resources.audit import AUDIT_KIND
from epochmq_protocol.errors import EpochMQError


class WatchEndedError(EpochMQError):
    """Nothing watches groups any more."""


async def watch_resources(namespaces: list[str], cache: ObjectCache, connection: ClusterConnection) -> None:
    """Watches the resources of these namespaces, all if there are none, until cancelled. WatchEndedError when
    kopf ends.

    kopf runs on a thread of its own: on ours it would handle the signals, and cancel tasks that it did not
    start."""
    loop, stop, ended = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

    def run_kopf() -> None:
        try:
            asyncio.run(
                kopf.operator(
                    registry=_registry(cache, connection, loop),
                    settings=_settings(),
                    standalone=True,
                    clusterwide=not namespaces,
                    namespaces=namespaces,
                    stop_flag=stop,
                )
            )
        finally:
            with contextlib.suppress(RuntimeError):  # our loop may be closed by now
                loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run_kopf, name="kopf", daemon=True).start()
    try:
        await ended.wait()
    finally:
        stop.set()
    raise WatchEndedError("kopf ended unexpectedly")


def _registry(
    cache: ObjectCache, connection: ClusterConnection, loop: asyncio.AbstractEventLoop
) -> kopf.OperatorRegistry:
    """The handlers; `loop` is the cache's event loop."""
    registry = kopf.OperatorRegistry()
    group, _, version = API_VERSION.partition("/")

    async def on_event(type: str | None, body: kopf.Body, **_: Any) -> None:
        loop.call_soon_threadsafe(cache.drop if type == "DELETED" else cache.put, dict(body))

    for kind in (*KINDS, AUDIT_KIND):
        kopf.on.event(group, version, f"{kind.lower()}s", registry=registry)(on_event)

    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=connection.session())

    kopf.on.login(registry=registry)(login)
    return registry


def _settings() -> kopf.OperatorSettings:
    """Restricts kopf to watching: it posts no Events, elects no leader, and scans for no other resources."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.peering.standalone = True
    made.scanning.disabled = True
    made.watching.server_timeout = 300
    made.persistence.progress_storage = kopf.StatusProgressStorage()
    return made
