"""Carries out the effects of reconciliations on the API server and on replicas."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from epochmq_operator.kube.api import Api, ApiError, object_path
from epochmq_operator.kube.event_poster import EventPoster
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.replica_observer import ReplicaObserver
from epochmq_operator.manifests.names import MANAGED_BY, MANAGER, OBJECT_KINDS
from epochmq_operator.plans.effects import (
    Apply,
    ChangeQuorumMembers,
    Create,
    CreateEvent,
    Delete,
    Effect,
    EventType,
    PatchStatus,
    ReloadConfiguration,
    RemoveAnnotation,
    SetAnnotation,
    SetFinalizers,
)
from epochmq_operator.plans.objects import Manifest, Ref, digest, is_deleting, metadata, ref_of, spec_of
from epochmq_operator.resources import KINDS
from epochmq_protocol.errors import EpochMQError

CHECKED_BEFORE_APPLY = frozenset({"ControllerGroup", *(one.kind for one in OBJECT_KINDS)})
"""Before it applies an object of these kinds, the operator asks the API server for it. An object of
another owner may have the same name, and the watches deliver only objects with the operator's label."""
REJECTED_FOR_S = 300.0
"""After this time a larger size of a volume claim is asked for again before other steps."""
REJECTIONS_MAX = 1000
REWRITTEN_SHOWN_MAX = 3
NoteApplied = Callable[[Manifest, Manifest], Sequence[str]]
"""Takes a manifest that was applied, and the object as stored; returns differences to report."""
METRIC_LABELS: Mapping[type[Effect], str] = {
    Apply: "Apply",
    Create: "Create",
    Delete: "Delete",
    SetFinalizers: "SetFinalizers",
    RemoveAnnotation: "RemoveAnnotation",
    SetAnnotation: "SetAnnotation",
    PatchStatus: "PatchStatus",
    CreateEvent: "Emit",
    ReloadConfiguration: "ReloadConfiguration",
    ChangeQuorumMembers: "ChangeQuorumMembers",
}
"""The values of the label `effect` of `epochmq_operator_effects`."""

log = structlog.get_logger()


class ObjectFoundError(EpochMQError):
    """An object that was to be created exists already, without the operator's label. It is in the cache now:
    the next reconciliation decides whose it is."""


