"""Computes the steps of a broker group that concern its ControllerGroup.

- `controllers`: the ControllerGroup exists. One that belongs to the group alone is made as the group's spec
  says. Waits while the name belongs to another object. A ControllerGroup of this name that a user made is
  used and not changed.
- `members`: the group's own controllers are as many as `spec.controllers` asks for. The plan of their
  ControllerGroup adds and removes them. A group without `spec.controllers` has three, and no such step.

With `spec.controllers` they also have the group's `spec.admin`, because their sidecars change the members of
the quorum only for clients with credentials. Without, they have what earlier releases gave them, so that no
controller restarts for another release."""

# pure: data in, steps out.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from epochmq_operator.manifests.names import MANAGED_BY, MANAGER
from epochmq_operator.plans.common_steps import BLOCKED_PHASE, TARGET
from epochmq_operator.plans.compared_objects import (
    ComparedObjects,
    ObjectState,
    compare_object,
)
from epochmq_operator.plans.member_modes import MEMBER_AUTHENTICATION
from epochmq_operator.plans.objects import (
    APPLIED,
    Manifest,
    Owner,
    annotation,
    is_deleting,
    owner_of,
    status_of,
)
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.plan_steps import PlanState, PlanStep, StepKind
from epochmq_operator.plans.renderer import Differences
from epochmq_operator.resources import API_VERSION, BrokerGroup

MEMBERSHIP = "membership"
"""The plan of a ControllerGroup that changes the number of controllers."""


def own_controllers(group: BrokerGroup) -> dict[str, Any]:
    """The manifest of the ControllerGroup of a broker group that names none."""
    default = group.default_controllers()
    policy = group.spec.update_policy.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    mode = group.spec.member_authentication
    admin = group.spec.admin.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {
        "apiVersion": API_VERSION,
        "kind": "ControllerGroup",
        "metadata": {
            "name": group.name,
            "namespace": group.metadata.namespace,
            "labels": {MANAGED_BY: MANAGER},
        },
        "spec": {
            **_pod_fields(group),
            "replicas": default.spec.replicas,
            **({"updatePolicy": policy} if policy else {}),
            **({MEMBER_AUTHENTICATION: str(mode)} if mode is not None else {}),
            **({"admin": admin} if admin and group.spec.controllers is not None else {}),
        },
    }


def _pod_fields(group: BrokerGroup) -> dict[str, Any]:
    """What `spec.controllers` says of the controllers' pods and volumes."""
    if group.spec.controllers is None:
        return {}
    return group.spec.controllers.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"replicas"}
    )


@dataclass(frozen=True, slots=True)
class ControllersOfGroup:
    """The ControllerGroup `name` of a broker group, and what its steps need. `own` is its manifest if it
    belongs to the broker group alone, else empty. `wanted` is the number of controllers in
    `spec.controllers`; None without. `usable`: it exists and is valid; `missing` says why not."""

    name: str
    owner: Owner
    own: dict[str, Any]
    wanted: int | None
    usable: bool
    missing: str

    def ensure_step(self, observed: ObservedState, differences: Differences) -> PlanStep:
        """The step `controllers`."""
        reason, message = "EnsuringControllers", f"ensures that ControllerGroup {self.name} exists"
        if not self.own:
            done = self.usable
            return PlanStep(StepKind.CONTROLLERS, done, reason, message, self.missing, blocked=not done)
        if self._is_of_user(self._present(observed)):
            return PlanStep(StepKind.CONTROLLERS, self.usable, reason, message, self.missing)
        found = compare_object(observed, differences, self.own, self.owner)
        done = found.state is ObjectState.UP_TO_DATE and self.usable
        compared = ComparedObjects((found,))
        waits_for = compared.waits_for or ("" if found.state is not ObjectState.UP_TO_DATE else self.missing)
        blocked = bool(compared.foreign)
        return PlanStep(
            StepKind.CONTROLLERS,
            done,
            reason,
            message,
            waits_for,
            blocked,
            compared.changed,
            compared.effects,
        )

    def count_step(self, observed: ObservedState) -> PlanStep | None:
        """The step `members`; None if the resource does not say how many controllers it wants."""
        if self.wanted is None or not self.own:
            return None
        present = self._present(observed)
        status = status_of(present or {})
        plan = PlanState.of(status)
        message = f"changes the number of controllers to {self.wanted}"
        changing = plan is not None and not plan.finished and plan.name == MEMBERSHIP
        if status.get(TARGET) == self.wanted and not changing:
            return PlanStep(StepKind.MEMBERS, True, "Membership", message)
        if self._is_of_user(present):
            waits_for = (
                f"ControllerGroup {self.name} was created by a user, who decides its number of controllers: "
                f"scale it to {self.wanted}, or set spec.controllers.replicas to its number"
            )
            return PlanStep(StepKind.MEMBERS, False, "Membership", message, waits_for, blocked=True)
        now = plan.message if plan is not None else ""
        waits_for = f"ControllerGroup {self.name}: {now or 'its reconciliation'}"
        blocked = status.get("phase") == BLOCKED_PHASE
        return PlanStep(StepKind.MEMBERS, False, "Membership", message, waits_for, blocked=blocked)

    def _present(self, observed: ObservedState) -> Manifest | None:
        return observed.object("ControllerGroup", self.name)

    @staticmethod
    def _is_of_user(present: Manifest | None) -> bool:
        return (
            present is not None
            and owner_of(present) is None
            and annotation(present, APPLIED) is None
            and not is_deleting(present)
        )
