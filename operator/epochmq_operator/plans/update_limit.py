"""Limits how many groups of a kind are updated at the same time.

An update that is stuck, for example by an image that cannot be pulled, keeps its place, so a bad change of
many groups stops after a few. A restarted operator finds the updates that have begun in the groups'
statuses."""

# pure: decides by statuses; it remembers what it decided.

from __future__ import annotations

from collections.abc import Callable, Iterable

from epochmq_operator.plans.effects import PatchStatus, ReconciliationResult
from epochmq_operator.plans.objects import Manifest, Ref, status_of
from epochmq_operator.plans.plan_steps import CREATE, DELETE, PlanState, StepKind
from epochmq_operator.plans.reconciliation import is_paused

PARALLEL_UPDATES = 5


def is_updating(resource: Manifest) -> bool:
    """Whether an update of the group has begun and is not finished, by its status. A paused group makes no
    progress, so it does not count."""
    plan = PlanState.of(status_of(resource))
    if plan is None or plan.finished or plan.name in (CREATE, DELETE) or is_paused(resource):
        return False
    if plan.step_kind in (StepKind.RESTART, StepKind.REPLICAS):
        return True
    return plan.name == "update" and plan.step_kind is StepKind.READY


class UpdateLimit:
    """The groups that are being updated, of which there are at most `limit` of each kind. `find` returns a
    resource, None if it is gone."""

    def __init__(self, limit: int, find: Callable[[Ref], Manifest | None]) -> None:
        self._limit = limit
        self._find = find
        self._updating: set[Ref] | None = None

    def begin(self, resources: Iterable[tuple[Ref, Manifest]]) -> None:
        """Takes over the updates that have begun before, once. `resources` are all groups."""
        if self._updating is None:
            self._updating = {ref for ref, found in resources if is_updating(found)}

    def full_because(self, group: Ref) -> str:
        """Why no update of this group may begin or continue now; empty if one may."""
        updating = self._updating or set()
        updating.difference_update([ref for ref in updating if self._find(ref) is None])
        others = [ref for ref in updating if ref.kind == group.kind]
        if group in updating or len(others) < self._limit:
            return ""
        return f"{len(others)} other {group.kind}s are being updated, the most at a time (parallelUpdates)"

    def record(self, group: Ref, resource: Manifest, result: ReconciliationResult) -> None:
        """Records whether the group is being updated after this reconciliation of it."""
        if self._updating is None:
            self._updating = set()
        written = [one.status for one in result.effects if isinstance(one, PatchStatus)]
        after = {**resource, "status": written[-1]} if written else resource
        (self._updating.add if is_updating(after) else self._updating.discard)(group)
