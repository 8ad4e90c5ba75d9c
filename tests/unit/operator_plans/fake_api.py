"""Simulates a cluster for plans: an API server, the controllers that create pods of StatefulSets and collect
garbage, and replicas that elect a master. The test advances the time."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochmq_operator import manifests
from epochmq_operator.manifests import ManifestSettings
from epochmq_operator.manifests.kept_templates import image_of, mounted_config_maps
from epochmq_operator.plans.effects import (
    Apply,
    CreateEvent,
    Delete,
    Effect,
    PatchStatus,
    ReconciliationResult,
    SetFinalizers,
)
from epochmq_operator.plans.objects import Owner, Ref, digest, metadata, owner_of, ref_of, with_owner
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.reconciliation import reconcile
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedControllerState,
    ReportedReplicaGroup,
    ReportedState,
)
from epochmq_operator.pod_rendering import Component, broker_pod_name, component_name, controller_pod_name
from epochmq_operator.resources import API_VERSION, BrokerGroup, ControllerGroup, GroupResource

NAMESPACE = "trade"
LABELS = {"app.kubernetes.io/managed-by": "epochmq-operator"}


def render(group: GroupResource, controllers: ControllerGroup | None) -> Sequence[dict[str, Any]]:
    """Three objects for each group, with the fields that plans use."""
    brokers = isinstance(group, BrokerGroup)
    name = component_name(group.name, Component.BROKER if brokers else Component.CONTROLLER)
    meta = {"name": name, "namespace": group.metadata.namespace, "labels": LABELS}
    data = {"replicas": str(group.spec.replicas), "config": repr(sorted(group.spec.config.items()))}
    return (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"clusterIP": "None"}},
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": meta,
            "spec": {
                "replicas": group.spec.replicas,
                "selector": {"matchLabels": {"app": name}},
                "volumeClaimTemplates": [{"metadata": {"name": "store", "labels": LABELS}}],
                "template": {"image": group.spec.config.get("image", "good")},
            },
        },
    )


def differences(wanted: Any, seen: Any, path: str = "") -> list[str]:
    """The desired fields that differ."""
    if isinstance(wanted, Mapping):
        if not isinstance(seen, Mapping):
            return [path]
        return [line for key in wanted for line in differences(wanted[key], seen.get(key), f"{path}.{key}")]
    return [] if wanted == seen else [path]


RENDERER = Renderer(render, differences)
SETTINGS = ManifestSettings("epochmq/broker:1", "epochmq/controller:1", "epochmq-system")


def manifest_renderer(settings: ManifestSettings = SETTINGS) -> Renderer:
    """The renderer of a real operator with these settings."""
    return Renderer(
        render=lambda group, controllers: manifests.render_manifests(group, controllers, settings),
        differences=manifests.differences,
        possible_objects=manifests.possible_objects,
        keep_immutable_fields=manifests.keep_immutable_fields,
        default_image=lambda group: manifests.default_image(group, settings),
    )


@dataclass
class FakeApi:
    """The cluster. `created`, `deleted` and `events` record writes by name; `writes` counts all writes of the
    operator. `applied` lists the manifests that it applied, by object. `unready` pods are not ready, `behind`
    are those of replicas that are not in sync; `not_ready` are the reasons that sidecars report. Images and
    configurations that contain `bad` do not run."""

    objects: dict[Ref, dict[str, Any]] = field(default_factory=dict)
    created: Counter[str] = field(default_factory=Counter)
    deleted: Counter[str] = field(default_factory=Counter)
    applied: dict[Ref, list[Mapping[str, Any]]] = field(default_factory=dict)
    events: dict[str, CreateEvent] = field(default_factory=dict)
    writes: int = 0
    now: float = 1_800_000_000.0
    unready: set[str] = field(default_factory=set)
    behind: set[str] = field(default_factory=set)
    not_ready: dict[str, list[str]] = field(default_factory=dict)
    silent: bool = False
    leaders: dict[str, str] = field(default_factory=dict)
    masters: dict[str, tuple[str, int]] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    renderer: Renderer = RENDERER

    # What users do.

    def put(self, kind: str, name: str, spec: dict[str, Any], **meta: Any) -> None:
        """kubectl apply of a resource."""
        ref = Ref(kind, NAMESPACE, name)
        self._store(
            ref,
            {
                "apiVersion": API_VERSION,
                "kind": kind,
                "metadata": {"name": name, "namespace": NAMESPACE, **meta},
                "spec": spec,
            },
        )

    def put_owned(self, kind: str, name: str, owner: Ref) -> None:
        """An object that the operator created earlier for a resource."""
        manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}}
        made = with_owner(manifest, Owner(owner.kind, owner.name, self.uid(owner)))
        self._store(Ref(kind, NAMESPACE, name), made)

    def annotate(self, ref: Ref, **annotations: str) -> None:
        """kubectl annotate; '_' stands for '-', and the prefix is added."""
        found = self.objects[ref]["metadata"]
        keys = {f"epochmq.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
        found["annotations"] = {**(found.get("annotations") or {}), **keys}

    def scale(self, stateful_set: Ref, count: int) -> None:
        """kubectl scale statefulset."""
        found = copy.deepcopy(self.objects[stateful_set])
        found["spec"]["replicas"] = count
        self._store(stateful_set, found)

    def remove(self, ref: Ref) -> None:
        """kubectl delete."""
        found = self.objects.get(ref)
        if found is None:
            return
        if found["metadata"].get("finalizers"):
            if "deletionTimestamp" not in found["metadata"]:
                found["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
                found["metadata"]["generation"] += 1
            return
        del self.objects[ref]

    # What the API server does for the operator.

    def act(self, effect: Effect, resource: Ref) -> None:
        """Carries out one effect as the driver does."""
        match effect:
            case Apply():
                self._apply(effect.manifest)
            case Delete():
                found = self.objects.get(effect.ref)
                if found is not None and found["metadata"]["uid"] == effect.uid:
                    self.deleted[str(effect.ref)] += 1
                    self.writes += 1
                    self.remove(effect.ref)
            case PatchStatus():
                if resource in self.objects:
                    self.objects[resource]["status"] = copy.deepcopy(dict(effect.status))
                    self.writes += 1
            case SetFinalizers():
                self._finalize(resource, effect)
            case CreateEvent():
                if effect.key not in self.events:
                    self.events[effect.key] = effect
                    self.writes += 1

    def _apply(self, manifest: Mapping[str, Any]) -> None:
        ref = ref_of(manifest)
        if ref not in self.objects:
            self.created[str(ref)] += 1
        self.writes += 1
        self.applied.setdefault(ref, []).append(manifest)
        self._store(ref, copy.deepcopy(dict(manifest)))

    def _finalize(self, resource: Ref, effect: SetFinalizers) -> None:
        found = self.objects.get(resource)
        if found is None:
            return
        self.writes += 1
        found["metadata"]["finalizers"] = list(effect.finalizers)
        if not effect.finalizers and "deletionTimestamp" in found["metadata"]:
            del self.objects[resource]

    def _store(self, ref: Ref, manifest: dict[str, Any]) -> None:
        old = self.objects.get(ref)
        meta = manifest["metadata"] = dict(manifest["metadata"])
        if old is None:
            meta.update(uid=f"uid-{next(self.numbers)}", generation=1)
        else:
            meta["uid"] = old["metadata"]["uid"]
            changed = old.get("spec") != manifest.get("spec")
            meta["generation"] = old["metadata"]["generation"] + changed
            if "finalizers" in old["metadata"]:
                meta["finalizers"] = old["metadata"]["finalizers"]
            manifest["status"] = old.get("status", {})
        self.objects[ref] = manifest

    # What the cluster does.

    def tick(self) -> None:
        """One round of the cluster's controllers and of the replicas."""
        self.now += 1
        self._collect()
        for ref, found in list(self.objects.items()):
            if ref.kind == "StatefulSet":
                self._pods(ref, found)
        self._agree()

    def _collect(self) -> None:
        uids = {found["metadata"]["uid"] for found in self.objects.values()}
        for ref, found in list(self.objects.items()):
            owner = owner_of(found)
            if owner is not None and owner.uid not in uids:
                self.remove(ref)

    def _pods(self, ref: Ref, stateful_set: dict[str, Any]) -> None:
        count = stateful_set["spec"]["replicas"]
        template = copy.deepcopy(stateful_set["spec"]["template"])
        revision = f"{ref.name}-{digest(template)}"
        stateful_set["status"] = {"updateRevision": revision}
        for pod, _ in list(self.objects.items()):
            base, _, number = pod.name.rpartition("-")
            if pod.kind == "Pod" and base == ref.name and int(number) >= count:
                self.remove(pod)
        volume = metadata(stateful_set["spec"]["volumeClaimTemplates"][0])["name"]
        for ordinal in range(count):
            claim = Ref("PersistentVolumeClaim", NAMESPACE, f"{volume}-{ref.name}-{ordinal}")
            if claim not in self.objects:
                self._store(
                    claim, {"kind": claim.kind, "metadata": {"name": claim.name, "namespace": NAMESPACE}}
                )
            pod = Ref("Pod", NAMESPACE, f"{ref.name}-{ordinal}")
            if pod not in self.objects:
                owner = {"kind": "StatefulSet", "name": ref.name, "uid": stateful_set["metadata"]["uid"]}
                made = {
                    "kind": "Pod",
                    "spec": template.get("spec") or {"containers": [{"image": template.get("image", "")}]},
                    "metadata": {
                        "name": pod.name,
                        "namespace": NAMESPACE,
                        "labels": {"controller-revision-hash": revision},
                        "ownerReferences": [{**owner, "controller": True}],
                    },
                }
                self._store(pod, made)
                continue
            found = self.objects[pod]
            fault = self._fault(found)
            good = not fault and pod.name not in self.unready
            waiting = {"state": {"waiting": {"reason": fault}}} if fault else {}
            found["status"] = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": str(good)}],
                "containerStatuses": [waiting],
            }

    def _fault(self, pod: Mapping[str, Any]) -> str:
        """Why the pod's container does not run; "" if it does."""
        if "bad" in image_of(pod["spec"]):
            return "ErrImagePull"
        for name in mounted_config_maps(pod["spec"]):
            config_map = self.objects.get(Ref("ConfigMap", NAMESPACE, name))
            if config_map is None:
                return "ContainerCreating"
            text = config_map["data"].get(f"{metadata(pod)['name']}.conf")
            if text is None or "bad" in text:
                return "CrashLoopBackOff"
        return ""

    def _ready(self, name: str) -> bool:
        found = self.objects.get(Ref("Pod", NAMESPACE, name), {})
        return any(
            one == {"type": "Ready", "status": "True"}
            for one in (found.get("status") or {}).get("conditions", ())
        )

    def _agree(self) -> None:
        for ref, found in self.objects.items():
            if ref.kind == "ControllerGroup":
                names = [controller_pod_name(ref.name, n) for n in range(found["spec"].get("replicas", 3))]
                ready = [name for name in names if self._ready(name)]
                if len(ready) * 2 <= len(names):
                    self.leaders.pop(ref.name, None)
                elif self.leaders.get(ref.name) not in ready:
                    self.leaders[ref.name] = ready[0]
        for ref, found in self.objects.items():
            if ref.kind == "BrokerGroup":
                members = self.members(found)
                master, epoch = self.masters.get(ref.name, ("", 0))
                candidates = [pod for pod in members if pod not in self.behind]
                if candidates and master not in members and self._leader(found):
                    self.masters[ref.name] = (candidates[0], epoch + 1)

    def _leader(self, group: dict[str, Any]) -> str | None:
        return self.leaders.get(self._quorum(group))

    def _quorum(self, group: dict[str, Any]) -> str:
        spec, name = group["spec"], str(group["metadata"]["name"])
        return str(spec.get("controllerGroup") or name) if isinstance(spec, dict) else name

    def members(self, group: dict[str, Any]) -> list[str]:
        """The group's ready replicas."""
        name = group["metadata"]["name"]
        return [pod for n in range(9) if self._ready(pod := broker_pod_name(name, n))]

    def states(self) -> dict[str, ReportedState]:
        """The states that all ready replicas report, and those that give reasons why they are not."""
        reported: dict[str, ReportedState] = {}
        if self.silent:
            return reported
        groups: dict[str, list[ReportedReplicaGroup]] = {}
        for ref, found in self.objects.items():
            if ref.kind != "BrokerGroup":
                continue
            members = self.members(found)
            master, epoch = self.masters.get(ref.name, ("", 0))
            ids = {pod: int(pod.rpartition("-")[2]) + 1 for pod in members}
            in_sync = [broker_id for pod, broker_id in ids.items() if pod not in self.behind or pod == master]
            for pod, broker_id in ids.items():
                role = "master" if pod == master else "replica"
                reported[pod] = ReportedBrokerState(
                    broker_name=ref.name, broker_id=broker_id, role=role, master_epoch=epoch
                )
            kept = ReportedReplicaGroup(
                broker_name=ref.name,
                master_broker_id=int(master.rpartition("-")[2]) + 1 if master in members else None,
                master_epoch=epoch,
                sync_state_set=in_sync,
            )
            groups.setdefault(self._quorum(found), []).append(kept)
        for pod, reasons in self.not_ready.items():
            reported[pod] = ReportedBrokerState(not_ready=reasons)
        for controllers, leader in self.leaders.items():
            reported[leader] = ReportedControllerState(
                role="leader", term=1, groups=groups.get(controllers, [])
            )
        return reported

    # The operator.

    def look(self, resource: Ref) -> ReconciliationResult | None:
        """The result of reconciling a resource now; None if it is gone."""
        found = self.objects.get(resource)
        if found is None:
            return None
        observed = ObservedState(found, self.objects, self.states())
        return reconcile(self.renderer, observed, self.now)

    def resources(self) -> list[Ref]:
        """The resources."""
        return [ref for ref in self.objects if ref.kind in ("BrokerGroup", "ControllerGroup")]

    def operate(self, *, limit: int | None = None) -> int:
        """Reconciles every resource once; the operator is killed after `limit` effects. Returns the number of
        effects."""
        done = 0
        for resource in self.resources():
            outcome = self.look(resource)
            for effect in outcome.effects if outcome else ():
                if limit is not None and done >= limit:
                    return done
                self.act(effect, resource)
                done += 1
        return done

    def settle(self, rounds: int = 100) -> int:
        """Runs the operator and the cluster until neither has anything to do; returns the number of rounds.
        AssertionError if that takes too long."""
        for count in range(rounds):
            self.tick()
            before = repr(self.objects)
            if self.operate() == 0:
                self.tick()
                if before == repr(self.objects) and self.operate() == 0:
                    return count
        raise AssertionError(f"not at rest: {[self.status(ref) for ref in self.resources()]}")

    def status(self, ref: Ref) -> dict[str, Any]:
        """A resource's status."""
        return self.objects[ref].get("status") or {}

    def condition(self, ref: Ref, kind: str) -> dict[str, Any]:
        """One of its conditions."""
        return next(one for one in self.status(ref)["conditions"] if one["type"] == kind)

    def reasons(self, resource: str = "") -> list[str]:
        """The Events' reasons, in order."""
        return [event.reason for event in self.events.values()]

    def pods(self) -> list[str]:
        """All pods."""
        return sorted(ref.name for ref in self.objects if ref.kind == "Pod")

    def uid(self, ref: Ref) -> str:
        """The uid of an object."""
        return str(metadata(self.objects[ref])["uid"])
