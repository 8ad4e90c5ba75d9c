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

from epochmq_operator.kube.api import Api, ApiError, object_path
from epochmq_operator.kube.lease_holder import LeadershipLostError
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.sidecar_client import SidecarClient
from epochmq_operator.kube.sidecar_credentials import CredentialsCache, SidecarCredentials
from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL, MANAGED_BY, MANAGER, OBJECT_KINDS
from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.effects import (
    Apply,
    Delete,
    Effect,
    Emit,
    PatchStatus,
    ReconciliationResult,
    SetFinalizers,
)
from epochmq_operator.plans.objects import Manifest, Owner, Ref, is_deleting, metadata, ref_of
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.reconciliation import reconcile
from epochmq_operator.plans.renderer import Renderer

RESOURCES = ("BrokerGroup", "ControllerGroup")
CHECKED_BEFORE_APPLY = frozenset({"ControllerGroup", *(one.kind for one in OBJECT_KINDS)})
"""Kinds of which others may have an object of the name that a group wants: the watches are told of those that
bear the operator's label only."""
REQUEUE_MAX_S = 15.0
"""However quiet it is, the replicas are asked this often."""
BATCH_DELAY_S = 0.1
"""What comes in a burst is looked at once."""
FAILED_FIRST_S, FAILED_MAX_S = 1.0, 60.0
CONFIRMED_FOR_S = 300.0
"""A resource that nothing was heard of for so long is asked for: a watch can miss that it went."""
EMITTED_MAX = 4096

log = structlog.get_logger()


