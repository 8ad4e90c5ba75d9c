"""Simulates a cluster that also runs the pods of restores, and checks what they may do."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

from epochmq_operator.manifests import ManifestSettings
from epochmq_operator.manifests.restore_pod import BACKUP_ANNOTATION
from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.effects import Apply, Create, Delete, Effect, SetAnnotation
from epochmq_operator.plans.objects import Ref, annotation, ref_of
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.plans.reported_states import ReportedReplicaGroup, ReportedState
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer

SETTINGS = ManifestSettings(
    "epochmq/broker:1", "epochmq/controller:1", "epochmq-system", audit_image="epochmq/spark:1"
)
ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
BROKERS = Ref("StatefulSet", NAMESPACE, "orders-broker")
URL = "s3://backups/orders?region=eu-central-1"
NEWEST = "20300131T140000Z-0a1b2c"
END = 73_400_320


@dataclass
class RestoringApi(FakeApi):
    """The cluster. `newest` is the id of the newest backup at the URL. `errors` are what pods end with
    instead; `hanging` pods never end; `homeless` ones find no node; `evicted` ones are ended by their node.
    `volumes` are what the volumes hold, by the uid of their claim: the backup, or what brokers wrote.
    `restored` counts the restores of each claim."""

    renderer: Renderer = field(default_factory=lambda: manifest_renderer(SETTINGS))
    newest: str = NEWEST
    errors: dict[str, str] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    homeless: set[str] = field(default_factory=set)
    evicted: set[str] = field(default_factory=set)
    volumes: dict[str, str] = field(default_factory=dict)
    known: bool = False
    written: list[Any] = field(default_factory=list)
    """The volume claims that were created and applied, in order."""

    def group(self, **spec: Any) -> None:
        """Applies the group."""
        self.put("BrokerGroup", "orders", {"replicas": 3, "restoreFrom": {"url": URL}, **spec})

    def claims(self) -> list[str]:
        """The claims of brokers' volumes."""
        return sorted(
            one.name for one in self.objects if one.kind == "PersistentVolumeClaim" and "broker" in one.name
        )

    def contents(self) -> list[str]:
        """What the brokers' volumes hold, by ordinal; empty without anything."""
        refs = [Ref("PersistentVolumeClaim", NAMESPACE, name) for name in self.claims()]
        return [self.volumes.get(self.uid(ref), "") for ref in refs]

    def restore_pods(self) -> list[str]:
        """The pods of the restore."""
        return [name for name in self.pods() if "-restore" in name]

    def act(self, effect: Effect, resource: Ref) -> None:
        """Carries out one effect as the driver does."""
        if isinstance(effect, Create | Apply) and effect.manifest["kind"] == "PersistentVolumeClaim":
            self.written.append(effect.manifest)
        match effect:
            case Create():
                ref = ref_of(effect.manifest)
                if ref not in self.objects:
                    self.created[str(ref)] += 1
                    self.writes += 1
                    self._store(ref, copy.deepcopy(dict(effect.manifest)))
                    self.objects[ref]["status"] = {"phase": "Pending"}
            case SetAnnotation():
                found = self.objects.get(effect.ref)
                if found is not None:
                    self.writes += 1
                    meta = found["metadata"]
                    meta["annotations"] = {**(meta.get("annotations") or {}), effect.key: effect.value}
            case Apply() if effect.manifest["kind"] == "StatefulSet" and ref_of(effect.manifest) == BROKERS:
                self._check_start(effect.manifest["spec"]["replicas"])
                super().act(effect, resource)
            case Apply() if effect.manifest["kind"] == "Pod":
                assert BROKERS not in self.objects, "a volume is restored beside brokers"
                super().act(effect, resource)
                self.objects[ref_of(effect.manifest)]["metadata"]["creationTimestamp"] = timestamp(self.now)
            case Delete() if effect.ref.kind == "Pod" and "-restore-" in effect.ref.name:
                super().act(effect, resource)
            case _:
                super().act(effect, resource)

    def _check_start(self, replicas: int) -> None:
        """A group starts with volumes that are all alike."""
        if BROKERS not in self.objects and self.objects[ORDERS]["spec"].get("restoreFrom"):
            assert len(self.contents()) == replicas
            assert len(set(self.contents())) == 1, self.contents()
            assert all(self.contents()), "the group starts empty"

    def tick(self) -> None:
        """One round; then the pods of restores go on, and brokers write to their volumes."""
        super().tick()
        for name in self.restore_pods():
            self._go_on(self.objects[Ref("Pod", NAMESPACE, name)])
        for name in self.pods():
            claim = Ref("PersistentVolumeClaim", NAMESPACE, f"store-{name}")
            if self._runs(name) and claim in self.objects and self._ready(name):
                self.volumes.setdefault(self.uid(claim), "written by a broker")

    def _go_on(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        phase = (pod.get("status") or {}).get("phase")
        if phase in ("Succeeded", "Failed"):
            return
        if name in self.homeless:
            full = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
            pod["status"] = {"phase": "Pending", "conditions": [full]}
            return
        pod["spec"]["nodeName"] = "n0"
        if phase != "Running":
            pod["status"] = {"phase": "Running"}
        elif name in self.evicted:
            pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}
        elif name in self.errors:
            pod["status"] = _ended("Failed", 1, {"error": self.errors[name]})
        elif name not in self.hanging:
            self._succeed(pod)

    def _succeed(self, pod: dict[str, Any]) -> None:
        words = pod["spec"]["containers"][0]["args"]
        if words[0] == "choose":
            given = words[words.index("--backup-id") + 1] if "--backup-id" in words else self.newest
            pod["status"] = _ended("Succeeded", 0, {"backup": given, "logStart": 0, "logEnd": END})
            return
        backup = annotation(pod, BACKUP_ANNOTATION)
        if backup is None:
            return
        (claim,) = (one for one in pod["spec"]["volumes"] if one["name"] == "store")
        uid = self.uid(Ref("PersistentVolumeClaim", NAMESPACE, claim["persistentVolumeClaim"]["claimName"]))
        if self.volumes.setdefault(uid, backup) != backup:
            pod["status"] = _ended("Failed", 1, {"error": "/volume is not empty"})
            return
        found = {"backup": backup, "brokerName": "orders", "logStart": 0, "logEnd": END}
        pod["status"] = _ended("Succeeded", 0, found)

    def states(self) -> dict[str, ReportedState]:
        """The states of the replicas; `known` controllers know the group from before."""
        found = super().states()
        for pod, state in found.items():
            if self.known and getattr(state, "groups", None) is not None and "controller" in pod:
                state.groups[:] = [ReportedReplicaGroup(broker_name="orders", sync_state_set=[1])]  # type: ignore[union-attr] # a controller's
        return found


def _ended(phase: str, code: int, message: dict[str, Any]) -> dict[str, Any]:
    terminated = {"exitCode": code, "message": json.dumps(message)}
    return {"phase": phase, "containerStatuses": [{"state": {"terminated": terminated}}]}
