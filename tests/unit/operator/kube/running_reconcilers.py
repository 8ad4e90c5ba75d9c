"""A reconciler that runs against an API server that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from epochmq_operator.kube.api import object_path
from epochmq_operator.kube.group_reconciler import GroupReconciler
from epochmq_operator.kube.liveness import Liveness
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.reconciler import Reconciler, ReconcilerDependencies
from epochmq_operator.kube.replica_observer import ReplicaObserver
from epochmq_operator.kube.sidecar_credentials import CredentialsCache
from epochmq_operator.kube.watch_states import WatchStates
from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.renderer import Renderer
from tests.support.fake_api_server import FakeApiServer
from tests.unit.operator.plans.fake_api import NAMESPACE, RENDERER

QUORUM = Ref("ControllerGroup", NAMESPACE, "orders")
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

    def can_change(self, *_: Any) -> bool:
        return False


@asynccontextmanager
async def running_reconciler(
    server: FakeApiServer,
    *refs: Ref,
    liveness: Liveness | None = None,
    watches: WatchStates | None = None,
    renderer: Renderer = RENDERER,
) -> AsyncIterator[tuple[Reconciler, ObjectCache]]:
    """Runs a reconciler with only these objects of the server in its cache."""
    api: Any = server
    silent: Any = SilentSidecars()
    cache = ObjectCache()
    replicas = ReplicaObserver(cache, silent, CredentialsCache(api))
    made = GroupReconciler(
        renderer,
        ReconcilerDependencies(
            api,
            cache,
            replicas,
            OperatorMetrics(),
            liveness or Liveness(),
            4,
            watches or WatchStates(),
        ),
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
