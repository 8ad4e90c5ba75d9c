"""Computes the steps that change the number of members of a Raft group, one member at a time, by the rules in
`quorum_steps`. The members are controllers, or the replicas of a broker group in the mode DLedger.

- `add-POD`: the status records one member more; `objects` and `replicas` then start it.
- `admit-POD`: a started process becomes a member. Waits until it responds; a controller also waits until all
  brokers list it: one that does not would get no write lease while that controller leads.
- `remove-POD`: the process is removed from the members. When that is committed, the status records one member
  fewer, and `replicas` stops its pod. A leader that is to be removed first transfers its leadership.
- `founders`: the Raft log names the members, so the status records that the configuration no longer does.
  Pods that start later have no vote until the log names them; running ones need no restart.
- `members` of controllers, `peers` of replicas: waits for something that no other step waits for.

The leader makes the change, through its sidecar. A change may be requested twice, so an operator that was
killed is followed by one that continues."""

# pure: data in, steps out.

from __future__ import annotations

from dataclasses import dataclass

from epochmq_operator.manifests.kept_templates import mounted_config_maps, template_spec
from epochmq_operator.manifests.names import address
from epochmq_operator.plans.common_steps import TARGET, unready_pods
from epochmq_operator.plans.effects import ChangeQuorumMembers
from epochmq_operator.plans.known_controllers import late_groups
from epochmq_operator.plans.objects import Manifest, Ref, metadata, status_of
from epochmq_operator.plans.observed_state import (
    ObservedPod,
    ObservedQuorum,
    ObservedState,
    claims_of_set,
)
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.pod_rendering import BROKER_DLEDGER_PORT, CONTROLLER_PORT, component_name
from epochmq_operator.pods import Component
from epochmq_operator.quorum_steps import (
    AddMember,
    Founders,
    ObservedMembers,
    QuorumStep,
    RemoveMember,
    StartMember,
    Wait,
    founders_of,
    member_id,
    next_quorum_step,
    ordinal_of,
)
from epochmq_operator.resources import REPLICAS_MAX
from epochmq_protocol import properties

FOUNDERS = "founders"
"""The field of a group's status with the number of its founders."""
LISTED_MAX = 3


@dataclass(frozen=True, slots=True)
class QuorumKind:
    """A kind of Raft group: the component of its members, their port for each other, the configuration keys
    that name them, what one member and all of them are called, the step that waits, and the
    reasons of the Events about a member that is started or removed."""

    component: Component
    port: int
    peers_key: str
    joins_key: str
    noun: str
    whole: str
    waiting: StepKind
    adding: str
    removing: str


CONTROLLERS = QuorumKind(
    Component.CONTROLLER,
    CONTROLLER_PORT,
    "controllerDLegerPeers",
    "joinControllerGroup",
    "controller",
    "the quorum",
    StepKind.MEMBERS,
    "AddingController",
    "RemovingController",
)
REPLICAS = QuorumKind(
    Component.BROKER,
    BROKER_DLEDGER_PORT,
    "dLegerPeers",
    "joinDLedgerGroup",
    "replica",
    "the group",
    StepKind.PEERS,
    "AddingReplica",
    "RemovingReplica",
)
"""The replicas of a broker group in the mode DLedger."""


def recorded_founders(
    observed: ObservedState, kind: QuorumKind, stateful_set: str, count: int, *, created: bool
) -> int:
    """The number of founders of a quorum of `count` members (`quorum_steps.founders_of`). A status without a
    record is that of a new group, of an earlier release, or was deleted. Then the number is that of the
    configuration that was applied last."""
    recorded = status_of(observed.resource).get(FOUNDERS)
    present = observed.object("StatefulSet", stateful_set)
    if type(recorded) is int and 0 <= recorded <= REPLICAS_MAX and (created or present is not None):
        return recorded
    configured = None if present is None else _configured_founders(observed, kind, present)
    return count if configured is None else configured


def _configured_founders(observed: ObservedState, kind: QuorumKind, stateful_set: Manifest) -> int | None:
    """The number of founders that the configuration of a StatefulSet names; None without a configuration."""
    text = _configuration(observed, stateful_set, 0)
    if text is None:
        return None
    keys = properties.parse(text)
    joins = keys.get(kind.joins_key) == "true"
    return 0 if joins else len(keys.get(kind.peers_key, "").split(";"))


