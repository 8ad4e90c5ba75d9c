"""Simulates a cluster for plans of audits: it runs pods, collects garbage, and has a broker group that
reports states."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epochmq_operator.audits import plan
from epochmq_operator.audits.manifests import AuditSettings
from epochmq_operator.audits.plan import ObservedAudit
from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL
from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.effects import (
    Apply,
    CreateEvent,
    Delete,
    Effect,
    PatchStatus,
    ReconciliationResult,
)
from epochmq_operator.plans.objects import Ref, ref_of
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedControllerState,
    ReportedMemberGroup,
    ReportedReplica,
    ReportedReplicaGroup,
    ReportedState,
)
from epochmq_operator.resources.audit import AUDIT_KIND

NAMESPACE = "trade"
AUDITED = Ref(AUDIT_KIND, NAMESPACE, "nightly")
SETTINGS = AuditSettings(image="epochmq/spark:1")
HEALTHY = {"verdict": "healthy", "severities": {}, "findings": [], "report": True}
DAMAGED = {
    "verdict": "damaged",
    "severities": {"error": 2},
    "findings": ["error: record.checksum: …"],
    "report": True,
}


@dataclass
class FakeAuditCluster:
    """The cluster. `verdict` is what drivers report, None: they fail. `hangs`: they never end. `stuck`,
    `unready`, `failing`: parts of the names of pods whose image cannot be pulled, that never become ready, or
    that end at once. `silent` replicas of a DLedger group do not respond."""

    objects: dict[Ref, dict[str, Any]] = field(default_factory=dict)
    events: dict[str, CreateEvent] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    now: float = 1_800_000_000.0
    verdict: Mapping[str, Any] | None = field(default_factory=lambda: dict(HEALTHY))
    hangs: bool = False
    stuck: str = ""
    unready: str = ""
    failing: str = ""
    master: str = "orders-broker-1"
    mode: str = "Controller"
    silent: set[str] = field(default_factory=set)
    asked: int = 0
    _uids: int = 0

    def audit(self, **spec: Any) -> None:
        """Applies an audit, and a group with its volumes if there is none yet."""
        head = {"apiVersion": "epochmq.io/v1alpha1", "metadata": {"name": "orders", "namespace": NAMESPACE}}
        self.put({**head, "kind": "BrokerGroup", "spec": {"replicas": 3, "mode": self.mode}})
        for ordinal in range(3):
            self.put(
                {
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": f"store-orders-broker-{ordinal}", "namespace": NAMESPACE},
                    "status": {"capacity": {"storage": "5Gi"}},
                }
            )
            self.put(
                {
                    "kind": "Pod",
                    "metadata": {"name": f"orders-broker-{ordinal}", "namespace": NAMESPACE},
                    "spec": {"nodeName": f"n{ordinal % 2}"},
                }
            )
        meta = {"name": AUDITED.name, "namespace": NAMESPACE}
        self.put({**head, "kind": AUDIT_KIND, "metadata": meta, "spec": {"brokerGroup": "orders", **spec}})

    def put(self, manifest: Mapping[str, Any]) -> None:
        """Creates or changes an object."""
        made = copy.deepcopy(dict(manifest))
        ref = ref_of(made)
        old = self.objects.get(ref)
        if old is None:
            self._uids += 1
            self.created.append(str(ref))
            made["metadata"] |= {
                "uid": f"uid-{self._uids}",
                "creationTimestamp": timestamp(self.now),
                "generation": 1,
            }
        else:
            made["metadata"] = {**old["metadata"], **made["metadata"]}
            made.setdefault("status", old.get("status", {}))
        self.objects[ref] = made

    @property
    def status(self) -> dict[str, Any]:
        """The audit's status."""
        found: dict[str, Any] = self.objects[AUDITED].get("status") or {}
        return found

    def condition(self, wanted: str) -> tuple[str, str]:
        """(status, reason) of one of its conditions."""
        for one in self.status.get("conditions", ()):
            if one["type"] == wanted:
                return one["status"], one["reason"]
        return "", ""

    def own(self) -> list[str]:
        """The audit's objects, without the audit itself."""
        return sorted(str(ref) for ref, found in self.objects.items() if self._of_audit(found))

    @staticmethod
    def _of_audit(found: Mapping[str, Any]) -> bool:
        labels = found["metadata"].get("labels") or {}
        return bool(labels.get(KIND_LABEL) == AUDIT_KIND and labels.get(GROUP_LABEL) == AUDITED.name)

    def states(self) -> dict[str, ReportedState]:
        """The states of the replicas: two are in sync, the third lags."""
        if self.mode == "MasterSlave":
            return self._master_slave_states()
        if self.mode == "DLedger":
            return self._dledger_states()
        states: dict[str, ReportedState] = {
            f"orders-broker-{n}": ReportedBrokerState(
                broker_name="orders",
                broker_id=n + 1,
                role="master" if f"orders-broker-{n}" == self.master else "replica",
                master_epoch=4,
                sync_state_set=[1, 2],
                confirm_offset=1000,
                confirmed_by_all=True,
                max_offset=700 if n == 2 else 1200,
            )
            for n in range(3)
        }
        kept = ReportedReplicaGroup(
            broker_name="orders",
            master_broker_id=2,
            master_epoch=4,
            sync_state_set=[1, 2],
            replicas=[ReportedReplica(broker_id=n) for n in (1, 2, 3)],
        )
        states["orders-controller-0"] = ReportedControllerState(role="leader", term=3, groups=[kept])
        return states

    def _master_slave_states(self) -> dict[str, ReportedState]:
        """The same without controllers; without its master, the first slave acts for it."""
        roles = ("master" if self.master else None, "slave" if self.master else "acting", "slave")
        return {
            f"orders-broker-{n}": ReportedBrokerState(
                broker_name="orders",
                broker_id=n,
                role="master" if role == "master" else "replica",
                master_epoch=0,
                sync_state_set=[0] if role == "master" else [],
                confirm_offset=1000 if role == "master" else 0,
                max_offset=700 if n == 2 else 1000,
                controlled=False,
                group=ReportedMemberGroup(role=role),  # type: ignore[arg-type]
            )
            for n, role in enumerate(roles)
            if role is not None
        }

    def _dledger_states(self) -> dict[str, ReportedState]:
        """The same of a DLedger group. The master has 1,200 bytes, of which 1,000 are committed."""
        return {
            pod: ReportedBrokerState(
                broker_name="orders",
                broker_id=n + 1,
                role="master" if pod == self.master else "replica",
                master_epoch=4,
                confirm_offset=700 if n == 2 else 1000,
                max_offset=1200,
                controlled=False,
            )
            for n in range(3)
            if (pod := f"orders-broker-{n}") not in self.silent
        }

    def look(self) -> ReconciliationResult:
        """Reconciles once."""
        observed = ObservedState(self.objects[AUDITED], dict(self.objects))
        seen = ObservedAudit(observed)
        if plan.wants_cut(observed):
            self.asked += 1
            controlled = self.mode == "Controller"
            copies = {f"orders-broker-{n}": b"1\n0\n4-0\n" for n in range(3) if controlled}
            states = self.states()
            seen = ObservedAudit(
                ObservedState(self.objects[AUDITED], dict(self.objects), states), copies, states
            )
        return plan.reconcile(SETTINGS, seen, self.now)

    def act(self, effect: Effect) -> None:
        """Carries out one effect as the driver does."""
        match effect:
            case Apply():
                self.put(effect.manifest)
            case Delete():
                found = self.objects.get(effect.ref)
                if found is not None and found["metadata"]["uid"] == effect.uid:
                    self.remove(effect.ref)
            case PatchStatus():
                self.objects[AUDITED]["status"] = copy.deepcopy(dict(effect.status))
            case CreateEvent():
                self.events.setdefault(effect.key, effect)

    def remove(self, ref: Ref) -> None:
        """Deletes an object and all that it owns."""
        gone = self.objects.pop(ref)["metadata"]["uid"]
        for other, found in list(self.objects.items()):
            owners = found["metadata"].get("ownerReferences") or ()
            if other in self.objects and any(one["uid"] == gone for one in owners):
                self.remove(other)

    def tick(self, seconds: float = 1.0) -> None:
        """Advances time and the pods."""
        self.now += seconds
        for ref, found in list(self.objects.items()):
            if ref.kind != "Pod" or not self._of_audit(found):
                continue
            if found["spec"]["activeDeadlineSeconds"] < 1:
                continue
            if self.stuck and self.stuck in ref.name:
                waiting = {"state": {"waiting": {"reason": "ErrImagePull"}}}
                found["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
            elif self.failing and self.failing in ref.name:
                ended = {"state": {"terminated": {"exitCode": 2, "reason": "Error"}}}
                found["status"] = {"phase": "Failed", "containerStatuses": [ended]}
            elif self.unready and self.unready in ref.name:
                found["status"] = {"phase": "Pending"}
            elif ref.name.endswith("-driver") and found.get("status", {}).get("phase") == "Running":
                self._end(found)
            else:
                ready = {"type": "Ready", "status": "True"}
                found["status"] = {"phase": "Running", "podIP": "10.0.0.7", "conditions": [ready]}

    def _end(self, found: dict[str, Any]) -> None:
        if self.hangs:
            return
        if self.verdict is None:
            ended = {"exitCode": 1, "message": json.dumps({"error": "OSError: no"})}
            found["status"]["phase"] = "Failed"
        else:
            ended = {"exitCode": 0, "message": json.dumps(self.verdict)}
            found["status"]["phase"] = "Succeeded"
        found["status"]["containerStatuses"] = [{"state": {"terminated": ended}}]

    def run(self, passes: int = 60) -> None:
        """Reconciles and advances time until there is nothing left to do."""
        for _ in range(passes):
            made = self.look()
            for effect in made.effects:
                self.act(effect)
            self.tick()
            if not made.effects and "run" not in self.status:
                return
