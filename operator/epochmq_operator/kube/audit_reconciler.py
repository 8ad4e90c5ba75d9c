"""Looks after audits, as the reconciler does after groups: the same caretakers, with plans of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from epochmq_operator.audits import plan
from epochmq_operator.audits.manifests import AuditSettings
from epochmq_operator.audits.plan import ObservedAudit
from epochmq_operator.kube.reconciler import Reconciler, ResourceWorker, controllers_named
from epochmq_operator.plans.effects import ReconciliationResult
from epochmq_operator.plans.objects import Manifest, Ref
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.reported_states import ReportedState
from epochmq_operator.resources.audit import AUDIT_KIND


class AuditReconciler(Reconciler):
    """All audits' caretakers."""

    kinds = (AUDIT_KIND,)

    def __init__(self, settings: AuditSettings, *shared: Any) -> None:
        """`shared` is what a reconciler of groups is given."""
        super().__init__(*shared)
        self._settings = settings

    async def _reconcile(self, ref: Ref, resource: Manifest, worker: ResourceWorker) -> ReconciliationResult:
        objects = self._cache.namespace(ref.namespace)
        observed_audit = ObservedAudit(ObservedState(resource, objects, rejection=worker.rejection))
        if plan.wants_cut(observed_audit.observed):
            observed_audit = await self._asked_of(ref, resource, worker)
        return plan.reconcile(self._settings, observed_audit, time.time())

    async def _asked_of(self, ref: Ref, resource: Manifest, worker: ResourceWorker) -> ObservedAudit:
        """The replicas are asked: first how they are, then for their epoch files, then once more."""
        objects = self._cache.namespace(ref.namespace)
        spec = resource.get("spec") or {}
        group = Ref("BrokerGroup", ref.namespace, str(spec.get("brokerGroup", "")))
        found = objects.get(group)
        if found is None:
            return ObservedAudit(ObservedState(resource, objects, rejection=worker.rejection))
        controllers = Ref("ControllerGroup", ref.namespace, controllers_named(found))
        states: dict[str, ReportedState] = {}
        for one in (controllers, group):
            pods, credentials = await self._pods_and_credentials(objects, one)
            states.update(await self._sidecar_client.states(ref.namespace, pods, credentials))
        copies = await self._sidecar_client.epoch_files(ref.namespace, pods, credentials)
        later = await self._sidecar_client.states(ref.namespace, pods, credentials)
        return ObservedAudit(
            ObservedState(resource, objects, states, rejection=worker.rejection), copies, later
        )


def notify_both(groups: Reconciler, audits: Reconciler) -> Callable[[Manifest], None]:
    """A listener of the cache that tells both."""

    def object_changed(manifest: Manifest) -> None:
        groups.object_changed(manifest)
        audits.object_changed(manifest)

    return object_changed
