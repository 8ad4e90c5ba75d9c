"""What kopf hears, and how little is done about it: every event of a resource goes into the cache, whose
listener wakes the caretaker. Event handlers alone make kopf write nothing to a resource: no annotations, no
finalizers, no progress."""

from __future__ import annotations

import asyncio
from typing import Any

import kopf

from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.resources import API_VERSION, KINDS
from epochmq_operator.resources.audit import AUDIT_KIND


def registry_for(
    cache: ObjectCache, connection: ClusterConnection, loop: asyncio.AbstractEventLoop
) -> kopf.OperatorRegistry:
    """The handlers; `loop` is the cache's own."""
    registry = kopf.OperatorRegistry()
    group, _, version = API_VERSION.partition("/")

    async def heard(type: str | None, body: kopf.Body, **_: Any) -> None:
        loop.call_soon_threadsafe(cache.drop if type == "DELETED" else cache.put, dict(body))

    for kind in (*KINDS, AUDIT_KIND):
        kopf.on.event(group, version, f"{kind.lower()}s", registry=registry)(heard)

    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=connection.session())

    kopf.on.login(registry=registry)(login)
    return registry


def settings() -> kopf.OperatorSettings:
    """kopf keeps to watching: it posts nothing, elects nobody, and does not look for other resources."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.peering.standalone = True
    made.scanning.disabled = True
    made.watching.server_timeout = 300
    made.persistence.progress_storage = kopf.StatusProgressStorage()
    return made
