"""Tests workers against an API server with objects that are not in the cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from epochmq_operator.kube.api import object_path
from epochmq_operator.kube.group_reconciler import GroupReconciler
from epochmq_operator.kube.liveness import Liveness
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.reconciler import Reconciler, ReconcilerDependencies
from epochmq_operator.kube.replica_observer import ReplicaObserver
from epochmq_operator.kube.sidecar_credentials import CredentialsCache
from epochmq_operator.plans.objects import Ref
from tests.support.fake_api_server import FakeApiServer
from tests.unit.operator_plans.fake_api import NAMESPACE, RENDERER

QUORUM = Ref("ControllerGroup", NAMESPACE, "orders")
ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
SERVICE = Ref("Service", NAMESPACE, "orders-controller")
PATIENCE_S = 60


def resource(ref: Ref, **spec: Any) -> dict[str, Any]:
    """A group as a user creates it."""
    return {
        "apiVersion": "epochmq.io/v1alpha1",
        "kind": ref.kind,
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": f"uid-{ref.name}", "generation": 1},
        "spec": spec,
    }


class SilentSidecars:
    """Replicas that report nothing."""

    failures = 0

    async def states(self, *_: Any) -> Mapping[str, Any]:
        return {}


@asynccontextmanager
async def running_reconciler(
    server: FakeApiServer, *refs: Ref, liveness: Liveness | None = None
) -> AsyncIterator[tuple[Reconciler, ObjectCache]]:
    """Runs a reconciler with only these objects of the server in its cache."""
    api: Any = server
    silent: Any = SilentSidecars()
    cache = ObjectCache()
    replicas = ReplicaObserver(cache, silent, CredentialsCache(api))
    made = GroupReconciler(
        RENDERER,
        ReconcilerDependencies(api, cache, replicas, OperatorMetrics(), liveness or Liveness(), 4),
    )
    cache.on_change = made.object_changed
    for ref in refs:
        cache.put(server.objects[object_path(ref)])
    task = asyncio.ensure_future(made.run())
    try:
        yield made, cache
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    """Waits for the condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- it is of other tasks' making
            await asyncio.sleep(0.01)


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


async def test_a_resource_whose_deletion_was_missed_is_removed() -> None:
    server = FakeApiServer(resource(QUORUM, replicas=1))
    async with running_reconciler(server) as (_, cache):
        cache.put(server.objects.pop(object_path(QUORUM)))
        await until(lambda: cache.get(QUORUM) is None)
    assert server.applied == []
