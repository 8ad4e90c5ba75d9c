"""Simulates a cluster for plans of backups: it runs pods and their program, and has a broker group that
reports states, and a storage."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epochmq_operator.backups import backup_steps
from epochmq_operator.backups.backup_pod import CUT_ANNOTATION, BackupSettings
from epochmq_operator.backups.backup_steps import ObservedBackup
from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.effects import (
    Apply,
    CreateEvent,
    Delete,
    Effect,
    PatchStatus,
    ReconciliationResult,
    SetAnnotation,
)
from epochmq_operator.plans.objects import Ref, ref_of
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.reported_states import ReportedBrokerState, ReportedState
from epochmq_operator.resources.backup import BACKUP_KIND

NAMESPACE = "trade"
BACKED_UP = Ref(BACKUP_KIND, NAMESPACE, "nightly")
SETTINGS = BackupSettings(image="epochmq/spark:1")
URL = "s3://backups/orders?region=eu-central-1"


class ConflictError(Exception):
    """The object has another resourceVersion."""


@dataclass
class FakeBackupCluster:
    """The cluster. `storage` are the orders of the backups at the URL, each with its cut. `error` is what
    pods end with instead of a backup. `hangs`: they never end. `stuck`: their image cannot be pulled.
    `processed` is the confirm offset when the present pod read what was processed."""

    objects: dict[Ref, dict[str, Any]] = field(default_factory=dict)
    events: dict[str, CreateEvent] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    storage: dict[str, int] = field(default_factory=dict)
    processed: dict[str, int] = field(default_factory=dict)
    now: float = 1_800_000_000.0
    error: str = ""
    warning: str = ""
    hangs: bool = False
    stuck: bool = False
    master: str = "orders-broker-1"
    mode: str = "Controller"
    confirmed: int = 1000
    settings: BackupSettings = SETTINGS
    asked: int = 0
    _uids: int = 0

    def backup(self, **spec: Any) -> None:
        """Applies a backup, and a group with its volumes if there is none yet."""
        head = {"apiVersion": "epochmq.io/v1alpha1", "metadata": {"name": "orders", "namespace": NAMESPACE}}
        tolerations = [{"key": "spot", "operator": "Exists"}]
        group = {"replicas": 3, "mode": self.mode, "brokerName": "orders-a", "tolerations": tolerations}
        self.put({**head, "kind": "BrokerGroup", "spec": group})
        for ordinal in range(3):
            meta = {"name": f"store-orders-broker-{ordinal}", "namespace": NAMESPACE}
            self.put({"kind": "PersistentVolumeClaim", "metadata": meta})
            meta = {"name": f"orders-broker-{ordinal}", "namespace": NAMESPACE}
            self.put({"kind": "Pod", "metadata": meta, "spec": {"nodeName": f"n{ordinal % 2}"}})
        spec = {"brokerGroup": "orders", "url": URL, **spec}
        meta = {"name": BACKED_UP.name, "namespace": NAMESPACE}
        self.put({**head, "kind": BACKUP_KIND, "metadata": meta, "spec": spec})

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
                "resourceVersion": "1",
            }
        else:
            made["metadata"] = {**old["metadata"], **made["metadata"]}
            made.setdefault("status", old.get("status", {}))
        self.objects[ref] = made

    @property
    def status(self) -> dict[str, Any]:
        """The backup's status."""
        found: dict[str, Any] = self.objects[BACKED_UP].get("status") or {}
        return found

    def condition(self, wanted: str) -> tuple[str, str]:
        """(status, reason) of one of its conditions."""
        for one in self.status.get("conditions", ()):
            if one["type"] == wanted:
                return one["status"], one["reason"]
        return "", ""

    def pods(self) -> list[dict[str, Any]]:
        """The pods of runs."""
        return [found for found in self.objects.values() if found["metadata"].get("labels")]

    def states(self) -> dict[str, ReportedState]:
        """The states of the replicas."""
        return {
            pod: ReportedBrokerState(
                broker_name="orders-a",
                broker_id=n + 1,
                role="master" if pod == self.master else "replica",
                master_epoch=4,
                sync_state_set=[1, 2, 3],
                confirm_offset=self.confirmed,
                confirmed_by_all=True,
                max_offset=self.confirmed + 200,
            )
            for n in range(3)
            if (pod := f"orders-broker-{n}")
        }

    def look(self) -> ReconciliationResult:
        """Reconciles once."""
        observed = ObservedState(self.objects[BACKED_UP], dict(self.objects))
        seen = ObservedBackup(observed)
        if backup_steps.wants_states(observed):
            self.asked += 1
            seen = ObservedBackup(observed, self.states(), backup_steps.ready_pod(observed))
        return backup_steps.reconcile(self.settings, seen, self.now)

    def act(self, effect: Effect) -> None:
        """Carries out one effect as the driver does. ConflictError if the object has changed."""
        match effect:
            case Apply():
                self.put(effect.manifest)
            case Delete():
                found = self.objects.get(effect.ref)
                if found is not None and found["metadata"]["uid"] == effect.uid:
                    self.remove(effect.ref)
            case SetAnnotation():
                found = self.objects.get(effect.ref)
                if found is None or found["metadata"]["resourceVersion"] != effect.resource_version:
                    raise ConflictError(effect)
                found["metadata"]["annotations"][effect.key] = effect.value
                self._changed(found)
            case PatchStatus():
                self.objects[BACKED_UP]["status"] = copy.deepcopy(dict(effect.status))
            case CreateEvent():
                self.events.setdefault(effect.key, effect)

    @staticmethod
    def _changed(found: dict[str, Any]) -> None:
        found["metadata"]["resourceVersion"] = str(int(found["metadata"]["resourceVersion"]) + 1)

    def remove(self, ref: Ref) -> None:
        """Deletes an object and all that it owns."""
        gone = self.objects.pop(ref)["metadata"]["uid"]
        for other, found in list(self.objects.items()):
            owners = found["metadata"].get("ownerReferences") or ()
            if other in self.objects and any(one["uid"] == gone for one in owners):
                self.remove(other)

    def tick(self, seconds: float = 1.0) -> None:
        """Advances time, the log and the pods."""
        self.now += seconds
        self.confirmed += 10
        for found in self.pods():
            if found.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                continue
            if self.stuck:
                waiting = {"state": {"waiting": {"reason": "ErrImagePull"}}}
                found["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
            elif found.get("status", {}).get("phase") != "Running":
                self.processed[found["metadata"]["uid"]] = self.confirmed
                ready = {"type": "Ready", "status": "True"}
                found["status"] = {"phase": "Running", "conditions": [ready]}
            elif not self.hangs and CUT_ANNOTATION in found["metadata"]["annotations"]:
                found["status"] = self._end(found)
            self._changed(found)

    def _end(self, found: dict[str, Any]) -> dict[str, Any]:
        words = found["spec"]["containers"][0]["args"]
        order, replica = words[words.index("--order") + 1], words[words.index("--replica") + 1]
        cut = int(found["metadata"]["annotations"][CUT_ANNOTATION])
        assert cut >= self.processed[found["metadata"]["uid"]], "the cut precedes what was processed"
        if self.error:
            ended = {"exitCode": 1, "message": json.dumps({"error": self.error})}
            return {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
        self.storage.setdefault(order, cut)
        message = {
            "id": f"20270115T080000Z-{list(self.storage).index(order):06x}",
            "parent": "",
            "replica": replica,
            "logStart": 0,
            "logEnd": self.storage[order],
            "lastStoredMs": 1_799_999_999_000,
            "bytes": 5000,
            "uploadedBytes": 700,
            "pruned": 1,
            "warning": self.warning,
        }
        ended = {"exitCode": 0, "message": json.dumps(message)}
        return {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": ended}}]}

    def run(self, passes: int = 60) -> None:
        """Reconciles and advances time until there is nothing left to do."""
        for _ in range(passes):
            made = self.look()
            for effect in made.effects:
                self.act(effect)
            self.tick()
            if not made.effects and "run" not in self.status:
                return
