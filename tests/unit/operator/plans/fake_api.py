"""Simulates a cluster for plans: an API server, the controllers that create pods of StatefulSets and collect
garbage, and replicas that elect a master. The test advances the time. The module is longer than 600 lines
because all of them change the same objects."""

from __future__ import annotations

import copy
import itertools
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochmq_operator.manifests import ManifestSettings, render_manifests
from epochmq_operator.manifests.kept_templates import image_of, mounted_config_maps
from epochmq_operator.plans.effects import (
    Apply,
    ChangeQuorumMembers,
    CreateEvent,
    Delete,
    Effect,
    PatchStatus,
    ReconciliationResult,
    ReloadConfiguration,
    RemoveAnnotation,
    SetFinalizers,
)
from epochmq_operator.plans.indexed_objects import IndexedObjects
from epochmq_operator.plans.objects import Owner, Ref, digest, metadata, ref_of, with_owner
from epochmq_operator.plans.observed_state import NodeState, ObservedState, RejectedReload
from epochmq_operator.plans.reconciliation import reconcile
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.plans.replica_replacement import nodes_to_ask
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedControllerState,
    ReportedMember,
    ReportedPeer,
    ReportedReplicaGroup,
    ReportedState,
)
from epochmq_operator.plans.update_limit import PARALLEL_UPDATES, UpdateLimit
from epochmq_operator.pod_rendering import (
    broker_pod_name,
    component_name,
    controller_pod_name,
)
from epochmq_operator.pods import Component
from epochmq_operator.quorum_steps import Founders, member_id
from epochmq_operator.resources import API_VERSION, BrokerGroup, ControllerGroup, GroupResource

NAMESPACE = "trade"
COMMITTED = 7
"""The index up to which the log of controllers is committed."""
LABELS = {"app.kubernetes.io/managed-by": "epochmq-operator"}


def render(
    group: GroupResource,
    controllers: ControllerGroup | None,
    settings: ManifestSettings,
    founders: Founders | None,
) -> Sequence[dict[str, Any]]:
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


SETTINGS = ManifestSettings("epochmq/broker:1", "epochmq/controller:1", "epochmq-system")
RENDERER = Renderer(SETTINGS, render)


RENDERED_MAX = 500
RENDERED: OrderedDict[object, Sequence[dict[str, Any]]] = OrderedDict()


def render_once(
    group: GroupResource,
    controllers: ControllerGroup | None,
    settings: ManifestSettings,
    founders: Founders | None = None,
) -> Sequence[dict[str, Any]]:
    """The manifests of a real operator. Equal arguments have equal results, which are kept: a simulated
    operator renders the same group hundreds of times."""
    resources = [None if one is None else one.model_dump_json() for one in (group, controllers)]
    key = (type(group), *resources, settings, founders)
    found = RENDERED.pop(key, None)
    if found is None:
        found = render_manifests(group, controllers, settings, founders)
    RENDERED[key] = found
    if len(RENDERED) > RENDERED_MAX:
        RENDERED.popitem(last=False)
    return found


def manifest_renderer(settings: ManifestSettings = SETTINGS) -> Renderer:
    """The renderer of a real operator with these settings."""
    return Renderer(settings, render_once)


class RejectedError(Exception):
    """A leading controller rejected a change of its quorum's members."""


class RejectedWriteError(Exception):
    """The API server rejects a write of the operator."""


