"""Runs one worker for each resource. A worker reconciles its resource when an object of it changed, and after
the delay that the last reconciliation asked for. Only a few workers reconcile at a time."""

from __future__ import annotations

import abc
import asyncio
import math
import time
from dataclasses import dataclass, field

import structlog

from epochmq_operator.kube.api import Api, ApiError, object_path
from epochmq_operator.kube.effect_writer import EffectWriter, ObjectFoundError, WorkerState
from epochmq_operator.kube.lease_holder import LeadershipLostError
from epochmq_operator.kube.liveness import RECONCILIATION_LIMIT_S, Liveness
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.replica_observer import ReplicaObserver
from epochmq_operator.kube.sidecar_client import MembershipRejectionError
from epochmq_operator.kube.watch_states import WatchStates
from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL, OBJECT_KINDS
from epochmq_operator.plans.effects import Apply, ReconciliationResult
from epochmq_operator.plans.objects import (
    Manifest,
    Ref,
    metadata,
    ref_of,
)

WATCHED_OBJECTS = (*(one.kind for one in OBJECT_KINDS), "Pod", "PersistentVolumeClaim")
"""The kinds of objects that belong to groups."""
WATCHED_FOR_AUDITS = ("Role", "RoleBinding")
REQUEUE_MAX_S = 15.0
"""The longest time between two reconciliations of a resource, and so between two requests to its replicas."""
BATCH_DELAY_S = 0.1
"""The delay between a change and the reconciliation, so that a burst of changes makes one reconciliation."""
OUTDATED = (404, 409, 422)
"""The HTTP statuses of a write to an object that has changed or is gone. What was observed is fetched again
before the next reconciliation, because watches may lag. A 422 that recurs is that of an invalid object."""
FAILED_FIRST_S, FAILED_MAX_S = 1.0, 60.0
REPORTED_REJECTIONS = 5
"""So many rejections of a change of members in a row are reported."""
CONFIRMED_FOR_S = 300.0
"""The worker gets its resource from the API server after this time: a watch can miss a deletion."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReconcilerDependencies:
    """What reconcilers share. `workers` is the number of resources that one reconciles at a time. `watches`
    tells which kinds of objects cannot be seen."""

    api: Api
    cache: ObjectCache
    replicas: ReplicaObserver
    metrics: OperatorMetrics
    liveness: Liveness
    workers: int
    watches: WatchStates = field(default_factory=WatchStates)


def labelled_resource(manifest: Manifest) -> Ref | None:
    """The resource that an object belongs to by its labels; None without them."""
    labels = metadata(manifest).get("labels") or {}
    kind, name = labels.get(KIND_LABEL), labels.get(GROUP_LABEL)
    return Ref(kind, ref_of(manifest).namespace, name) if kind and name else None


class Reconciler(abc.ABC):
    """Reconciles all resources of some `kinds`. A subclass says what to do by `reconcile`, and by
    `needed_kinds` of which objects it must see all to decide."""

    kinds: tuple[str, ...]
    needed_kinds: tuple[str, ...] = ()

    def __init__(self, dependencies: ReconcilerDependencies) -> None:
        self.cache = dependencies.cache
        self.replicas = dependencies.replicas
        self._api = dependencies.api
        self._metrics = dependencies.metrics
        self._liveness = dependencies.liveness
        self._watches = dependencies.watches
        self._writer = EffectWriter(
            dependencies.api, dependencies.cache, dependencies.metrics, dependencies.replicas
        )
        self._free = asyncio.Semaphore(dependencies.workers)
        self._workers: dict[Ref, WorkerState] = {}
        self._tasks: asyncio.TaskGroup | None = None

    @abc.abstractmethod
    async def reconcile(self, ref: Ref, resource: Manifest, rejection: str) -> ReconciliationResult:
        """Observes the resource and decides what to do. `rejection` is the API server's response to the
        resource's last write, if that was rejected."""

    async def run(self) -> None:
        """Reconciles until cancelled. LeadershipLostError when the lease is lost."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._writer.events.run())
            try:
                for kind in self.kinds:
                    for ref, _ in list(self.cache.all(kind)):
                        self._wake(ref)
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def object_changed(self, manifest: Manifest) -> None:
        """Wakes the worker of the resource that this object is or belongs to. A subclass wakes others that it
        concerns, too. Call it on the event loop."""
        ref = ref_of(manifest)
        resource = ref if ref.kind in self.kinds else labelled_resource(manifest)
        if resource is not None and resource.kind in self.kinds:
            self._wake(resource)

    def _wake(self, ref: Ref) -> None:
        if self._tasks is None:
            return
        worker = self._workers.get(ref)
        if worker is None:
            if self.cache.get(ref) is None:
                return
            worker = self._workers[ref] = WorkerState()
            self._tasks.create_task(self._run_worker(ref, worker), name=str(ref))
        worker.wake.set()

    async def _run_worker(self, ref: Ref, worker: WorkerState) -> None:
        try:
            while self.cache.get(ref) is not None:
                worker.wake.clear()
                async with self._free:
                    activity = f"the reconciliation of {ref.kind} {ref.namespace}/{ref.name}"
                    with self._liveness.during(activity, RECONCILIATION_LIMIT_S):
                        pause_s = await self._reconcile_once(ref, worker)
                try:
                    async with asyncio.timeout(pause_s):
                        await worker.wake.wait()
                    await asyncio.sleep(BATCH_DELAY_S)
                except TimeoutError:
                    pass
        finally:
            self._workers.pop(ref, None)

    async def _reconcile_once(self, ref: Ref, worker: WorkerState) -> float:
        """Reconciles once; the delay before the next reconciliation if nothing changes. An error of one
        resource is logged and retried, and does not affect other resources."""
        started = time.monotonic()
        outcome = "idle"
        try:
            unseen = self._watches.missing((*self.kinds, *self.needed_kinds), ref.namespace)
            if unseen:
                outcome = "blind"
                log.debug("not reconciling", resource=str(ref), namespace=ref.namespace, unseen=unseen)
                return REQUEUE_MAX_S
            if started - worker.confirmed_s > CONFIRMED_FOR_S:
                await self._confirm(ref, worker)
            outdated, worker.outdated_objects = worker.outdated_objects, set()
            for other in (*worker.unlabelled_objects, *outdated):
                await self._writer.load_into_cache(other, worker)
            found = self.cache.get(ref)
            if found is None:
                return 0.0
            resource: Manifest = found
            result = await self.reconcile(ref, resource, worker.rejection)
            if result.writes:
                outcome = "step"
                for effect in result.effects:
                    try:
                        resource = await self._writer.carry_out(effect, ref, resource, worker)
                    except ApiError as error:
                        if error.status in OUTDATED:
                            worker.confirmed_s = -math.inf
                            if isinstance(effect, Apply):
                                worker.outdated_objects.add(ref_of(effect.manifest))
                        raise
            worker.rejection, worker.failures = "", 0
            return self._pause(result, worker)
        except LeadershipLostError:
            raise
        except ObjectFoundError:
            outcome = "step"
            return BATCH_DELAY_S
        except ApiError as error:
            outcome = "refused" if error.is_rejection else "failed"
            return self._failed(ref, worker, error)
        except MembershipRejectionError as error:
            outcome = "refused"
            return self._members_unchanged(ref, worker, error)
        except Exception as error:
            outcome = "error"
            log.exception("unexpected error in a reconciliation", resource=str(ref), namespace=ref.namespace)
            return self._failed(ref, worker, error)
        finally:
            self._metrics.reconciliations.labels(ref.kind, outcome).inc()
            self._metrics.seconds.observe(time.monotonic() - started)
            self._metrics.sidecar_failures.set(self.replicas.failures)

    def _pause(self, result: ReconciliationResult, worker: WorkerState) -> float:
        if result.writes:
            worker.pause_s = result.requeue_after_s
        else:
            # Watches deliver changes of objects. Replicas have to be asked, but their states change rarely.
            worker.pause_s = min(max(worker.pause_s, result.requeue_after_s) * 1.5, REQUEUE_MAX_S)
        return worker.pause_s

    def _failed(self, ref: Ref, worker: WorkerState, error: Exception) -> float:
        worker.failures += 1
        if isinstance(error, ApiError) and error.status in OUTDATED and worker.failures < 3:
            return BATCH_DELAY_S
        if not isinstance(error, ApiError) or error.is_rejection:
            worker.rejection = (
                f"{type(error).__name__}: {error}"[:500]
                if not isinstance(error, ApiError)
                else f"the API server rejected a write: {error}"[:500]
            )
        log.warning("reconciliation failed", resource=str(ref), namespace=ref.namespace, error=str(error))
        return min(FAILED_FIRST_S * (1 << min(worker.failures, 10)), FAILED_MAX_S)

    def _members_unchanged(self, ref: Ref, worker: WorkerState, error: MembershipRejectionError) -> float:
        """The delay before the change is requested again. A leader rejects a change while another one is in
        progress, and when it has transferred its leadership; so the first rejections are no fault. While a
        new member gets the log, which may take long, none is."""
        if not error.is_under_way:
            worker.failures += 1
        if worker.failures >= REPORTED_REJECTIONS:
            worker.rejection = f"the members of the quorum were not changed: {error}"[:500]
        log.info("a quorum was not changed", resource=str(ref), namespace=ref.namespace, error=str(error))
        return FAILED_FIRST_S

    async def _confirm(self, ref: Ref, worker: WorkerState) -> None:
        """Gets the resource from the API server; removes it from the cache if it is gone."""
        since = self.cache.changes
        try:
            self.cache.put_fetched(await self._api.get(object_path(ref)), since)
        except ApiError as error:
            known = self.cache.get(ref)
            if error.status != 404 or known is None:
                raise
            self.cache.drop(known)
        worker.confirmed_s = time.monotonic()
