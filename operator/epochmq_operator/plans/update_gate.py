"""Decides whether an update of a group may begin and may restart pods: `spec.updatePolicy`.

An update that may not begin yet changes nothing: the StatefulSets keep their templates, so that a pod which
restarts for another reason comes back as it was."""

# pure: data in, data out.

from __future__ import annotations

from dataclasses import dataclass

from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.objects import APPROVE_UPDATE, Manifest, annotation, metadata
from epochmq_operator.resources.cron import parse_schedule
from epochmq_operator.resources.update_policy import OperatorChanges, UpdateApproval, UpdatePolicySpec


@dataclass(frozen=True, slots=True)
class UpdateGate:
    """Who or what may start updates of a `resource`, such as `brokergroup orders`. `approved` is the update
    that a person approved; `now` is in seconds since 1970. A group that is being created has no update.
    `full` says why no update may begin now because many other groups are being updated; empty if one may."""

    policy: UpdatePolicySpec
    resource: str
    approved: str | None
    now: float
    created: bool
    full: str = ""

    @classmethod
    def of(
        cls, resource: Manifest, policy: UpdatePolicySpec, now: float, *, created: bool, full: str = ""
    ) -> UpdateGate:
        """The gate of this resource."""
        name = f"{str(resource.get('kind')).lower()} {metadata(resource).get('name')}"
        return cls(policy, name, annotation(resource, APPROVE_UPDATE), now, created, full)

    @property
    def follows_operator(self) -> bool:
        """Whether another rendering of the same inputs is an update."""
        return self.policy.operator_changes is OperatorChanges.FOLLOW

    def closed_because(self, update: str) -> str:
        """What this update waits for; empty: it may begin, and restart pods now."""
        return self._not_allowed_because(update) or (self.full if self.created else "")

    def waits_for_turn(self, update: str) -> bool:
        """Whether this update waits only until fewer other groups are being updated."""
        return self.created and bool(self.full) and not self._not_allowed_because(update)

    def opens_later(self, update: str) -> bool:
        """Whether this update waits only for a maintenance window that will begin."""
        supervised = self.policy.approval is UpdateApproval.SUPERVISED
        return bool(self._not_allowed_because(update)) and not supervised and self._next_window() is not None

    def _next_window(self) -> float | None:
        """When the next maintenance window begins, in seconds since 1970; None: never."""
        begins = [parse_schedule(window.schedule).next_after(self.now) for window in self.policy.windows]
        return min((one for one in begins if one is not None), default=None)

    def _not_allowed_because(self, update: str) -> str:
        """Why the group's policy does not allow the update now. A person may approve an update also outside
        of the windows."""
        if not self.created or self.approved == update:
            return ""
        approve = f"kubectl annotate --overwrite {self.resource} {APPROVE_UPDATE}={update}"
        if self.policy.approval is UpdateApproval.SUPERVISED:
            return f"updates are supervised: to start this one, {approve}"
        if self.policy.is_open(self.now):
            return ""
        first = self._next_window()
        when = f"begins at {timestamp(first)}" if first is not None else "never begins"
        return f"the next maintenance window {when}; to update now, {approve}"
