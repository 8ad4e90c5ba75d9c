"""Reconciles BrokerGroupAudits: observes the cluster and the replicas, and asks `audits.plan` for the next
step."""

from __future__ import annotations

import time

from epochmq_operator.audits import plan
from epochmq_operator.audits.manifests import AuditSettings
from epochmq_operator.audits.plan import ObservedAudit
from epochmq_operator.kube.reconciler import (
    WATCHED_FOR_AUDITS,
    WATCHED_OBJECTS,
    Reconciler,
    ReconcilerDependencies,
)
from epochmq_operator.plans.effects import ReconciliationResult
from epochmq_operator.plans.objects import Manifest, Ref, controller_group_of, spec_of
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.reported_states import ReportedState
from epochmq_operator.resources import KINDS
from epochmq_operator.resources.audit import AUDIT_KIND


class AuditReconciler(Reconciler):
    """Reconciles all audits by the plan in `epochmq_operator.audits`."""

    kinds = (AUDIT_KIND,)
    needed_kinds = (*KINDS, *WATCHED_OBJECTS, *WATCHED_FOR_AUDITS)

    def __init__(self, settings: AuditSettings, dependencies: ReconcilerDependencies) -> None:
        super().__init__(dependencies)
        self._settings = settings

    async def reconcile(self, ref: Ref, resource: Manifest, rejection: str) -> ReconciliationResult:
        """Observes the audit and takes its run's next step."""
        objects = self.cache.namespace(ref.namespace)
        observed_audit = ObservedAudit(ObservedState(resource, objects, rejection=rejection))
        if plan.wants_cut(observed_audit.observed):
            observed_audit = await self._observe_replicas(ref, resource, rejection)
        return plan.reconcile(self._settings, observed_audit, time.time())

    async def _observe_replicas(self, ref: Ref, resource: Manifest, rejection: str) -> ObservedAudit:
        """Asks the replicas for their states, then for their epoch files, then for their states again."""
        objects = self.cache.namespace(ref.namespace)
        group = Ref("BrokerGroup", ref.namespace, str(spec_of(resource).get("brokerGroup", "")))
        found = objects.get(group)
        if found is None:
            return ObservedAudit(ObservedState(resource, objects, rejection=rejection))
        states: dict[str, ReportedState] = {}
        for one in (Ref("ControllerGroup", ref.namespace, controller_group_of(found)), group):
            states.update(await self.replicas.states(one))
        copies = await self.replicas.epoch_files(group)
        later = await self.replicas.states(group)
        return ObservedAudit(ObservedState(resource, objects, states, rejection=rejection), copies, later)
