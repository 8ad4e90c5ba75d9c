"""Watches groups, audits, topics and users by kopf, on a thread of its own.

Every event of a resource goes into the cache, which wakes the resource's worker. Event handlers alone make
kopf write nothing to a resource: no annotations, no finalizers, no progress.

kopf looks for the kinds once, when it starts, because to watch their definitions it would need rights in the
whole cluster. So it is started again when other kinds are defined.

kopf ends for good when a watch reports an error that is not 410, and when the API server rejects its requests
for about a minute. It is started again then, and lists all resources again. If it ends too often, the process
ends: a new one starts with nothing that may be the cause."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import kopf
import structlog

from epochmq_operator.kube.api import Api, ApiError
from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.resources import API_VERSION, KINDS
from epochmq_operator.resources.audit import AUDIT_KIND
from epochmq_operator.resources.entities import ENTITY_KINDS
from epochmq_protocol.errors import EpochMQError

WATCHED_KINDS = (*KINDS, AUDIT_KIND, *ENTITY_KINDS)
LOOK_AGAIN_S = 5.0
"""The time between two requests for the kinds that are defined."""
FAILED_AGAIN_S = 1.0
CANCELLATIONS, CANCELLED_WITHIN_S = 5, 2.0
"""A task of kopf may catch a cancellation, so it is cancelled several times."""
STOPPED_WITHIN_S = 30.0
"""kopf ends its watches within seconds."""

RESTARTS_MAX, RESTARTS_WITHIN_S = 5, 600.0
"""kopf is started again so many times within this time."""
RESTART_AFTER_S = 1.0

WatchKinds = Callable[[frozenset[str], threading.Event, asyncio.AbstractEventLoop], None]
"""Watches kinds, on the thread that calls it, until the event is set. The cache belongs to the event loop."""

log = structlog.get_logger()


class WatchEndedError(EpochMQError):
    """Nothing watches groups any more."""


async def watch_resources(
    api: Api,
    watch: WatchKinds,
    wanted: frozenset[str] = frozenset(WATCHED_KINDS),
    *,
    look_again_s: float = LOOK_AGAIN_S,
    wait_s: float = STOPPED_WITHIN_S,
) -> None:
    """Watches the resources of those `wanted` kinds that are defined in the cluster, until cancelled.
    Definitions may be installed, deleted and installed again at any time. WatchEndedError when kopf has ended
    more than `RESTARTS_MAX` times within `RESTARTS_WITHIN_S`."""
    ends_s: deque[float] = deque(maxlen=RESTARTS_MAX)
    while True:
        kinds = await _defined_kinds(api, wanted)
        if kinds != wanted:
            log.warning("definitions are not installed, waiting for them", kinds=sorted(wanted - kinds))
        try:
            await _watch_while_defined(api, kinds, wanted, watch, look_again_s, wait_s)
        except WatchEndedError as error:
            now_s = time.monotonic()
            if len(ends_s) == RESTARTS_MAX and now_s - ends_s[0] < RESTARTS_WITHIN_S:
                raise
            ends_s.append(now_s)
            log.warning("starting kopf again", error=str(error), ends=len(ends_s))
            await asyncio.sleep(RESTART_AFTER_S)


async def _watch_while_defined(
    api: Api,
    kinds: frozenset[str],
    wanted: frozenset[str],
    watch: WatchKinds,
    look_again_s: float,
    wait_s: float,
) -> None:
    """Watches these kinds until others of the `wanted` kinds are defined.

    kopf runs on a thread of its own: on ours it would handle the signals, and cancel tasks that it did not
    start."""
    loop, stop, ended = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
    faults: list[str] = []

    def run() -> None:
        try:
            watch(kinds, stop, loop)
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}"[:500])
        finally:
            with contextlib.suppress(RuntimeError):  # our loop may be closed by now
                loop.call_soon_threadsafe(ended.set)

    if kinds:
        threading.Thread(target=run, name="kopf", daemon=True).start()
    try:
        while not ended.is_set() and await _defined_kinds(api, wanted) == kinds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look_again_s):
                    await ended.wait()
    finally:
        stop.set()
    if ended.is_set():
        raise WatchEndedError(f"kopf ended unexpectedly: {'; '.join(faults) or 'without an error'}")
    if kinds:
        async with asyncio.timeout(wait_s):
            await ended.wait()


async def _defined_kinds(api: Api, wanted: frozenset[str]) -> frozenset[str]:
    """The `wanted` kinds that the API server knows."""
    while True:
        try:
            found = await api.get(f"/apis/{API_VERSION}")
        except ApiError as error:
            if error.status == 404:
                return frozenset()
            log.warning("cannot list the kinds of the API group", error=str(error))
            await asyncio.sleep(FAILED_AGAIN_S)
            continue
        kinds = {one.get("kind") for one in found.get("resources") or () if "/" not in one.get("name", "")}
        return wanted & kinds


def kopf_watch(namespaces: list[str], cache: ObjectCache, connection: ClusterConnection) -> WatchKinds:
    """A function that watches kinds in these namespaces, in all if there are none, by kopf."""

    def watch(kinds: frozenset[str], stop: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        sessions: list[kopf.AiohttpSession] = []
        registry = _registry(kinds, cache, connection, loop, sessions)
        own_loop = asyncio.new_event_loop()
        try:
            own_loop.run_until_complete(_operate(registry, namespaces, stop, sessions))
        finally:
            own_loop.close()

    return watch


async def _operate(
    registry: kopf.OperatorRegistry,
    namespaces: list[str],
    stop: threading.Event,
    sessions: list[kopf.AiohttpSession],
) -> None:
    """Runs kopf until `stop` is set or one of its tasks ends; raises the error of that task. kopf's own end
    may wait without a limit for requests that it repeats, so its tasks are ended here."""
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
    )
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    stop.set()  # kopf waits for it on a thread
    for _ in range(CANCELLATIONS):
        rest = asyncio.all_tasks() - {cast(asyncio.Task[None], asyncio.current_task())}
        if not rest:
            break
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=CANCELLED_WITHIN_S)
    for session in sessions:
        await session.aiohttp_session.close()
    for task in done:
        task.result()


def _registry(
    kinds: frozenset[str],
    cache: ObjectCache,
    connection: ClusterConnection,
    loop: asyncio.AbstractEventLoop,
    sessions: list[kopf.AiohttpSession],
) -> kopf.OperatorRegistry:
    """The handlers; `loop` is the cache's event loop. `sessions` gets the HTTP sessions that kopf uses."""
    registry = kopf.OperatorRegistry()
    group, _, version = API_VERSION.partition("/")

    async def on_event(type: str | None, body: kopf.Body, **_: Any) -> None:
        loop.call_soon_threadsafe(cache.drop if type == "DELETED" else cache.put, dict(body))

    for kind in sorted(kinds):
        kopf.on.event(group, version, f"{kind.lower()}s", registry=registry)(on_event)

    async def login(**_: Any) -> kopf.AiohttpSession:
        sessions.append(kopf.AiohttpSession(server=connection.server, aiohttp_session=connection.session()))
        return sessions[-1]

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
