"""One caretaker for each resource: it looks when something was heard, or when the last look asked for
another, and does what the plans say. Few of them work at a time."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import structlog

from epochmq_operator.kube.api import Api, ApiError, path_of
from epochmq_operator.kube.cache import Cache
from epochmq_operator.kube.leading import LeadershipLostError
from epochmq_operator.kube.metrics import Metrics
from epochmq_operator.kube.secrets import Credentials, Secrets
from epochmq_operator.kube.sidecars import Sidecars
from epochmq_operator.manifests.names import GROUP, KIND, KINDS_MADE, MANAGED_BY, MANAGER
from epochmq_operator.plans.conditions import at
from epochmq_operator.plans.effects import Apply, Delete, Effect, Emit, Pass, PatchStatus, SetFinalizers
from epochmq_operator.plans.objects import Manifest, Owner, Ref, is_deleting, metadata, ref_of
from epochmq_operator.plans.passes import step
from epochmq_operator.plans.standing import Floor
from epochmq_operator.plans.world import World

RESOURCES = ("BrokerGroup", "ControllerGroup")
ASKED_FIRST = frozenset({"ControllerGroup", *(one.kind for one in KINDS_MADE)})
"""Kinds of which others may have an object of the name that a group wants: the watches are told of those that
bear the operator's label only."""
AGAIN_MAX_S = 15.0
"""However quiet it is, the replicas are asked this often."""
SETTLE_S = 0.1
"""What comes in a burst is looked at once."""
FAILED_FIRST_S, FAILED_MAX_S = 1.0, 60.0
CONFIRMED_FOR_S = 300.0
"""A resource that nothing was heard of for so long is asked for: a watch can miss that it went."""
TOLD_MAX = 4096

log = structlog.get_logger()


