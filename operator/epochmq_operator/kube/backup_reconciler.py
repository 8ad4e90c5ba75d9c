"""Reconciles BrokerGroupBackups: observes the cluster and the replicas, and asks `backups.backup_steps` for
the next step."""

from __future__ import annotations

import time

from epochmq_operator.backups import backup_steps
from epochmq_operator.backups.backup_pod import BackupSettings
from epochmq_operator.backups.backup_steps import ObservedBackup
from epochmq_operator.kube.reconciler import WATCHED_OBJECTS, Reconciler, ReconcilerDependencies
from epochmq_operator.plans.effects import ReconciliationResult
from epochmq_operator.plans.objects import Manifest, Ref, spec_of
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.resources import KINDS
from epochmq_operator.resources.backup import BACKUP_KIND


class BackupReconciler(Reconciler):
    """Reconciles all backups by the plan in `epochmq_operator.backups`."""

    kinds = (BACKUP_KIND,)
    needed_kinds = (*KINDS, *WATCHED_OBJECTS)

    def __init__(self, settings: BackupSettings, dependencies: ReconcilerDependencies) -> None:
        super().__init__(dependencies)
        self._settings = settings

    async def reconcile(self, ref: Ref, resource: Manifest, rejection: str) -> ReconciliationResult:
        """Observes the backup and takes its run's next step. The objects are a view that changes while the
        replicas are asked, so the ready pod is noted before."""
        observed = ObservedState(resource, self.cache.namespace(ref.namespace), rejection=rejection)
        group = Ref("BrokerGroup", ref.namespace, str(spec_of(resource).get("brokerGroup", "")))
        if not backup_steps.wants_states(observed) or group not in observed.objects:
            return backup_steps.reconcile(self._settings, ObservedBackup(observed), time.time())
        ready = backup_steps.ready_pod(observed)
        states = await self.replicas.states(group)
        return backup_steps.reconcile(self._settings, ObservedBackup(observed, states, ready), time.time())
