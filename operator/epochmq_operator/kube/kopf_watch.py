"""Watches groups, audits, backups, topics and users by kopf, on a thread of its own.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import kopf
import structlog

from epochmq_operator.kube.api import Api, ApiError, collection_path
from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.kube.object_cache import ObjectCache, has_gone_back
from epochmq_operator.kube.watch_states import Watched, WatchStates
from epochmq_operator.resources import API_VERSION, KINDS
from epochmq_operator.resources.audit import AUDIT_KIND
from epochmq_operator.resources.backup import BACKUP_KIND
from epochmq_operator.resources.entities import ENTITY_KINDS
from epochmq_protocol.errors import EpochMQError

WATCHED_KINDS = (*KINDS, AUDIT_KIND, BACKUP_KIND, *ENTITY_KINDS)
LOOK_AGAIN_S = 5.0
"""The time between two requests for the kinds that are defined."""
PROBE_S = 15.0
"""The time between two attempts to list what could not be listed."""
FAILED_AGAIN_S = 1.0
CANCELLATIONS, CANCELLED_WITHIN_S = 5, 2.0
"""A task of kopf may catch a cancellation, so it is cancelled several times."""
STOPPED_WITHIN_S = 30.0
"""kopf ends its watches within seconds."""

RESTARTS_MAX, RESTARTS_WITHIN_S = 5, 600.0
"""kopf is started again so many times within this time."""
RESTART_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchedScope:
    """Kinds that are watched in namespaces; without any, in all."""

    kinds: frozenset[str]
    namespaces: tuple[str, ...] = ()

    def watches(self) -> Iterator[Watched]:
        """Each kind in each namespace."""
        for namespace in self.namespaces or (None,):
            for kind in sorted(self.kinds):
                yield kind, namespace


WatchScope = Callable[[WatchedScope, threading.Event, asyncio.AbstractEventLoop], None]
"""Watches a scope, on the thread that calls it, until the event is set. The cache belongs to the event
loop."""

log = structlog.get_logger()


class WatchEndedError(EpochMQError):
    """Nothing watches groups any more."""


class ResourceWatch:
    """Watches the resources of those `wanted` kinds that are defined in the cluster, in those namespaces that
    can be read. Before each start all resources are listed: kopf reports no deletion that it missed, and a
    kind that cannot be listed in a namespace would end kopf for all."""

    def __init__(
        self,
        api: Api,
        cache: ObjectCache,
        states: WatchStates,
        watch: WatchScope,
        wanted: frozenset[str] = frozenset(WATCHED_KINDS),
        namespaces: Sequence[str] = (),
    ) -> None:
        self._api = api
        self._cache = cache
        self._states = states
        self._watch = watch
        self._wanted = wanted
        self._namespaces = tuple(namespaces)
        self._versions: dict[Watched, str] = {}
        """The version of each last list."""
        for kind, namespace in WatchedScope(wanted, self._namespaces).watches():
            states.expect(kind, namespace)

    async def run(self) -> None:
        """Watches until cancelled. Definitions may be installed, deleted and installed again at any time.
        WatchEndedError when kopf has ended more than `RESTARTS_MAX` times within `RESTARTS_WITHIN_S`."""
        ends_s: deque[float] = deque(maxlen=RESTARTS_MAX)
        while True:
            kinds = await _defined_kinds(self._api, self._wanted)
            if kinds != self._wanted:
                log.warning(
                    "definitions are not installed, waiting for them", kinds=sorted(self._wanted - kinds)
                )
            for kind, namespace in WatchedScope(self._wanted - kinds, self._namespaces).watches():
                self._states.forget(kind, namespace)
            readable = await self._list(WatchedScope(kinds, self._namespaces))
            try:
                await self._watch_while_same(kinds, readable)
            except WatchEndedError as error:
                now_s = time.monotonic()
                if len(ends_s) == RESTARTS_MAX and now_s - ends_s[0] < RESTARTS_WITHIN_S:
                    raise
                ends_s.append(now_s)
                log.warning("starting kopf again", error=str(error), ends=len(ends_s))
                await asyncio.sleep(RESTART_AFTER_S)

    async def _list(self, scope: WatchedScope) -> frozenset[Watched]:
        """Lists all resources into the cache; returns what could be listed."""
        readable = set()
        for kind, namespace in scope.watches():
            self._states.begin(kind, namespace)
            try:
                items, version = await self._api.list(kind, namespace, "")
            except ApiError as error:
                self._states.failed(kind, namespace, error.status, str(error))
                log.warning("cannot list resources", kind=kind, namespace=namespace, error=str(error))
                continue
            restored = has_gone_back(self._versions.get((kind, namespace), ""), version)
            self._versions[kind, namespace] = version
            self._cache.replace(kind, namespace, items, restored=restored)
            self._states.listed(kind, namespace)
            readable.add((kind, namespace))
        return frozenset(readable)

    async def _watch_while_same(self, kinds: frozenset[str], readable: frozenset[Watched]) -> None:
        """Watches until other kinds are defined, or what could not be read can be."""
        threads = [KopfThread(scope, self._watch, self._states) for scope in _scopes(readable)]
        unreadable = [one for one in WatchedScope(kinds, self._namespaces).watches() if one not in readable]
        ended = asyncio.Event()
        for thread in threads:
            thread.start(ended)
        probed_s = time.monotonic()
        try:
            while not ended.is_set() and await _defined_kinds(self._api, self._wanted) == kinds:
                if unreadable and time.monotonic() - probed_s >= PROBE_S:
                    probed_s = time.monotonic()
                    if await self._can_read_one_of(unreadable):
                        break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await ended.wait()
        finally:
            for thread in threads:
                thread.stop.set()
        faults = [one.fault for one in threads if one.ended.is_set()]
        async with asyncio.timeout(STOPPED_WITHIN_S):
            for thread in threads:
                await thread.ended.wait()
        if faults:
            raise WatchEndedError(f"kopf ended unexpectedly: {'; '.join(faults)}")

    async def _can_read_one_of(self, unreadable: Sequence[Watched]) -> bool:
        for kind, namespace in unreadable:
            try:
                await self._api.list(kind, namespace, "")
            except ApiError as error:
                self._states.failed(kind, namespace, error.status, str(error))
            else:
                return True
        return False


def _scopes(readable: frozenset[Watched]) -> list[WatchedScope]:
    """What kopf is started for: it watches each kind in each namespace. Normally this is one scope."""
    kinds_of: dict[str | None, set[str]] = {}
    for kind, namespace in readable:
        kinds_of.setdefault(namespace, set()).add(kind)
    namespaces_of: dict[frozenset[str], list[str]] = {}
    for namespace, kinds in kinds_of.items():
        namespaces_of.setdefault(frozenset(kinds), []).extend([] if namespace is None else [namespace])
    return [WatchedScope(kinds, tuple(sorted(found))) for kinds, found in namespaces_of.items()]


class KopfThread:
    """kopf on a thread of its own: on ours it would handle the signals, and cancel tasks that it did not
    start. `ended` is set when it has ended, for the reason `fault`."""

    def __init__(self, scope: WatchedScope, watch: WatchScope, states: WatchStates) -> None:
        self.stop = threading.Event()
        self.ended = asyncio.Event()
        self.fault = "without an error"
        self._scope = scope
        self._watch = watch
        self._states = states

    def start(self, ended: asyncio.Event) -> None:
        """Starts the thread; sets `ended`, too, when it ends."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                self._watch(self._scope, self.stop, loop)
            except Exception as error:
                self.fault = f"{type(error).__name__}: {error}"[:500]
            finally:
                with contextlib.suppress(RuntimeError):  # our loop may be closed by now
                    loop.call_soon_threadsafe(self._note_end, ended)

        threading.Thread(target=run, name="kopf", daemon=True).start()

    def _note_end(self, ended: asyncio.Event) -> None:
        if not self.stop.is_set():
            log.error("kopf ended", error=self.fault)
        for kind, namespace in self._scope.watches():
            self._states.failed(kind, namespace, 0, f"kopf ended: {self.fault}")
        self.ended.set()
        ended.set()


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