class Reconciler:
    """All caretakers. `heard` may be called from anywhere in the event loop."""

    kinds: tuple[str, ...] = RESOURCES

    def __init__(
        self,
        api: Api,
        cache: Cache,
        sidecars: Sidecars,
        secrets: Secrets,
        floor: Floor,
        metrics: Metrics,
        workers: int,
    ) -> None:
        self._api = api
        self._cache = cache
        self._sidecars = sidecars
        self._secrets = secrets
        self._floor = floor
        self._metrics = metrics
        self._free = asyncio.Semaphore(workers)
        self._caretakers: dict[Ref, _Caretaker] = {}
        self._told: OrderedDict[str, None] = OrderedDict()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Works until cancelled, or until the lease is lost."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                for kind in self.kinds:
                    for ref, _ in list(self._cache.all(kind)):
                        self._wake(ref)
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def heard(self, manifest: Manifest) -> None:
        """Something changed: whoever it concerns is looked at soon."""
        ref = ref_of(manifest)
        if ref.kind in self.kinds:
            if ref.kind == "BrokerGroup" and (ref in self._caretakers) != (self._cache.get(ref) is not None):
                # One more or one less that needs its controllers.
                self._wake(Ref("ControllerGroup", ref.namespace, controllers_named(manifest)))
            self._wake(ref)
            if ref.kind == "ControllerGroup":
                for other, found in self._cache.all("BrokerGroup"):
                    if other.namespace == ref.namespace and controllers_named(found) == ref.name:
                        self._wake(other)
            return
        labels = metadata(manifest).get("labels") or {}
        kind, name = labels.get(KIND), labels.get(GROUP)
        if kind in self.kinds and name:
            self._wake(Ref(kind, ref.namespace, name))
            if kind == "ControllerGroup" and ref.kind == "Pod":
                for other, found in self._cache.all("BrokerGroup"):
                    if other.namespace == ref.namespace and controllers_named(found) == name:
                        self._wake(other)

    def _wake(self, ref: Ref) -> None:
        if self._tasks is None:
            return
        caretaker = self._caretakers.get(ref)
        if caretaker is None:
            if self._cache.get(ref) is None:
                return
            caretaker = self._caretakers[ref] = _Caretaker()
            self._tasks.create_task(self._care(ref, caretaker), name=str(ref))
        caretaker.wake.set()

    async def _care(self, ref: Ref, caretaker: _Caretaker) -> None:
        try:
            while self._cache.get(ref) is not None:
                caretaker.wake.clear()
                async with self._free:
                    pause_s = await self._look(ref, caretaker)
                try:
                    async with asyncio.timeout(pause_s):
                        await caretaker.wake.wait()
                    await asyncio.sleep(SETTLE_S)
                except TimeoutError:
                    pass
        finally:
            self._caretakers.pop(ref, None)

    async def _look(self, ref: Ref, caretaker: _Caretaker) -> float:
        """One pass; how long to wait for the next if nothing is heard. Whatever is wrong with one resource is
        told and tried again, and disturbs no other."""
        started = time.monotonic()
        outcome = "idle"
        try:
            if started - caretaker.confirmed_s > CONFIRMED_FOR_S:
                await self._confirm(ref, caretaker)
            for stranger in tuple(caretaker.strangers):
                await self._meet(stranger, caretaker)
            resource = self._cache.get(ref)
            if resource is None:
                return 0.0
            made = await self._made(ref, resource, caretaker)
            if made.writes:
                outcome = "step"
                for effect in made.effects:
                    await self._do(effect, ref, resource, caretaker)
            caretaker.refusal, caretaker.failures = "", 0
            return self._pause(made, caretaker)
        except LeadershipLostError:
            raise
        except ApiError as error:
            outcome = "refused" if error.refused else "failed"
            return self._failed(ref, caretaker, error)
        except Exception as error:
            outcome = "error"
            log.exception("a pass failed", resource=str(ref), namespace=ref.namespace)
            return self._failed(ref, caretaker, error)
        finally:
            self._metrics.passes.labels(ref.kind, outcome).inc()
            self._metrics.seconds.observe(time.monotonic() - started)
            self._metrics.sidecar_failures.set(self._sidecars.failures)

    async def _made(self, ref: Ref, resource: Manifest, caretaker: _Caretaker) -> Pass:
        """What the plans say."""
        return step(self._floor, await self._world(ref, resource, caretaker), time.time())

    def _pause(self, made: Pass, caretaker: _Caretaker) -> float:
        if made.writes:
            caretaker.pause_s = made.again_s
        else:
            # What is waited for is heard of; the replicas' own words are not, but seldom change.
            caretaker.pause_s = min(max(caretaker.pause_s, made.again_s) * 1.5, AGAIN_MAX_S)
        return caretaker.pause_s

    def _failed(self, ref: Ref, caretaker: _Caretaker, error: Exception) -> float:
        caretaker.failures += 1
        if isinstance(error, ApiError) and error.status == 404:
            caretaker.confirmed_s = -math.inf  # it may be the resource itself that is gone
        if isinstance(error, ApiError) and error.status in (404, 409, 422) and caretaker.failures < 3:
            return SETTLE_S  # it changed under our hands: look again
        if not isinstance(error, ApiError) or error.refused:
            caretaker.refusal = (
                f"{type(error).__name__}: {error}"[:500]
                if not isinstance(error, ApiError)
                else (f"the API server refuses: {error}"[:500])
            )
        log.warning("a step failed", resource=str(ref), namespace=ref.namespace, error=str(error))
        return min(FAILED_FIRST_S * (1 << min(caretaker.failures, 10)), FAILED_MAX_S)

    async def _confirm(self, ref: Ref, caretaker: _Caretaker) -> None:
        try:
            self._cache.put(await self._api.get(path_of(ref)))
        except ApiError as error:
            known = self._cache.get(ref)
            if error.status != 404 or known is None:
                raise
            self._cache.drop(known)
        caretaker.confirmed_s = time.monotonic()

    async def _world(self, ref: Ref, resource: Manifest, caretaker: _Caretaker) -> World:
        objects = self._cache.namespace(ref.namespace)
        words: dict[str, Any] = {}
        for kind, name in self._asked(ref, resource):
            pods, credentials = await self._reached(objects, Ref(kind, ref.namespace, name))
            words.update(await self._sidecars.words(ref.namespace, pods, credentials))
        users = [
            other.name
            for other, found in self._cache.all("BrokerGroup")
            if other.namespace == ref.namespace and controllers_named(found) == ref.name
        ]
        # The view is of a cache that changes only between awaits, and plans do not await.
        return World(resource, objects, words, tuple(users), caretaker.refusal)

    async def _reached(
        self, objects: Mapping[Ref, Manifest], group: Ref
    ) -> tuple[list[Manifest], Credentials | None]:
        """A group's pods, and what their sidecars ask for."""
        pods = [
            pod
            for other, pod in objects.items()
            if other.kind == "Pod" and _belongs(pod, group.kind, group.name)
        ]
        admin = _spec(objects.get(group) or {}).get("admin")
        secret = admin.get("tlsSecret") if isinstance(admin, Mapping) else None
        named = secret if isinstance(secret, str) else None
        return pods, await self._secrets.credentials(group.namespace, named)

    def _asked(self, ref: Ref, resource: Manifest) -> list[tuple[str, str]]:
        """Whose pods are asked: the group's own, and those of its controllers."""
        if is_deleting(resource):
            return []
        found = [(ref.kind, ref.name)]
        if ref.kind == "BrokerGroup":
            found.append(("ControllerGroup", controllers_named(resource)))
        return found

    async def _do(self, effect: Effect, ref: Ref, resource: Manifest, caretaker: _Caretaker) -> None:
        if isinstance(effect, Emit) and effect.key in self._told:
            return
        self._metrics.effects.labels(type(effect).__name__).inc()
        match effect:
            case Apply():
                await self._apply(effect.manifest, caretaker)
            case Delete():
                log.info("deletes", object=str(effect.ref), namespace=ref.namespace)
                await self._api.delete(effect.ref, effect.uid)
            case PatchStatus():
                version = str(metadata(resource).get("resourceVersion", ""))
                self._cache.put(await self._api.put_status(ref, version, effect.status))
            case SetFinalizers():
                # The status may have been written in this pass: the present version counts, if it is ours.
                known = self._cache.get(ref) or resource
                version = str(metadata(known).get("resourceVersion", ""))
                answer = await self._api.put_finalizers(ref, version, effect.finalizers)
                if not is_deleting(answer) or effect.finalizers:
                    self._cache.put(answer)
            case Emit():
                await self._emit(effect, ref, resource)

    async def _apply(self, manifest: Manifest, caretaker: _Caretaker) -> None:
        """Applies an object. What we were not told of is looked for first, for it would be taken over,
        whosever it is: ApiError with 409 when it is there."""
        ref = ref_of(manifest)
        if ref.kind in ASKED_FIRST and self._cache.get(ref) is None and await self._meet(ref, caretaker):
            raise ApiError(409, f"{ref} is there already")
        self._cache.put(await self._api.apply(manifest))

    async def _meet(self, ref: Ref, caretaker: _Caretaker) -> bool:
        """Whether an object is there, known from now on. One without our label no watch will tell of: it is
        asked for before every look."""
        known = self._cache.get(ref)
        try:
            found = await self._api.get(path_of(ref))
        except ApiError as error:
            if error.status != 404:
                raise
            caretaker.strangers.discard(ref)
            if known is not None:
                self._cache.drop(known)
            return False
        self._cache.put(found)
        labelled = (metadata(found).get("labels") or {}).get(MANAGED_BY) == MANAGER
        if labelled or ref.kind in RESOURCES:
            caretaker.strangers.discard(ref)
        else:
            caretaker.strangers.add(ref)
        return True

    async def _emit(self, effect: Emit, ref: Ref, resource: Manifest) -> None:
        log.info(effect.message, reason=effect.reason, resource=str(ref), namespace=ref.namespace)
        try:
            await self._api.create(event_of(effect, ref, resource, time.time()))
        except ApiError as error:
            if error.status != 409:  # it was told by an operator that could not note it
                raise
        self._told[effect.key] = None
        while len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)