def _configuration(observed: ObservedState, stateful_set: Manifest, ordinal: int) -> str | None:
    """The configuration of the pod with this ordinal in a StatefulSet's template; None without one."""
    file = f"{metadata(stateful_set).get('name')}-{ordinal}.conf"
    for name in mounted_config_maps(template_spec(stateful_set)):
        text = ((observed.object("ConfigMap", name) or {}).get("data") or {}).get(file)
        if isinstance(text, str):
            return text
    return None


def founders_of_configuration(
    observed: ObservedState, stateful_set: str, founders: int, number: int
) -> Founders:
    """The founders with which the configuration is rendered, for up to this number of members. An earlier
    release rendered none for members that join."""
    present = observed.object("StatefulSet", stateful_set)
    missing = present is not None and _configuration(observed, present, number - 1) is None
    return Founders(founders, complete=not missing)


@dataclass(frozen=True, slots=True)
class QuorumMembers:
    """The processes of a group and the members of their quorum. `pods` are those of the processes that are to
    run at present, `wanted` is the number in the spec."""

    kind: QuorumKind
    group: str
    namespace: str
    wanted: int
    founders: int
    pods: tuple[ObservedPod | None, ...]
    quorum: ObservedQuorum

    @property
    def members(self) -> ObservedMembers:
        """The input of `next_quorum_step`."""
        names = {self._pod_name(ordinal): member_id(ordinal) for ordinal in range(len(self.pods))}
        return ObservedMembers(
            running=len(self.pods),
            wanted=self.wanted,
            members=self.quorum.members,
            ready=frozenset(names[pod.name] for pod in self.pods if pod is not None and pod.ready),
            responding=frozenset(names[pod] for pod in self.quorum.responding if pod in names),
        )

    @property
    def known(self) -> bool:
        """Whether a leader reports the members."""
        return self.quorum.leader is not None and bool(self.quorum.members)

    @property
    def incomplete(self) -> bool:
        """Whether a change has begun: not exactly the members' pods run, the founders have to be recorded, or
        the number is even, so that a restart could leave no majority."""
        return self.known and (self._unrecorded or not self.members.complete or len(self.pods) % 2 == 0)

    def comes_first(self, step: PlanStep) -> bool:
        """Whether a step of the change comes before all members are ready: the one that is to go may be the
        one that is not ready."""
        return self.incomplete or step.kind is StepKind.REMOVE

    @property
    def voters(self) -> tuple[ObservedPod | None, ...]:
        """The pods of the members; all, while no leader reports the members."""
        if not self.known:
            return self.pods
        return tuple(
            pod for ordinal, pod in enumerate(self.pods) if member_id(ordinal) in self.quorum.members
        )

    @property
    def joining(self) -> frozenset[str]:
        """The names of the pods whose processes are not members yet."""
        if not self.known:
            return frozenset()
        ordinals = range(len(self.pods))
        return frozenset(self._pod_name(n) for n in ordinals if member_id(n) not in self.quorum.members)

    @property
    def unready(self) -> list[str]:
        """One line for each pod that is not ready, apart from those that are not members yet."""
        joining = self.joining
        lines = unready_pods(self.pods, self._set_name)
        return [line for line in lines if line.split()[0] not in joining]

    @property
    def _set_name(self) -> str:
        return component_name(self.group, self.kind.component)

    @property
    def _present_founders(self) -> int:
        return founders_of(self.founders, self.quorum.members)

    @property
    def _unrecorded(self) -> bool:
        return self.founders != self._present_founders

    def _pod_name(self, ordinal: int) -> str:
        return f"{self._set_name}-{ordinal}"

    def step(self, observed: ObservedState) -> PlanStep | None:
        """The next step; None if the members are as wanted."""
        if not self.known:
            changes = len(self.pods) != self.wanted
            return (
                self._waiting(f"the {self.kind.noun}s report no leader and its members") if changes else None
            )
        if self._unrecorded and any(ordinal_of(member) is not None for member in self.quorum.members):
            found: PlanStep | None = self._record_founders(observed)
        else:
            following = next_quorum_step(self.members)
            found = None if following is None else self._plan_step(observed, following)
        if found is not None and found.effects and not observed.can_reload:
            return self._no_credentials()
        return found

    def _plan_step(self, observed: ObservedState, following: QuorumStep) -> PlanStep:
        match following:
            case StartMember(running):
                name = self._pod_name(running - 1)
                if not observed.can_reload:
                    return self._no_credentials()
                return PlanStep(
                    StepKind.ADD, False, self.kind.adding, f"starts {name}", target=running, subject=name
                )
            case AddMember(ordinal):
                return self._admit(observed, ordinal)
            case RemoveMember(ordinal):
                return self._remove(observed, ordinal)
            case Wait(reason):
                return self._waiting(reason)

    def _admit(self, observed: ObservedState, ordinal: int) -> PlanStep:
        name = self._pod_name(ordinal)
        late = late_groups(observed, ordinal + 1)
        return PlanStep(
            StepKind.ADMIT,
            False,
            "AddingMember",
            f"makes {name} a member of {self.kind.whole}",
            f"the brokers of {', '.join(late[:LISTED_MAX])} do not list {name} yet" if late else "",
            effects=self._change(observed, member_id(ordinal), self._address(ordinal)),
            subject=name,
        )

    def _remove(self, observed: ObservedState, ordinal: int) -> PlanStep:
        name = self._pod_name(ordinal)
        return PlanStep(
            StepKind.REMOVE,
            False,
            self.kind.removing,
            f"removes {name} from {self.kind.whole}; its volume stays",
            effects=self._change(observed, member_id(ordinal), None),
            recorded_after={TARGET: min(len(self.pods), ordinal)},
            subject=name,
        )

    def _record_founders(self, observed: ObservedState) -> PlanStep:
        """Has the leader add a member that it has. That succeeds if the membership is committed."""
        ordinals = (ordinal_of(member) for member in self.quorum.members)
        ordinal = min(one for one in ordinals if one is not None)
        return PlanStep(
            StepKind.FOUNDERS,
            False,
            "RecordingMembers",
            "records that the Raft log names the members",
            effects=self._change(observed, member_id(ordinal), self._address(ordinal)),
            recorded_after={FOUNDERS: self._present_founders},
        )

    def removal(self, observed: ObservedState, member: str) -> tuple[ChangeQuorumMembers, ...]:
        """Has the leader remove this member, whose pod stays."""
        return self._change(observed, member, None)

    def _change(
        self, observed: ObservedState, member: str, member_address: str | None
    ) -> tuple[ChangeQuorumMembers, ...]:
        leader = self.quorum.leader or ""
        uid = str(metadata(observed.object("Pod", leader) or {}).get("uid", ""))
        return (ChangeQuorumMembers(Ref("Pod", self.namespace, leader), uid, member, member_address),)

    def _address(self, ordinal: int) -> str:
        host = address(self._pod_name(ordinal), self.group, self.kind.component, self.namespace)
        return f"{host}:{self.kind.port}"

    def _waiting(self, reason: str) -> PlanStep:
        foreign = any(ordinal_of(member) is None for member in self.quorum.members)
        message = f"changes the number of {self.kind.noun}s to {self.wanted}"
        unready = unready_pods(self.pods, self._set_name)
        waits_for = "; ".join([reason, *unready[:LISTED_MAX]])
        return PlanStep(self.kind.waiting, False, "Membership", message, waits_for, blocked=foreign)

    def _no_credentials(self) -> PlanStep:
        return PlanStep(
            self.kind.waiting,
            False,
            "Membership",
            f"changes the number of {self.kind.noun}s to {self.wanted}",
            "the sidecars accept no change of the members without credentials: set spec.admin.tokenSecret; "
            f"{len(self.pods)} {self.kind.noun}s keep running",
            blocked=True,
        )

    def check_claims(
        self, observed: ObservedState, stateful_set: Manifest | None, step: PlanStep, *, created: bool
    ) -> PlanStep:
        """The step that creates the StatefulSet, blocked if volume claims of another number of members
        exist."""
        if step.done or step.waits_for or observed.object("StatefulSet", self._set_name) is not None:
            return step
        claims = claims_of_set(observed, stateful_set) if stateful_set is not None else None
        if claims is None or not claims.ordinals or len(claims.ordinals) == len(self.pods):
            return step
        if created and claims.ordinals.issuperset(range(self.founders)):
            return step  # Others have no vote before the Raft log names them.
        before = len(claims.ordinals)
        return PlanStep(
            step.kind,
            False,
            step.reason,
            step.message,
            f"volume claims of {before} {self.kind.noun}s exist from an earlier group, but spec.replicas is "
            f"{self.wanted}: a majority of another number may lack committed entries; set "
            f"spec.replicas to {before}, or delete the claims of {self._set_name}",
            blocked=True,
            subject=step.subject,
        )
