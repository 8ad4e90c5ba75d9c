"""Tests workers against an API server with objects that are not in the cache."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from epochmq_operator.kube import effect_writer as effect_writer_module
from epochmq_operator.kube import reconciler as reconciler_module
from epochmq_operator.kube.api import ApiError, object_path
from epochmq_operator.kube.effect_writer import EffectWriter, WorkerState
from epochmq_operator.kube.liveness import Liveness
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.reconciler import REPORTED_REJECTIONS, Reconciler, ReconcilerDependencies
from epochmq_operator.kube.replica_observer import ReplicaObserver
from epochmq_operator.kube.sidecar_client import MembershipRejectionError
from epochmq_operator.kube.sidecar_credentials import CredentialsCache
from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL, MANAGED_BY
from epochmq_operator.plans.effects import (
    Apply,
    ChangeQuorumMembers,
    Create,
    PatchStatus,
    ReconciliationResult,
)
from epochmq_operator.plans.objects import Manifest, Ref, ref_of, status_of
from tests.support.fake_api_server import FakeApiServer
from tests.unit.operator.kube.running_reconcilers import (
    QUORUM,
    SilentSidecars,
    resource,
    running_reconciler,
    until,
)
from tests.unit.operator.plans.fake_api import NAMESPACE

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
SERVICE = Ref("Service", NAMESPACE, "orders-controller")
QUORUM_PODS = "orders-controller"


def phase(cache: ObjectCache, ref: Ref) -> str | None:
    """The phase in the group's status."""
    return ((cache.get(ref) or {}).get("status") or {}).get("phase")


@pytest.mark.parametrize("labels", [{}, {"app.kubernetes.io/managed-by": "Helm"}])
async def test_a_foreign_object_without_the_label_is_not_taken_over(labels: dict[str, str]) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE.name, "namespace": NAMESPACE, "uid": "theirs", "labels": labels},
    }
    server = FakeApiServer(resource(QUORUM, replicas=1), theirs)
    async with running_reconciler(server, QUORUM) as (reconciler, cache):
        await until(lambda: phase(cache, QUORUM) == "Blocked")
        assert SERVICE not in server.applied
        shown = str(cache.get(QUORUM))
        assert "Service orders-controller was not made by the operator: rename the group, or delete" in shown

        del server.objects[object_path(SERVICE)]
        reconciler.object_changed(resource(QUORUM))
        await until(lambda: SERVICE in server.applied)


async def test_existing_controllers_that_are_not_in_the_cache_are_not_taken_over() -> None:
    server = FakeApiServer(resource(QUORUM, replicas=1), resource(ORDERS, replicas=1))
    async with running_reconciler(server, ORDERS):
        await until(lambda: Ref("StatefulSet", NAMESPACE, "orders-broker") in server.applied)
    assert QUORUM not in server.applied
    assert server.objects[object_path(QUORUM)]["spec"] == {"replicas": 1}


class BusyLeader(SilentSidecars):
    """A leading controller that rejects some changes of its quorum's members first."""

    def __init__(self, rejections: int, *, is_under_way: bool) -> None:
        self.rejections = rejections
        self._is_under_way = is_under_way

    async def change_members(self, *_: Any) -> None:
        self.rejections -= 1
        if self.rejections >= 0:
            raise MembershipRejectionError("another change is in progress", is_under_way=self._is_under_way)


class MembershipReconciler(Reconciler):
    """Records in the status that a member was removed, after it was."""

    kinds = ("ControllerGroup",)

    def __init__(self, dependencies: ReconcilerDependencies) -> None:
        super().__init__(dependencies)
        self.reported: list[str] = []

    async def reconcile(self, ref: Ref, resource: Manifest, rejection: str) -> ReconciliationResult:
        self.reported.append(rejection)
        if status_of(resource).get("targetReplicas") == 3:
            return ReconciliationResult()
        change = ChangeQuorumMembers(Ref("Pod", NAMESPACE, "orders-controller-0"), "uid-0", "n3")
        before, after = PatchStatus({"targetReplicas": 4}), PatchStatus({"targetReplicas": 3})
        return ReconciliationResult((before, change, after))