class _Caretaker:
    """What is remembered of a resource between two looks; nothing of it matters to what is done."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.pause_s = 1.0
        self.failures = 0
        self.refusal = ""
        self.confirmed_s = time.monotonic()
        self.strangers: set[Ref] = set()


def controllers_named(group: Manifest) -> str:
    """The ControllerGroup of a broker group: the one that it names, else the one of its own name."""
    named = _spec(group).get("controllerGroup")
    return named if isinstance(named, str) and named else str(metadata(group).get("name", ""))


def _spec(manifest: Manifest) -> Mapping[str, Any]:
    found = manifest.get("spec")
    return found if isinstance(found, Mapping) else {}


def _belongs(pod: Manifest, kind: str, name: str) -> bool:
    labels = metadata(pod).get("labels") or {}
    return labels.get(KIND) == kind and labels.get(GROUP) == name


def event_of(effect: Emit, ref: Ref, resource: Manifest, now: float) -> dict[str, Any]:
    """The Event as the API server takes it; its name follows from what it tells of."""
    mark = hashlib.sha256(effect.key.encode()).hexdigest()[:16]
    owner = Owner(ref.kind, ref.name, str(metadata(resource).get("uid", "")))
    involved = {key: owner.reference()[key] for key in ("apiVersion", "kind", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{ref.name}.{mark}", "namespace": ref.namespace},
        "involvedObject": {**involved, "namespace": ref.namespace},
        "type": str(effect.type),
        "reason": effect.reason,
        "message": effect.message[:1000],
        "source": {"component": "epochmq-operator"},
        "firstTimestamp": at(now),
        "lastTimestamp": at(now),
        "count": 1,
    }
