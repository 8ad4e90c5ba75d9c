"""Runs the reconciler of backups against an API server and sidecars that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from epochmq_operator.backups.backup_pod import CUT_ANNOTATION, BackupSettings
from epochmq_operator.kube.api import object_path
from epochmq_operator.kube.backup_reconciler import BackupReconciler
from epochmq_operator.kube.liveness import Liveness
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.reconciler import ReconcilerDependencies
from epochmq_operator.kube.replica_observer import ReplicaObserver
from epochmq_operator.kube.sidecar_credentials import CredentialsCache
from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.reported_states import ReportedBrokerState, ReportedState
from epochmq_operator.resources.backup import BACKUP_KIND
from tests.support.fake_api_server import FakeApiServer
from tests.unit.operator.kube.running_reconcilers import resource, until
from tests.unit.operator.plans.fake_api import NAMESPACE

BACKUP = Ref(BACKUP_KIND, NAMESPACE, "nightly")
GROUP = Ref("BrokerGroup", NAMESPACE, "orders")
POD = Ref("Pod", NAMESPACE, "nightly-backup-1")
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


class Sidecars:
    """A master that confirms 1,000 bytes more each time it is asked. `asked` is called meanwhile."""

    failures = 0

    def __init__(self) -> None:
        self.confirmed = 0
        self.asked: Callable[[], None] = lambda: None

    async def states(self, *_: Any) -> Mapping[str, ReportedState]:
        self.confirmed += 1000
        found = ReportedBrokerState(
            broker_name="orders",
            broker_id=1,
            role="master",
            master_epoch=3,
            sync_state_set=[1],
            confirm_offset=self.confirmed,
            confirmed_by_all=True,
            max_offset=self.confirmed,
        )
        await asyncio.sleep(0)
        self.asked()
        return {"orders-broker-0": found}


class Cluster:
    """The API server, the cache in front of it, and the sidecars."""

    def __init__(self) -> None:
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "store-orders-broker-0", "namespace": NAMESPACE},
        }
        backup = resource(BACKUP, brokerGroup="orders", url="s3://backups/orders")
        self.server = FakeApiServer(resource(GROUP, replicas=1), claim, backup)
        self.cache, self.sidecars = ObjectCache(), Sidecars()
        api: Any = self.server
        sidecars: Any = self.sidecars
        replicas = ReplicaObserver(self.cache, sidecars, CredentialsCache(api))
        needs = ReconcilerDependencies(api, self.cache, replicas, OperatorMetrics(), Liveness(), 4)
        self.reconciler = BackupReconciler(BackupSettings(image="epochmq/spark:1"), needs)
        self.cache.on_change = self.reconciler.object_changed
        for found in self.server.objects.values():
            self.cache.put(found)

    def put(self, found: dict[str, Any]) -> None:
        """Stores an object at the server and delivers it as a watch does."""
        self.cache.put(self.server.put(found))

    @property
    def pod(self) -> dict[str, Any]:
        return self.server.objects[object_path(POD)]

    @property
    def cut(self) -> str | None:
        found: str | None = self.pod["metadata"]["annotations"].get(CUT_ANNOTATION)
        return found

    async def run(self, body: Callable[[], Any]) -> None:
        task = asyncio.ensure_future(self.reconciler.run())
        try:
            await body()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("ready_while_asked", [False, True])
def test_the_cut_is_what_was_confirmed_after_the_pod_was_ready(ready_while_asked: bool) -> None:
    """The cache is a view: a pod may become ready while the replicas are asked for something else, here for
    the choice of the volume, which an operator before this one has made already."""
    cluster, ready_at = Cluster(), []

    def make_ready() -> None:
        if object_path(POD) in cluster.server.objects and not ready_at:
            ready_at.append(cluster.sidecars.confirmed)
            cluster.put({**cluster.pod, "status": READY})

    def former_operator() -> None:
        if not ready_at:
            uid = "uid-nightly"
            owner = {"apiVersion": "epochmq.io/v1alpha1", "kind": BACKUP_KIND, "name": "nightly", "uid": uid}
            labels = {"epochmq.io/replica": "orders-broker-0", "epochmq.io/run": "1"}
            meta: dict[str, Any] = {
                "name": POD.name,
                "namespace": NAMESPACE,
                "labels": labels,
                "annotations": {},
            }
            cluster.put(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {**meta, "ownerReferences": [owner]},
                    "spec": {},
                }
            )
            make_ready()

    async def body() -> None:
        if ready_while_asked:
            cluster.sidecars.asked = former_operator
        await until(lambda: object_path(POD) in cluster.server.objects)
        make_ready()
        await until(lambda: cluster.cut is not None)

    asyncio.run(cluster.run(body))
    assert int(str(cluster.cut)) > ready_at[0]
    assert cluster.server.applied.count(POD) == (0 if ready_while_asked else 1)


def test_a_run_ends_with_what_its_pod_says() -> None:
    cluster = Cluster()
    message = '{"id":"20300131T140000Z-0a1b2c","logEnd":1000,"bytes":5,"replica":"orders-broker-0"}'
    ended = {"state": {"terminated": {"exitCode": 0, "message": message}}}

    def status() -> dict[str, Any]:
        found: dict[str, Any] = cluster.server.objects[object_path(BACKUP)].get("status") or {}
        return found

    async def body() -> None:
        await until(lambda: object_path(POD) in cluster.server.objects)
        cluster.put({**cluster.pod, "status": {"phase": "Succeeded", "containerStatuses": [ended]}})
        await until(lambda: status().get("phase") == "Done")

    asyncio.run(cluster.run(body))
    assert (status()["backup"], status()["logEnd"]) == ("20300131T140000Z-0a1b2c", 1000)
    metrics = OperatorMetrics()
    metrics.collect_backups(lambda: [(BACKUP, cluster.server.objects[object_path(BACKUP)])])
    values = {
        sample.name: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith("epochmq_backup_")
    }
    assert values["epochmq_backup_failed"] == 0
    assert values["epochmq_backup_bytes"] == 5
    assert values["epochmq_backup_success_timestamp_seconds"] > 1_700_000_000