@dataclass
class FakeApi:
    """The cluster. `created`, `deleted` and `events` record writes by name; `writes` counts all writes of
    the operator. `applied` lists the manifests that it applied, by object. `unready` pods are not ready,
    `behind` are those of replicas that are not in sync; `unschedulable` pods find no node; `not_ready` are
    the reasons that sidecars report. Images and configurations that contain `bad` do not run. `can_reload`:
    the operator has credentials for sidecars; for those of brokers unless `reloads_brokers` is false."""

    objects: dict[Ref, dict[str, Any]] = field(default_factory=dict)
    created: Counter[str] = field(default_factory=Counter)
    deleted: Counter[str] = field(default_factory=Counter)
    applied: dict[Ref, list[Mapping[str, Any]]] = field(default_factory=dict)
    events: dict[str, CreateEvent] = field(default_factory=dict)
    writes: int = 0
    now: float = 1_800_000_000.0
    unready: set[str] = field(default_factory=set)
    behind: set[str] = field(default_factory=set)
    unschedulable: set[str] = field(default_factory=set)
    not_ready: dict[str, list[str]] = field(default_factory=dict)
    silent: bool = False
    can_reload: bool = False
    reloads_brokers: bool = True
    rejections: dict[Ref, str] = field(default_factory=dict)
    """The API server's response to the last write for a resource, if that was rejected."""
    reloaded: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    """What running brokers applied, by the uid of their pod: version and configuration."""
    rejected: dict[str, RejectedReload] = field(default_factory=dict)
    rejected_claims: dict[str, str] = field(default_factory=dict)
    """The sizes that `fixed_volumes` rejected, by claim."""
    lost_volumes: set[str] = field(default_factory=set)
    """The uids of the claims whose volume is on a lost node: no node can take their pods."""
    hung: dict[str, NodeState | None] = field(default_factory=dict)
    """The pods that do not end when they are deleted, with the state of their node; None: the operator may
    not read it."""
    forced: list[str] = field(default_factory=list)
    """The pods that were deleted without waiting for their node."""
    fixed_volumes: bool = False
    """The StorageClass does not let volumes grow."""
    limit: UpdateLimit = field(init=False)
    leaders: dict[str, str] = field(default_factory=dict)
    masters: dict[str, tuple[str, int]] = field(default_factory=dict)
    quorums: dict[str, frozenset[int]] = field(default_factory=dict)
    """The members of each quorum, by the ordinals of their pods."""
    peers: dict[str, frozenset[int]] = field(default_factory=dict)
    """The members of each group in the mode DLedger, likewise."""
    peer_leaders: dict[str, str] = field(default_factory=dict)
    """The leader of each."""
    terms: Counter[str] = field(default_factory=Counter)
    busy: set[str] = field(default_factory=set)
    """The quorums whose leader is making another change."""
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    renderer: Renderer = RENDERER

    def __post_init__(self) -> None:
        self.replace_operator()

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
        if ref.name in self.hung or (ref.kind == "PersistentVolumeClaim" and self._is_used(ref)):
            found["metadata"].setdefault("deletionTimestamp", "2027-01-15T08:00:00Z")
            return
        del self.objects[ref]
        policy = (found.get("spec") or {}).get("persistentVolumeClaimRetentionPolicy") or {}
        if ref.kind == "StatefulSet" and policy.get("whenDeleted") == "Delete":
            for claim in [one for one in self.objects if "Claim" in one.kind and ref.name in one.name]:
                self.remove(claim)

    def hang(self, pod: str, node: NodeState | None) -> None:
        """The node of this pod fails, and does not end it any more."""
        self.hung[pod] = node
        self.objects[Ref("Pod", NAMESPACE, pod)]["spec"]["nodeName"] = f"node-of-{pod}"

    def _is_used(self, claim: Ref) -> bool:
        """Whether a pod on a node uses the claim, which the API server keeps until then."""
        pod = self.objects.get(Ref("Pod", NAMESPACE, claim.name.partition("-")[2]))
        return pod is not None and (pod.get("status") or {}).get("phase") == "Running"

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
                    if effect.forced:
                        self.forced.append(effect.ref.name)
                        self.hung.pop(effect.ref.name, None)
                    self.remove(effect.ref)
            case RemoveAnnotation():
                found = self.objects.get(resource)
                held = (found or {}).get("metadata", {}).get("annotations") or {}
                if held.get(effect.key) == effect.value:
                    del held[effect.key]
                    self.writes += 1
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
            case ReloadConfiguration():
                self._reload(effect)
            case ChangeQuorumMembers():
                if resource.kind == "BrokerGroup":
                    self._change_members(
                        effect, resource.name, Component.BROKER, self.peers, self.peer_leaders
                    )
                    return
                self._change_members(effect, resource.name, Component.CONTROLLER, self.quorums, self.leaders)

    def _change_members(
        self,
        effect: ChangeQuorumMembers,
        group: str,
        component: Component,
        quorums: dict[str, frozenset[int]],
        leaders: dict[str, str],
    ) -> None:
        """What the leader does. RejectedError if it rejects the change, or transfers its leadership."""
        leader = leaders.get(group)
        if leader != effect.pod.name or self.uid(effect.pod) != effect.uid:
            raise RejectedError("this member does not lead")
        if group in self.busy:
            raise RejectedError("another change is in progress")
        members, ordinal = quorums[group], int(effect.member.removeprefix("n"))
        pod = f"{component_name(group, component)}-{ordinal}"
        if effect.address is None:
            if pod == leader:
                names = [f"{component_name(group, component)}-{n}" for n in members]
                leaders[group] = next(name for name in names if self._ready(name) and name != leader)
                raise RejectedError("this member has just transferred its leadership")
            quorums[group] = members - {ordinal}
        else:
            port = 9878 if component is Component.CONTROLLER else 40911
            assert effect.address == f"{pod}.{group}-{component}s.{NAMESPACE}.svc:{port}"
            if ordinal not in members and not self._runs(pod):
                raise RejectedError("the new member does not respond to the leader")
            quorums[group] = members | {ordinal}

    def _runs(self, pod: str) -> bool:
        """Whether the pod's process runs."""
        found = self.objects.get(Ref("Pod", NAMESPACE, pod))
        if found is None or (found.get("status") or {}).get("phase") != "Running" or pod in self.hung:
            return False
        return not self._fault(found) and pod not in self.unready

    def _reload(self, effect: ReloadConfiguration) -> None:
        found = self.objects.get(effect.pod)
        if found is None or found["metadata"]["uid"] != effect.uid:
            return
        wrong = next((f"{key}={value}" for key, value in effect.config.items() if "bad" in value), None)
        if wrong is not None:
            self.rejected[effect.pod.name] = RejectedReload(effect.version, f"{wrong}: expected a number")
        else:
            self.reloaded[effect.uid] = (effect.version, dict(effect.config))

    def restart_container(self, pod: str) -> None:
        """The kubelet restarts the broker in a pod, which reads the file of its pod."""
        self.reloaded.pop(self.uid(Ref("Pod", NAMESPACE, pod)), None)

    def _apply(self, manifest: Mapping[str, Any]) -> None:
        ref = ref_of(manifest)
        if ref not in self.objects:
            self.created[str(ref)] += 1
        self.writes += 1
        self.applied.setdefault(ref, []).append(manifest)
        if ref.kind == "PersistentVolumeClaim":
            found = copy.deepcopy(self.objects[ref])
            assert manifest["metadata"]["uid"] == found["metadata"]["uid"]
            if self.fixed_volumes:
                self.rejected_claims[ref.name] = manifest["spec"]["resources"]["requests"]["storage"]
                raise RejectedWriteError(f"{ref}: the StorageClass must support resize")
            found["spec"]["resources"] = manifest["spec"]["resources"]
            found["metadata"]["ownerReferences"] = manifest["metadata"].get("ownerReferences") or []
            self._store(ref, found)
            return
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
            if ref.kind == "PersistentVolumeClaim" and "deletionTimestamp" in found["metadata"]:
                self.remove(ref)
        for ref, found in list(self.objects.items()):
            if ref.kind == "StatefulSet":
                self._pods(ref, found)
        self._agree()

    def _collect(self) -> None:
        uids = {found["metadata"]["uid"] for found in self.objects.values()}
        for ref, found in list(self.objects.items()):
            owners = {one.get("uid") for one in metadata(found).get("ownerReferences") or () if one}
            if owners and not owners & uids:
                self.remove(ref)

    def _pods(self, ref: Ref, stateful_set: dict[str, Any]) -> None:
        count = stateful_set["spec"]["replicas"]
        template = stateful_set["spec"]["template"]
        revision = f"{ref.name}-{digest(template)}"
        stateful_set["status"] = {"updateRevision": revision}
        for pod, _ in list(self.objects.items()):
            base, _, number = pod.name.rpartition("-")
            if pod.kind == "Pod" and base == ref.name and int(number) >= count:
                self.remove(pod)
        volume = metadata(stateful_set["spec"]["volumeClaimTemplates"][0])["name"]
        for ordinal in range(count):
            claim = Ref("PersistentVolumeClaim", NAMESPACE, f"{volume}-{ref.name}-{ordinal}")
            pod = Ref("Pod", NAMESPACE, f"{ref.name}-{ordinal}")
            if claim not in self.objects and pod not in self.objects:
                self._store(claim, self._new_claim(claim, stateful_set))
                if f"{ref.name}-{ordinal}" in self.unschedulable:
                    self.objects[claim]["status"] = {"phase": "Pending"}
            if pod not in self.objects:
                owner = {"kind": "StatefulSet", "name": ref.name, "uid": stateful_set["metadata"]["uid"]}
                template = copy.deepcopy(template)
                meta = template.get("metadata") or {}
                made = {
                    "kind": "Pod",
                    "spec": template.get("spec") or {"containers": [{"image": template.get("image", "")}]},
                    "metadata": {
                        "name": pod.name,
                        "namespace": NAMESPACE,
                        "annotations": meta.get("annotations") or {},
                        "labels": {**(meta.get("labels") or {}), "controller-revision-hash": revision},
                        "ownerReferences": [{**owner, "controller": True}],
                    },
                }
                self._store(pod, made)
                continue
            found = self.objects[pod]
            if "deletionTimestamp" in found["metadata"]:
                continue
            if pod.name in self.unschedulable or self._lacks_volume(claim, found):
                full = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
                found["status"] = {"phase": "Pending", "conditions": [full]}
                continue
            if self.objects[claim]["status"] == {"phase": "Pending"}:
                self.objects[claim]["status"] = self._new_claim(claim, stateful_set)["status"]
            fault = self._fault(found)
            good = not fault and pod.name not in self.unready and self._is_member(ref.name, ordinal)
            waiting = {"state": {"waiting": {"reason": fault}}} if fault else {}
            found["status"] = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": str(good)}],
                "containerStatuses": [waiting],
            }

    def _lacks_volume(self, claim: Ref, pod: dict[str, Any]) -> bool:
        """Whether no node can take the pod because of its volume claim."""
        volume = self.objects.get(claim, {}).get("metadata") or {}
        if (pod.get("status") or {}).get("phase") == "Running":
            return False
        return not volume or "deletionTimestamp" in volume or volume["uid"] in self.lost_volumes

    def _is_member(self, stateful_set: str, ordinal: int) -> bool:
        """Whether a controller, or a replica in the mode DLedger, is a member of its quorum, and so can be
        ready. The first ones name each other."""
        group, _, component = stateful_set.rpartition("-")
        is_dledger = component == Component.BROKER and self.is_dledger(group)
        if component != Component.CONTROLLER and not is_dledger:
            return True
        count = self.objects[Ref("StatefulSet", NAMESPACE, stateful_set)]["spec"]["replicas"]
        quorums = self.peers if is_dledger else self.quorums
        return ordinal in quorums.setdefault(group, frozenset(range(count)))

    def is_dledger(self, group: str) -> bool:
        """Whether this broker group is in the mode DLedger."""
        spec = self.objects.get(Ref("BrokerGroup", NAMESPACE, group), {}).get("spec")
        return isinstance(spec, dict) and spec.get("mode") == "DLedger"

    @staticmethod
    def _new_claim(ref: Ref, stateful_set: dict[str, Any]) -> dict[str, Any]:
        """A bound claim by a StatefulSet's claim template."""
        spec = copy.deepcopy(stateful_set["spec"]["volumeClaimTemplates"][0].get("spec") or {})
        size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
        status = {"phase": "Bound", **({"capacity": {"storage": size}} if size else {})}
        meta = {"name": ref.name, "namespace": NAMESPACE}
        return {"kind": ref.kind, "metadata": meta, "spec": spec, "status": status}

    def grow_volumes(self) -> None:
        """The storage driver and the kubelets grow all volumes to what their claims request."""
        for ref, found in self.objects.items():
            if ref.kind == "PersistentVolumeClaim":
                found["status"] = {"capacity": {"storage": found["spec"]["resources"]["requests"]["storage"]}}

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
        return name not in self.hung and any(
            one == {"type": "Ready", "status": "True"}
            for one in (found.get("status") or {}).get("conditions", ())
        )

    def _agree(self) -> None:
        for ref in self.objects:
            if ref.kind == "ControllerGroup":
                names = [controller_pod_name(ref.name, n) for n in sorted(self.quorums.get(ref.name, ()))]
                ready = [name for name in names if self._ready(name)]
                if not names or len(ready) * 2 <= len(names):
                    self.leaders.pop(ref.name, None)
                elif self.leaders.get(ref.name) not in ready:
                    self.leaders[ref.name] = ready[0]
        for ref, found in self.objects.items():
            if ref.kind == "BrokerGroup" and self.is_dledger(ref.name):
                self._elect_peer(ref.name)
            elif ref.kind == "BrokerGroup":
                members = self.members(found)
                master, epoch = self.masters.get(ref.name, ("", 0))
                candidates = [pod for pod in members if pod not in self.behind]
                if candidates and master not in members and self._leader(found):
                    self.masters[ref.name] = (candidates[0], epoch + 1)

    def _elect_peer(self, group: str) -> None:
        names = [broker_pod_name(group, n) for n in sorted(self.peers.get(group, ()))]
        ready = [name for name in names if self._ready(name)]
        if not names or len(ready) * 2 <= len(names):
            self.peer_leaders.pop(group, None)
        elif self.peer_leaders.get(group) not in ready:
            self.peer_leaders[group] = ready[0]
            self.terms[group] += 1

    def _peer_states(self, group: str) -> dict[str, ReportedState]:
        """What the running replicas of a group in the mode DLedger report."""
        found: dict[str, ReportedState] = {}
        leader, term = self.peer_leaders.get(group), self.terms[group]
        members = [ReportedMember(id=member_id(n)) for n in sorted(self.peers.get(group, ()))]
        for number in range(9):
            pod = broker_pod_name(group, number)
            if not self._runs(pod):
                continue
            leads, is_member = pod == leader, member_id(number) in {one.id for one in members}
            follows = leader is not None and is_member
            found[pod] = ReportedBrokerState(
                broker_name=group,
                broker_id=number + 1,
                role="master" if leads else "replica" if follows else "none",
                master_epoch=term,
                controlled=False,
                ready=follows and pod not in self.behind,
                config_version=self.reloaded.get(self.uid(Ref("Pod", NAMESPACE, pod)), ("", {}))[0],
                dledger=ReportedPeer(
                    role="leader" if leads else "follower" if follows else "candidate",
                    term=term,
                    peers=members if is_member else [],
                ),
            )
        return found

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
            if self.is_dledger(ref.name):
                reported |= self._peer_states(ref.name)
                continue
            members = self.members(found)
            master, epoch = self.masters.get(ref.name, ("", 0))
            ids = {pod: int(pod.rpartition("-")[2]) + 1 for pod in members}
            in_sync = [broker_id for pod, broker_id in ids.items() if pod not in self.behind or pod == master]
            for pod, broker_id in ids.items():
                role = "master" if pod == master else "replica"
                reported[pod] = ReportedBrokerState(
                    broker_name=ref.name,
                    broker_id=broker_id,
                    role=role,
                    master_epoch=epoch,
                    config_version=self.reloaded.get(self.uid(Ref("Pod", NAMESPACE, pod)), ("", {}))[0],
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
            members = [ReportedMember(id=member_id(n)) for n in sorted(self.quorums[controllers])]
            reported[leader] = ReportedControllerState(
                role="leader",
                term=1,
                groups=groups.get(controllers, []),
                peers=members,
                committed_index=COMMITTED,
            )
        for controllers, quorum in self.quorums.items():
            for n, pod in ((n, controller_pod_name(controllers, n)) for n in range(9)):
                if self._runs(pod) and pod not in reported:
                    behind = pod in self.behind or n not in quorum
                    reported[pod] = ReportedControllerState(committed_index=COMMITTED - behind)
        return reported

    # The operator.

    def look(self, resource: Ref) -> ReconciliationResult | None:
        """The result of reconciling a resource now; None if it is gone."""
        found = self.objects.get(resource)
        if found is None:
            return None
        self.limit.begin((ref, self.objects[ref]) for ref in self.resources())
        observed = ObservedState(
            found,
            self._indexed_objects(),
            self.states(),
            users=self.users(resource),
            can_reload=self.can_reload and (self.reloads_brokers or resource.kind != "BrokerGroup"),
            rejection=self.rejections.get(resource, ""),
            rejected_reloads=self.rejected,
            rejected_claims=self.rejected_claims,
            nodes=self._nodes(found),
            updates_full=self.limit.full_because(resource),
        )
        result = reconcile(self.renderer, observed, self.now)
        self.limit.record(resource, found, result)
        return result

    def _nodes(self, resource: Mapping[str, Any]) -> dict[str, NodeState]:
        """The states of the nodes that the operator asks for."""
        states = {f"node-of-{pod}": state for pod, state in self.hung.items()}
        asked = nodes_to_ask(resource, self.visible_objects())
        return {name: state for name in asked if (state := states.get(name)) is not None}

    def users(self, resource: Ref) -> tuple[str, ...]:
        """The broker groups that use a controller group."""
        groups = [found for ref, found in self.objects.items() if ref.kind == "BrokerGroup"]
        return tuple(
            str(metadata(one)["name"])
            for one in groups
            if resource.kind == "ControllerGroup" and self._quorum(one) == resource.name
        )

    def visible_objects(self) -> Mapping[Ref, Mapping[str, Any]]:
        """The objects that the operator knows of."""
        return self.objects

    def _indexed_objects(self) -> IndexedObjects:
        """The same, as the operator keeps them."""
        found = IndexedObjects()
        for ref, one in self.visible_objects().items():
            found.put(ref, dict(one))
        return found

    def replace_operator(self, parallel_updates: int = PARALLEL_UPDATES) -> None:
        """Another operator takes over, which remembers nothing."""
        self.limit = UpdateLimit(parallel_updates, self.objects.get)

    def resources(self) -> list[Ref]:
        """The resources."""
        return [ref for ref in self.objects if ref.kind in ("BrokerGroup", "ControllerGroup")]

    def operate(self, *, limit: int | None = None) -> int:
        """Reconciles every resource once; the operator is killed after `limit` effects. Returns the number of
        effects."""
        done = 0
        for resource in self.resources():
            outcome = self.look(resource)
            self.rejections.pop(resource, None)
            for effect in outcome.effects if outcome else ():
                if limit is not None and done >= limit:
                    return done
                done += 1
                try:
                    self.act(effect, resource)
                except RejectedError:
                    break  # the effects after it are not carried out
                except RejectedWriteError as error:
                    self.rejections[resource] = str(error)
                    break
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
