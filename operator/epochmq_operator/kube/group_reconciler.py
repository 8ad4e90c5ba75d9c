"""Reconciles BrokerGroups and ControllerGroups: observes the cluster and the replicas, and asks
`plans.reconciliation` for the next step."""

from __future__ import annotations

import time
from dataclasses import replace

from epochmq_operator.kube.api import ApiError
from epochmq_operator.kube.member_secrets import MemberSecrets
from epochmq_operator.kube.reconciler import (
    WATCHED_OBJECTS,
    Reconciler,
    ReconcilerDependencies,
    labelled_resource,
)
from epochmq_operator.plans.compared_objects import ComparisonCache
from epochmq_operator.plans.effects import ReconciliationResult
from epochmq_operator.plans.group_status import ResourcePhase
from epochmq_operator.plans.indexed_objects import of_kind
from epochmq_operator.plans.member_modes import wanted_secret
from epochmq_operator.plans.objects import Manifest, Ref, controller_group_of, is_deleting, ref_of, status_of
from epochmq_operator.plans.observed_state import NodeState, ObservedState, node_state
from epochmq_operator.plans.plan_steps import PlanState, StepKind
from epochmq_operator.plans.reconciliation import reconcile
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.plans.replica_replacement import nodes_to_ask
from epochmq_operator.plans.reported_states import ReportedState
from epochmq_operator.plans.update_limit import PARALLEL_UPDATES, UpdateLimit
from epochmq_operator.resources import KINDS


class GroupReconciler(Reconciler):
    """Reconciles all groups by the plans in `epochmq_operator.plans`."""

    kinds = tuple(KINDS)
    needed_kinds = WATCHED_OBJECTS

    def __init__(
        self,
        renderer: Renderer,
        dependencies: ReconcilerDependencies,
        parallel_updates: int = PARALLEL_UPDATES,
    ) -> None:
        super().__init__(dependencies)
        self._renderer = renderer
        if isinstance(renderer.differences, ComparisonCache):
            self._writer.note_applied = renderer.differences.note_applied
        self._secrets = MemberSecrets(dependencies.api)
        self._limit = UpdateLimit(parallel_updates, self.cache.get)

    async def reconcile(self, ref: Ref, resource: Manifest, rejection: str) -> ReconciliationResult:
        """Observes the group and takes its plan's next step."""
        rejection = await self._ensure_member_secret(ref, resource) or rejection
        observed = await self._observe(ref, resource, rejection)
        # Without an await in between, so that no two groups take the same place.
        self._limit.begin(found for kind in self.kinds for found in self.cache.all(kind))
        observed = replace(observed, updates_full=self._limit.full_because(ref))
        result = reconcile(self._renderer, observed, time.time())
        self._limit.record(ref, resource, result)
        return result

    async def _ensure_member_secret(self, ref: Ref, resource: Manifest) -> str:
        """Creates the Secret of a group's members, if it needs one; returns why that is impossible."""
        secret = wanted_secret(ObservedState(resource, self.cache.namespace(ref.namespace)))
        if secret is None:
            return ""
        ready = status_of(resource).get("phase") == ResourcePhase.READY
        return await self._secrets.ensure(secret, ready=ready)

    def object_changed(self, manifest: Manifest) -> None:
        """Wakes also the controllers of a broker group that changed, if that concerns them, and the broker
        groups of controllers that changed, of which a pod is one."""
        ref = ref_of(manifest)
        if ref.kind == "BrokerGroup" and self._concerns_controllers(ref, manifest):
            self._wake(_controllers_of(ref, manifest))
        super().object_changed(manifest)
        controllers = labelled_resource(manifest) if ref.kind == "Pod" else ref
        if controllers is not None and controllers.kind == "ControllerGroup":
            for other in self._users_of(controllers):
                self._wake(other)

    def _concerns_controllers(self, group: Ref, manifest: Manifest) -> bool:
        """Whether the controllers have one user more or fewer, or wait until the brokers of their groups list
        another controller."""
        if (group in self._workers) != (self.cache.get(group) is not None):
            return True
        controllers = self.cache.get(_controllers_of(group, manifest))
        plan = PlanState.of(status_of(controllers or {}))
        return plan is not None and plan.step_kind is StepKind.ADMIT

    def _users_of(self, controllers: Ref) -> list[Ref]:
        """The broker groups under these controllers."""
        return [
            ref
            for ref, group in of_kind(self.cache.namespace(controllers.namespace), "BrokerGroup").items()
            if controller_group_of(group) == controllers.name
        ]

    async def _observe(self, ref: Ref, resource: Manifest, rejection: str) -> ObservedState:
        states: dict[str, ReportedState] = {}
        for group in self._groups_to_ask(ref, resource):
            states.update(await self.replicas.states(group))
        can_reload = await self.replicas.can_reload(ref)
        users = [group.name for group in self._users_of(ref)]
        # This is a view of the cache, which changes only between awaits; plans do not await.
        objects = self.cache.namespace(ref.namespace)
        return ObservedState(
            resource,
            objects,
            states,
            tuple(users),
            rejection,
            can_reload,
            self.replicas.rejected_reloads(ref),
            self._writer.rejected_claims(ref.namespace),
            nodes=await self._nodes(resource),
        )

    async def _nodes(self, resource: Manifest) -> dict[str, NodeState]:
        """The states of the nodes that the plan has to know. Without the right to read one, or without a
        response, it is not known."""
        found = {}
        for name in nodes_to_ask(resource, self.cache.namespace(ref_of(resource).namespace)):
            try:
                found[name] = node_state(await self._api.get(f"/api/v1/nodes/{name}"))
            except ApiError as error:
                if error.status == 404:
                    found[name] = NodeState.GONE
        return found

    def _groups_to_ask(self, ref: Ref, resource: Manifest) -> list[Ref]:
        """The groups whose replicas are asked: the group itself, and its controllers."""
        if is_deleting(resource):
            return []
        if ref.kind == "BrokerGroup":
            return [ref, _controllers_of(ref, resource)]
        return [ref]


def _controllers_of(group: Ref, manifest: Manifest) -> Ref:
    return Ref("ControllerGroup", group.namespace, controller_group_of(manifest))