@pytest.mark.parametrize(
    ("rejections", "is_under_way", "is_reported"),
    [(2, False, False), (REPORTED_REJECTIONS + 1, False, True), (REPORTED_REJECTIONS + 1, True, False)],
)
async def test_what_relies_on_a_change_of_members_is_not_recorded_before_it_is_in_effect(
    rejections: int, is_under_way: bool, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler_module, "FAILED_FIRST_S", 0.01)
    labels = {KIND_LABEL: "ControllerGroup", GROUP_LABEL: QUORUM.name}
    pod = {"name": "orders-controller-0", "namespace": NAMESPACE, "uid": "uid-0", "labels": labels}
    server, cache = FakeApiServer(resource(QUORUM, replicas=3)), ObjectCache()
    api: Any = server
    leader: Any = BusyLeader(rejections, is_under_way=is_under_way)
    cache.put(server.objects[object_path(QUORUM)])
    cache.put({"apiVersion": "v1", "kind": "Pod", "metadata": pod})
    replicas = ReplicaObserver(cache, leader, CredentialsCache(api))
    made = MembershipReconciler(
        ReconcilerDependencies(api, cache, replicas, OperatorMetrics(), Liveness(), 1)
    )
    task = asyncio.ensure_future(made.run())
    try:
        target = lambda: status_of(cache.get(QUORUM) or {}).get("targetReplicas")  # noqa: E731
        await until(lambda: target() == 3)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert leader.rejections == -1
    assert any("another change is in progress" in text for text in made.reported) is is_reported


async def test_a_resource_whose_deletion_was_missed_is_removed() -> None:
    server = FakeApiServer(resource(QUORUM, replicas=1))
    async with running_reconciler(server) as (_, cache):
        cache.put(server.objects.pop(object_path(QUORUM)))
        await until(lambda: cache.get(QUORUM) is None)
    assert server.applied == []


async def test_objects_that_have_lost_all_labels_and_owners_get_them_back() -> None:
    """A watch reports an object without the operator's label as deleted, in the version that lost it."""
    server = FakeApiServer(resource(QUORUM, replicas=1))
    async with running_reconciler(server, QUORUM) as (reconciler, cache):
        await until(lambda: Ref("StatefulSet", NAMESPACE, QUORUM_PODS) in server.applied)
        made = {object_path(ref) for ref in server.applied}
        for path in made:
            bare = copy.deepcopy(server.objects[path])
            for key in ("labels", "ownerReferences"):
                del bare["metadata"][key]
            cache.drop(server.put(bare))
        assert len(made) == 3
        reconciler.object_changed(resource(QUORUM))
        await until(lambda: all("ownerReferences" in server.objects[path]["metadata"] for path in made))
        assert all(MANAGED_BY in server.objects[path]["metadata"]["labels"] for path in made)


class MergingServer(FakeApiServer):
    """An API server that knows the ports of a Service by their numbers, as Kubernetes does."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        super().__init__(*objects)
        self.replaced: list[Any] = []

    async def apply(self, manifest: Manifest) -> dict[str, Any]:
        present = self.objects.get(object_path(ref_of(manifest)))
        if manifest["kind"] == "Service" and present is not None:
            both = [*present["spec"]["ports"], *manifest["spec"]["ports"]]
            ports = {(one["port"], one["name"]) for one in both}
            if len({name for _, name in ports}) < len(ports):
                raise ApiError(422, "spec.ports: Duplicate value")
        return await super().apply(manifest)

    async def replace_field(self, ref: Ref, version: str, path: str, value: Any) -> dict[str, Any]:
        found = await self.get(object_path(ref))
        assert (version, path) == (found["metadata"]["resourceVersion"], "/spec/ports")
        found["spec"]["ports"] = value
        self.replaced.append(value)
        return self._store(found)


class StrictServer(FakeApiServer):
    """An API server that rejects a status for another version by 422, as Kubernetes does."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        super().__init__(*objects)
        self.gets: list[str] = []

    async def get(self, path: str) -> dict[str, Any]:
        self.gets.append(path)
        return await super().get(path)

    async def put_status(self, ref: Ref, version: str, status: Any) -> dict[str, Any]:
        try:
            return await super().put_status(ref, version, status)
        except ApiError as error:
            raise ApiError(422, f"the server rejected our request: {error}") from None


@pytest.mark.parametrize("restored", [False, True])
async def test_a_resource_that_the_watch_shows_late_is_fetched_and_nothing_is_refused(restored: bool) -> None:
    """The watch lags, or the API server was restored from a backup and its versions are smaller."""
    server = StrictServer(resource(QUORUM, replicas=1))
    server._versions = 100
    server.put({**server.objects[object_path(QUORUM)], "spec": {"replicas": 1}})
    async with running_reconciler(server) as (_, cache):
        late = copy.deepcopy(server.objects[object_path(QUORUM)])
        late["metadata"]["resourceVersion"] = "1000" if restored else "5"
        cache.put(late)
        await until(lambda: Ref("StatefulSet", NAMESPACE, QUORUM_PODS) in server.applied)
        status = status_of(server.objects[object_path(QUORUM)])
        assert "Refused" not in str(status)
        assert object_path(QUORUM) in server.gets
        assert len(server.gets) < 20


