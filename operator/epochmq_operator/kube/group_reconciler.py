"""Reconciles BrokerGroups and ControllerGroups: observes the cluster and the replicas, and asks
`plans.reconciliation` for the next step."""

from __future__ import annotations

import time

from epochmq_operator.kube.reconciler import Reconciler, ReconcilerDependencies
from epochmq_operator.plans.effects import ReconciliationResult
from epochmq_operator.plans.objects import Manifest, Ref, controller_group_of, is_deleting
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.reconciliation import reconcile
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.plans.reported_states import ReportedState
from epochmq_operator.resources import KINDS


class GroupReconciler(Reconciler):
    """Reconciles all groups by the plans in `epochmq_operator.plans`."""

    kinds = tuple(KINDS)

    def __init__(self, renderer: Renderer, dependencies: ReconcilerDependencies) -> None:
        super().__init__(dependencies)
        self._renderer = renderer

    async def reconcile(self, ref: Ref, resource: Manifest, rejection: str) -> ReconciliationResult:
        """Observes the group and takes its plan's next step."""
        return reconcile(self._renderer, await self._observe(ref, resource, rejection), time.time())

    async def _observe(self, ref: Ref, resource: Manifest, rejection: str) -> ObservedState:
        states: dict[str, ReportedState] = {}
        for group in self._groups_to_ask(ref, resource):
            states.update(await self.replicas.states(group))
        users = [
            other.name
            for other, found in self.cache.all("BrokerGroup")
            if other.namespace == ref.namespace and controller_group_of(found) == ref.name
        ]
        # This is a view of the cache, which changes only between awaits; plans do not await.
        objects = self.cache.namespace(ref.namespace)
        return ObservedState(resource, objects, states, tuple(users), rejection)

    def _groups_to_ask(self, ref: Ref, resource: Manifest) -> list[Ref]:
        """The groups whose replicas are asked: the group itself, and its controllers."""
        if is_deleting(resource):
            return []
        if ref.kind == "BrokerGroup":
            return [ref, Ref("ControllerGroup", ref.namespace, controller_group_of(resource))]
        return [ref]