def kopf_watch(cache: ObjectCache, connection: ClusterConnection, states: WatchStates) -> WatchScope:
    """A function that watches a scope by kopf."""

    def watch(scope: WatchedScope, stop: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        sessions: list[kopf.AiohttpSession] = []
        paths = {collection_path(*watched): watched for watched in scope.watches()}

        def note(path: str, status: int, reason: str) -> None:
            watched = paths.get(path)
            if watched is None or stop.is_set():
                return
            with contextlib.suppress(RuntimeError):  # our loop may be closed by now
                if 0 < status < 400:
                    loop.call_soon_threadsafe(states.heard, *watched)
                else:
                    loop.call_soon_threadsafe(states.failed, *watched, status, reason)

        def connect() -> kopf.AiohttpSession:
            session = connection.session(note)
            sessions.append(kopf.AiohttpSession(server=connection.server, aiohttp_session=session))
            return sessions[-1]

        registry = _registry(scope.kinds, cache, loop, connect)
        own_loop = asyncio.new_event_loop()
        try:
            own_loop.run_until_complete(_operate(registry, scope.namespaces, stop, sessions))
        finally:
            own_loop.close()

    return watch


async def _operate(
    registry: kopf.OperatorRegistry,
    namespaces: tuple[str, ...],
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
    loop: asyncio.AbstractEventLoop,
    connect: Callable[[], kopf.AiohttpSession],
) -> kopf.OperatorRegistry:
    """The handlers; `loop` is the cache's event loop."""
    registry = kopf.OperatorRegistry()
    group, _, version = API_VERSION.partition("/")

    async def on_event(type: str | None, body: kopf.Body, **_: Any) -> None:
        loop.call_soon_threadsafe(cache.drop if type == "DELETED" else cache.put, dict(body))

    for kind in sorted(kinds):
        kopf.on.event(group, version, f"{kind.lower()}s", registry=registry)(on_event)

    async def login(**_: Any) -> kopf.AiohttpSession:
        return connect()

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