class WorkerState:
    """What the worker of one resource remembers between two reconciliations. `rejection` is the API server's
    response to the last write, if that was rejected. No decision depends on the other fields: they only say
    when the worker reconciles again, and which objects it loads before. `outdated_objects` are those that the
    last write was for, if it failed because they are not as they were observed."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.pause_s = 1.0
        self.failures = 0
        self.rejection = ""
        self.confirmed_s = time.monotonic()
        self.unlabelled_objects: set[Ref] = set()
        self.outdated_objects: set[Ref] = set()


class EffectWriter:
    """Carries out effects, and puts the objects of the API server's responses into the cache."""

    def __init__(
        self, api: Api, cache: ObjectCache, metrics: OperatorMetrics, replicas: ReplicaObserver
    ) -> None:
        self._api = api
        self._replicas = replicas
        self._cache = cache
        self._metrics = metrics
        self.events = EventPoster(api, metrics)
        self.note_applied: NoteApplied = lambda manifest, stored: ()
        self._rejected_claims: OrderedDict[Ref, tuple[float, str]] = OrderedDict()

    async def carry_out(self, effect: Effect, ref: Ref, resource: Manifest, worker: WorkerState) -> Manifest:
        """Carries out one effect of a reconciliation of this resource; returns the resource, with its status
        if the effect has written it. An Event is only queued: it neither fails nor delays other effects.
        ApiError when an effect fails; MembershipRejectionError if the members of a quorum are as before."""
        if isinstance(effect, CreateEvent) and not self.events.put(effect, ref, resource):
            return resource
        self._metrics.effects.labels(METRIC_LABELS[type(effect)]).inc()
        match effect:
            case Apply():
                await self._apply(effect.manifest, worker)
                self._report_rewritten(effect.manifest, ref, resource)
            case Create():
                await self._create(effect.manifest, worker)
            case Delete():
                log.info(
                    "deleting an object",
                    object=str(effect.ref),
                    namespace=ref.namespace,
                    forced=effect.forced,
                )
                await self._api.delete(effect.ref, effect.uid, forced=effect.forced)
            case RemoveAnnotation():
                answer = await self._api.remove_annotation(ref, effect.key, effect.value)
                if answer is not None:
                    self._cache.put(answer)
            case SetAnnotation():
                version = effect.resource_version
                self._cache.put(await self._api.annotate(effect.ref, version, effect.key, effect.value))
            case PatchStatus():
                version = str(metadata(resource).get("resourceVersion", ""))
                resource = await self._api.put_status(ref, version, effect.status)
                self._cache.put(resource)
            case SetFinalizers():
                # This reconciliation may have written the status: then the cache has the present version.
                known = self._cache.get(ref) or resource
                version = str(metadata(known).get("resourceVersion", ""))
                found = await self._api.put_finalizers(ref, version, effect.finalizers)
                if not is_deleting(found) or effect.finalizers:
                    self._cache.put(found)
            case ReloadConfiguration():
                await self._replicas.reload(ref, effect)
            case ChangeQuorumMembers():
                log.info("changing a quorum", member=effect.member, group=ref.name, namespace=ref.namespace)
                await self._replicas.change_members(ref, effect)
        return resource

    async def load_into_cache(self, ref: Ref, worker: WorkerState) -> bool:
        """Asks the API server for an object and puts it into the cache. Returns whether it exists. No watch
        delivers an object without the operator's label. So the worker state remembers such an object, and
        every later reconciliation loads it again first."""
        known, since = self._cache.get(ref), self._cache.changes
        try:
            found = await self._api.get(object_path(ref))
        except ApiError as error:
            if error.status != 404:
                raise
            worker.unlabelled_objects.discard(ref)
            if known is not None:
                self._cache.drop(known)
            return False
        self._cache.put_fetched(found, since)
        labelled = (metadata(found).get("labels") or {}).get(MANAGED_BY) == MANAGER
        if labelled or ref.kind in KINDS:
            worker.unlabelled_objects.discard(ref)
        else:
            worker.unlabelled_objects.add(ref)
        return True

    async def _apply(self, manifest: Manifest, worker: WorkerState) -> None:
        """Applies an object. If it is of a kind in `CHECKED_BEFORE_APPLY`, exists, and is not in the cache,
        it may have another owner, and applying would take it over: ObjectFoundError the first time, then
        ApiError with 409."""
        ref = ref_of(manifest)
        must_check = ref.kind in CHECKED_BEFORE_APPLY and self._cache.get(ref) is None
        was_found = ref in worker.unlabelled_objects
        if must_check and await self.load_into_cache(ref, worker):
            if was_found:
                raise ApiError(409, f"{ref} exists already")
            raise ObjectFoundError(f"{ref} exists already")
        try:
            stored = await self._api.apply(manifest)
        except ApiError as error:
            if ref.kind == "PersistentVolumeClaim" and error.is_rejection:
                self._remember_rejected_claim(manifest)
            if error.status != 422 or not await self._replace_ports(ref, manifest):
                raise
            stored = await self._api.apply(manifest)
        self._cache.put(stored)

    async def _create(self, manifest: Manifest, worker: WorkerState) -> None:
        """Creates an object. One that exists is put into the cache, so that the next reconciliation decides
        about it."""
        try:
            self._cache.put(await self._api.create(manifest))
        except ApiError as error:
            if error.status != 409:
                raise
            await self.load_into_cache(ref_of(manifest), worker)

    def _report_rewritten(self, manifest: Manifest, ref: Ref, resource: Manifest) -> None:
        """Reports once that the API server stores other values than the operator applies."""
        applied = ref_of(manifest)
        stored = self._cache.get(applied)
        lines = self.note_applied(manifest, stored) if stored is not None else ()
        if not lines:
            return
        message = (
            f"an admission webhook rewrites {applied}, and the operator leaves these fields as they are: "
            + "; ".join(lines[:REWRITTEN_SHOWN_MAX])
        )
        key = f"{metadata(resource).get('uid')}/rewritten/{applied}/{digest(list(lines))}"
        self.events.put(CreateEvent(EventType.WARNING, "FieldsRewritten", message, key), ref, resource)

    def rejected_claims(self, namespace: str) -> Mapping[str, str]:
        """The sizes that the API server rejected lately, by the name of their volume claim."""
        since = time.monotonic() - REJECTED_FOR_S
        found = self._rejected_claims.items()
        return {ref.name: size for ref, (at_s, size) in found if ref.namespace == namespace and at_s > since}

    def _remember_rejected_claim(self, manifest: Manifest) -> None:
        size = str(spec_of(manifest)["resources"]["requests"]["storage"])
        self._rejected_claims[ref_of(manifest)] = time.monotonic(), size
        self._rejected_claims.move_to_end(ref_of(manifest))
        while len(self._rejected_claims) > REJECTIONS_MAX:
            self._rejected_claims.popitem(last=False)

    async def _replace_ports(self, ref: Ref, manifest: Manifest) -> bool:
        """Gives a Service its ports instead of those that somebody has put there; returns whether it had such
        ones. To apply the Service would add to them, because a port is known by its number, and the API
        server rejects two ports of one name."""
        if ref.kind != "Service":
            return False
        found = await self._api.get(object_path(ref))
        wanted, there = (spec_of(one).get("ports") or [] for one in (manifest, found))
        if {_port_key(one) for one in there} <= {_port_key(one) for one in wanted}:
            return False
        nodes = {one.get("name"): one["nodePort"] for one in there if "nodePort" in one}
        ports = [
            {"nodePort": nodes[one["name"]], **one} if one.get("name") in nodes else one for one in wanted
        ]
        version = str(metadata(found).get("resourceVersion", ""))
        await self._api.replace_field(ref, version, "/spec/ports", ports)
        return True


def _port_key(port: Mapping[str, Any]) -> tuple[Any, str]:
    """By what the API server tells the ports of a Service apart."""
    return port.get("port"), str(port.get("protocol", "TCP"))
