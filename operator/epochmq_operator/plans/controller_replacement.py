"""Decides whether a controller whose node or volume is lost may get a new volume, by the steps of
`replica_replacement`.

A controller that has lost its volume has forgotten its vote and the entries that it acknowledged. So the
order is accepted only while another controller leads and a majority, without the lost one, has every
committed entry. A majority cannot do with fewer.

The new controller must not count for what the former one promised:

- If the operator may change the members, the leader first removes the lost controller from the quorum. What
  is committed is then on a majority of those that stay. The new controller has no vote until the steps in
  `quorum_members` add it, after it has copied the log.
- Otherwise the configuration names the founders, and an empty founder has no vote until it has copied the
  log and all others have responded. So all others must be ready. A controller that joins by the log could
  vote too early, so without credentials it is not replaced."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochmq_operator.plans.common_steps import pods_by_name
from epochmq_operator.plans.effects import Effect
from epochmq_operator.plans.observed_state import ObservedPod, ObservedState
from epochmq_operator.plans.quorum_members import QuorumMembers
from epochmq_operator.plans.reported_states import ReportedControllerState
from epochmq_operator.pod_rendering import component_name
from epochmq_operator.quorum_steps import member_id

BEING_CREATED = "the group is being created"


@dataclass(frozen=True, slots=True)
class ControllerCopies:
    """What an order to replace a controller depends on. `pods` are those of the group; `leader` is the pod
    that leads, empty if none is known. `members` are the pods of the quorum's members. `complete` are the
    ready pods that have every committed entry. `removals` are the effects that remove a pod's controller from
    the quorum; none if the operator may not. `founders` are the pods whose configuration names the members.
    `unavailable` says why the group takes no order now; empty if it does."""

    pods: Mapping[str, ObservedPod | None]
    leader: str
    members: frozenset[str]
    complete: frozenset[str]
    removals: Mapping[str, tuple[Effect, ...]]
    founders: frozenset[str]
    unavailable: str = ""

    @classmethod
    def of(cls, observed: ObservedState, quorum: QuorumMembers, *, created: bool) -> ControllerCopies:
        """Collects it from what the controllers report."""
        stateful_set = component_name(quorum.group, quorum.kind.component)
        pods = pods_by_name(stateful_set, quorum.pods)
        ids = {name: member_id(ordinal) for ordinal, name in enumerate(pods)}
        members = frozenset(name for name, one in ids.items() if one in quorum.quorum.members)
        leader = quorum.quorum.leader or ""
        last = _committed(observed, leader)
        complete = frozenset(
            name
            for name in members
            if (pod := pods[name]) is not None and pod.ready and -1 < last <= _committed(observed, name)
        )
        removals = {name: quorum.removal(observed, ids[name]) for name in members if observed.can_reload}
        founders = frozenset(list(pods)[: quorum.founders])
        return cls(pods, leader, members, complete, removals, founders, "" if created else BEING_CREATED)

    def beside(self, pod: str) -> list[str]:
        """The other pods that are ready and have every committed entry."""
        return sorted(self.complete - {pod})

    def kept(self, pod: str) -> str:
        """Where everything is without this pod."""
        return f"every committed entry is in {', '.join(self.beside(pod))}"

    def departure(self, pod: str) -> tuple[Effect, ...]:
        """What is done before the volume of this pod is deleted."""
        return self.removals.get(pod, ())

    def impediment(self, pod: str, *, accepts_fewer: bool) -> str:
        """Why this controller must keep its volume, and what would be lost; empty if it may be replaced."""
        found = self.pods.get(pod)
        if self.unavailable:
            return self.unavailable
        if found is not None and found.ready:
            return f"{pod} is ready, so its volume works"
        if accepts_fewer:
            return "controllers need a majority, so that fewer copies cannot be accepted"
        lost = f"what only {pod} has would be lost"
        if len(self.pods) == 1:
            return f"{pod} is the only controller; {lost}"
        if not self.leader:
            return f"the controllers report no leader, so it is not known what they have committed; {lost}"
        if self.leader == pod:
            return f"{pod} leads the controllers; {lost}"
        needed = len(self.members) // 2 + 1
        copies = self.beside(pod)
        if len(copies) < needed:
            return (
                f"a majority needs {needed} controllers that are ready and have every committed entry, and "
                f"without {pod} these are {', '.join(copies) or 'none'}; missing: "
                f"{', '.join(self._missing(pod))}; {lost}"
            )
        return self._without_removal(pod)

    def _missing(self, pod: str) -> list[str]:
        """The other members that are not ready or lack entries."""
        return sorted(self.members - self.complete - {pod}) or ["none"]

    def _without_removal(self, pod: str) -> str:
        """Why this controller must stay a member; empty if it may be removed, or is no member."""
        if pod not in self.members or pod in self.removals:
            return ""
        if pod not in self.founders:
            return (
                f"{pod} has to be removed from the quorum first, and the sidecars accept no change of the "
                "members without credentials: set spec.admin.tokenSecret"
            )
        missing = self.members - self.complete - {pod}
        if not missing:
            return ""
        return (
            f"an empty controller gets its vote when all others respond, and {', '.join(sorted(missing))} "
            "is not ready or lacks entries; with spec.admin.tokenSecret it need not"
        )


def _committed(observed: ObservedState, pod: str) -> int:
    """The index up to which a controller reports the log as committed; -1 if it reports none."""
    state = observed.states.get(pod)
    index = state.committed_index if isinstance(state, ReportedControllerState) else None
    return -1 if index is None else index