class CreatedClaims(FakeApiServer):
    """An API server that creates volume claims, each once."""

    async def create(self, manifest: Manifest) -> dict[str, Any]:
        path = object_path(ref_of(manifest))
        if path in self.objects:
            raise ApiError(409, "it exists")
        self.objects[path] = copy.deepcopy(dict(manifest))
        return self.objects[path]


async def test_a_volume_claim_that_exists_is_not_created_over_and_is_known_then() -> None:
    api: Any = CreatedClaims()
    sidecars: Any = SilentSidecars()
    cache = ObjectCache()
    replicas = ReplicaObserver(cache, sidecars, CredentialsCache(api))
    writer = EffectWriter(api, cache, OperatorMetrics(), replicas)
    ref = Ref("PersistentVolumeClaim", NAMESPACE, "store-orders-broker-0")
    meta = {"name": ref.name, "namespace": NAMESPACE, "uid": "theirs"}
    theirs: dict[str, Any] = {"apiVersion": "v1", "kind": ref.kind, "metadata": meta}
    api.objects[object_path(ref)] = theirs
    wanted = {**theirs, "metadata": {**meta, "uid": "ours"}}
    worker = WorkerState()
    await writer.carry_out(Create(wanted), ORDERS, resource(ORDERS), worker)
    assert (cache.get(ref) or {})["metadata"]["uid"] == "theirs"
    assert worker.unlabelled_objects == {ref}
    del api.objects[object_path(ref)]
    await writer.load_into_cache(ref, worker)
    await writer.carry_out(Create(wanted), ORDERS, resource(ORDERS), worker)
    assert (cache.get(ref) or {})["metadata"]["uid"] == "ours"


class FixedVolumes(FakeApiServer):
    """An API server whose StorageClass does not let volumes grow."""

    async def apply(self, manifest: Manifest) -> dict[str, Any]:
        if manifest["kind"] == "PersistentVolumeClaim":
            raise ApiError(403, "the storageclass must support resize")
        return await super().apply(manifest)


async def test_a_rejected_size_of_a_volume_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    api: Any = FixedVolumes()
    sidecars: Any = SilentSidecars()
    cache = ObjectCache()
    replicas = ReplicaObserver(cache, sidecars, CredentialsCache(api))
    writer = EffectWriter(api, cache, OperatorMetrics(), replicas)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "store-orders-broker-0", "namespace": NAMESPACE, "uid": "1"},
        "spec": {"resources": {"requests": {"storage": "20Gi"}}},
    }
    with pytest.raises(ApiError):
        await writer.carry_out(Apply(claim), ORDERS, resource(ORDERS), WorkerState())
    assert writer.rejected_claims(NAMESPACE) == {"store-orders-broker-0": "20Gi"}
    assert writer.rejected_claims("other") == {}
    monkeypatch.setattr(effect_writer_module, "REJECTED_FOR_S", 0.0)
    assert writer.rejected_claims(NAMESPACE) == {}


async def test_a_port_whose_number_somebody_has_changed_is_put_right() -> None:
    ports = [{"name": name, "port": port} for name, port in (("remoting", 10911), ("ha", 10912))]
    wanted = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE.name, "namespace": NAMESPACE, "uid": "1"},
        "spec": {"ports": ports},
    }
    wrong = [ports[0] | {"nodePort": 30_000, "protocol": "TCP"}, ports[1] | {"port": 10913}]
    server, cache = MergingServer(wanted | {"spec": {"ports": wrong}}), ObjectCache()
    cache.put(server.objects[object_path(SERVICE)])
    api: Any = server
    sidecars: Any = SilentSidecars()
    replicas = ReplicaObserver(cache, sidecars, CredentialsCache(api))
    writer = EffectWriter(api, cache, OperatorMetrics(), replicas)
    await writer.carry_out(Apply(wanted), QUORUM, resource(QUORUM), WorkerState())
    assert server.replaced == [[ports[0] | {"nodePort": 30_000}, ports[1]]]
    assert server.objects[object_path(SERVICE)]["spec"] == wanted["spec"]
    # What else the API server rejects stays an error.
    server.objects[object_path(SERVICE)]["spec"]["ports"] = [ports[0] | {"name": "ha"}]
    with pytest.raises(ApiError, match="Duplicate value"):
        await writer.carry_out(
            Apply(wanted | {"spec": {"ports": [*ports, ports[0] | {"name": "ha"}]}}),
            QUORUM,
            resource(QUORUM),
            WorkerState(),
        )
    assert len(server.replaced) == 1