class Reconciler:
    """All caretakers. `heard` may be called from anywhere in the event loop."""

    kinds: tuple[str, ...] = RESOURCES

    def __init__(
        self,
        api: Api,
        cache: ObjectCache,
        sidecar_client: SidecarClient,
        secrets: CredentialsCache,
        renderer: Renderer,
        metrics: OperatorMetrics,
        workers: int,
    ) -> None:
        self._api = api
        self._cache = cache
        self._sidecar_client = sidecar_client
        self._secrets = secrets
        self._renderer = renderer
        self._metrics = metrics
        self._free = asyncio.Semaphore(workers)
        self._workers: dict[Ref, ResourceWorker] = {}
        self._emitted: OrderedDict[str, None] = OrderedDict()
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

    def object_changed(self, manifest: Manifest) -> None:
        """Something changed: whoever it concerns is looked at soon."""
        ref = ref_of(manifest)
        if ref.kind in self.kinds:
            if ref.kind == "BrokerGroup" and (ref in self._workers) != (self._cache.get(ref) is not None):
                # One more or one less that needs its controllers.
                self._wake(Ref("ControllerGroup", ref.namespace, controllers_named(manifest)))
            self._wake(ref)
            if ref.kind == "ControllerGroup":
                for other, found in self._cache.all("BrokerGroup"):
                    if other.namespace == ref.namespace and controllers_named(found) == ref.name:
                        self._wake(other)
            return
        labels = metadata(manifest).get("labels") or {}
        kind, name = labels.get(KIND_LABEL), labels.get(GROUP_LABEL)
        if kind in self.kinds and name:
            self._wake(Ref(kind, ref.namespace, name))
            if kind == "ControllerGroup" and ref.kind == "Pod":
                for other, found in self._cache.all("BrokerGroup"):
                    if other.namespace == ref.namespace and controllers_named(found) == name:
                        self._wake(other)

    def _wake(self, ref: Ref) -> None:
        if self._tasks is None:
            return
        worker = self._workers.get(ref)
        if worker is None:
            if self._cache.get(ref) is None:
                return
            worker = self._workers[ref] = ResourceWorker()
            self._tasks.create_task(self._run_worker(ref, worker), name=str(ref))
        worker.wake.set()

    async def _run_worker(self, ref: Ref, worker: ResourceWorker) -> None:
        try:
            while self._cache.get(ref) is not None:
                worker.wake.clear()
                async with self._free:
                    pause_s = await self._reconcile_once(ref, worker)
                try:
                    async with asyncio.timeout(pause_s):
                        await worker.wake.wait()
                    await asyncio.sleep(BATCH_DELAY_S)
                except TimeoutError:
                    pass
        finally:
            self._workers.pop(ref, None)

    async def _reconcile_once(self, ref: Ref, worker: ResourceWorker) -> float:
        """One pass; how long to wait for the next if nothing is heard. Whatever is wrong with one resource is
        told and tried again, and disturbs no other."""
        started = time.monotonic()
        outcome = "idle"
        try:
            if started - worker.confirmed_s > CONFIRMED_FOR_S:
                await self._confirm(ref, worker)
            for unlabelled in tuple(worker.unlabelled_objects):
                await self._check_foreign(unlabelled, worker)
            resource = self._cache.get(ref)
            if resource is None:
                return 0.0
            made = await self._reconcile(ref, resource, worker)
            if made.writes:
                outcome = "step"
                for effect in made.effects:
                    await self._do(effect, ref, resource, worker)
            worker.rejection, worker.failures = "", 0
            return self._pause(made, worker)
        except LeadershipLostError:
            raise
        except ApiError as error:
            outcome = "refused" if error.rejected else "failed"
            return self._failed(ref, worker, error)
        except Exception as error:
            outcome = "error"
            log.exception("a pass failed", resource=str(ref), namespace=ref.namespace)
            return self._failed(ref, worker, error)
        finally:
            self._metrics.reconciliations.labels(ref.kind, outcome).inc()
            self._metrics.seconds.observe(time.monotonic() - started)
            self._metrics.sidecar_failures.set(self._sidecar_client.failures)

    async def _reconcile(self, ref: Ref, resource: Manifest, worker: ResourceWorker) -> ReconciliationResult:
        """What the plans say."""
        return reconcile(self._renderer, await self._observe(ref, resource, worker), time.time())

    def _pause(self, made: ReconciliationResult, worker: ResourceWorker) -> float:
        if made.writes:
            worker.pause_s = made.requeue_after_s
        else:
            # What is waited for is heard of; the replicas' own words are not, but seldom change.
            worker.pause_s = min(max(worker.pause_s, made.requeue_after_s) * 1.5, REQUEUE_MAX_S)
        return worker.pause_s

    def _failed(self, ref: Ref, worker: ResourceWorker, error: Exception) -> float:
        worker.failures += 1
        if isinstance(error, ApiError) and error.status == 404:
            worker.confirmed_s = -math.inf  # it may be the resource itself that is gone
        if isinstance(error, ApiError) and error.status in (404, 409, 422) and worker.failures < 3:
            return BATCH_DELAY_S  # it changed under our hands: look again
        if not isinstance(error, ApiError) or error.rejected:
            worker.rejection = (
                f"{type(error).__name__}: {error}"[:500]
                if not isinstance(error, ApiError)
                else (f"the API server refuses: {error}"[:500])
            )
        log.warning("a step failed", resource=str(ref), namespace=ref.namespace, error=str(error))
        return min(FAILED_FIRST_S * (1 << min(worker.failures, 10)), FAILED_MAX_S)

    async def _confirm(self, ref: Ref, worker: ResourceWorker) -> None:
        try:
            self._cache.put(await self._api.get(object_path(ref)))
        except ApiError as error:
            known = self._cache.get(ref)
            if error.status != 404 or known is None:
                raise
            self._cache.drop(known)
        worker.confirmed_s = time.monotonic()

    async def _observe(self, ref: Ref, resource: Manifest, worker: ResourceWorker) -> ObservedState:
        objects = self._cache.namespace(ref.namespace)
        states: dict[str, Any] = {}
        for kind, name in self._groups_to_ask(ref, resource):
            pods, credentials = await self._pods_and_credentials(objects, Ref(kind, ref.namespace, name))
            states.update(await self._sidecar_client.states(ref.namespace, pods, credentials))
        users = [
            other.name
            for other, found in self._cache.all("BrokerGroup")
            if other.namespace == ref.namespace and controllers_named(found) == ref.name
        ]
        # The view is of a cache that changes only between awaits, and plans do not await.
        return ObservedState(resource, objects, states, tuple(users), worker.rejection)

    async def _pods_and_credentials(
        self, objects: Mapping[Ref, Manifest], group: Ref
    ) -> tuple[list[Manifest], SidecarCredentials | None]:
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

    def _groups_to_ask(self, ref: Ref, resource: Manifest) -> list[tuple[str, str]]:
        """Whose pods are asked: the group's own, and those of its controllers."""
        if is_deleting(resource):
            return []
        found = [(ref.kind, ref.name)]
        if ref.kind == "BrokerGroup":
            found.append(("ControllerGroup", controllers_named(resource)))
        return found

    async def _do(self, effect: Effect, ref: Ref, resource: Manifest, worker: ResourceWorker) -> None:
        if isinstance(effect, Emit) and effect.key in self._emitted:
            return
        self._metrics.effects.labels(type(effect).__name__).inc()
        match effect:
            case Apply():
                await self._apply(effect.manifest, worker)
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

    async def _apply(self, manifest: Manifest, worker: ResourceWorker) -> None:
        """Applies an object. What we were not told of is looked for first, for it would be taken over,
        whosever it is: ApiError with 409 when it is there."""
        ref = ref_of(manifest)
        if (
            ref.kind in CHECKED_BEFORE_APPLY
            and self._cache.get(ref) is None
            and await self._check_foreign(ref, worker)
        ):
            raise ApiError(409, f"{ref} is there already")
        self._cache.put(await self._api.apply(manifest))

    async def _check_foreign(self, ref: Ref, worker: ResourceWorker) -> bool:
        """Whether an object is there, known from now on. One without our label no watch will tell of: it is
        asked for before every look."""
        known = self._cache.get(ref)
        try:
            found = await self._api.get(object_path(ref))
        except ApiError as error:
            if error.status != 404:
                raise
            worker.unlabelled_objects.discard(ref)
            if known is not None:
                self._cache.drop(known)
            return False
        self._cache.put(found)
        labelled = (metadata(found).get("labels") or {}).get(MANAGED_BY) == MANAGER
        if labelled or ref.kind in RESOURCES:
            worker.unlabelled_objects.discard(ref)
        else:
            worker.unlabelled_objects.add(ref)
        return True

    async def _emit(self, effect: Emit, ref: Ref, resource: Manifest) -> None:
        log.info(effect.message, reason=effect.reason, resource=str(ref), namespace=ref.namespace)
        try:
            await self._api.create(event_of(effect, ref, resource, time.time()))
        except ApiError as error:
            if error.status != 409:  # it was told by an operator that could not note it
                raise
        self._emitted[effect.key] = None
        while len(self._emitted) > EMITTED_MAX:
            self._emitted.popitem(last=False)


class ResourceWorker:
    """What is remembered of a resource between two looks; nothing of it matters to what is done."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.pause_s = 1.0
        self.failures = 0
        self.rejection = ""
        self.confirmed_s = time.monotonic()
        self.unlabelled_objects: set[Ref] = set()


def controllers_named(group: Manifest) -> str:
    """The ControllerGroup of a broker group: the one that it names, else the one of its own name."""
    named = _spec(group).get("controllerGroup")
    return named if isinstance(named, str) and named else str(metadata(group).get("name", ""))


def _spec(manifest: Manifest) -> Mapping[str, Any]:
    found = manifest.get("spec")
    return found if isinstance(found, Mapping) else {}


def _belongs(pod: Manifest, kind: str, name: str) -> bool:
    labels = metadata(pod).get("labels") or {}
    return labels.get(KIND_LABEL) == kind and labels.get(GROUP_LABEL) == name


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
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
    }
