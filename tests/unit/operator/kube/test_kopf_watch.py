"""Tests that the kinds that are defined in the cluster are watched, whenever their definitions are
installed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from epochmq_operator.kube.api import Api, ApiError
from epochmq_operator.kube.kopf_watch import (
    RESTARTS_MAX,
    WATCHED_KINDS,
    ResourceWatch,
    WatchedScope,
    WatchEndedError,
    kopf_watch,
)
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.watch_states import WatchStates
from epochmq_operator.plans.objects import Ref
from tests.support.net import loopback
from tests.unit.operator.kube.cluster_of_resources import ClusterOfResources, served

HOST = loopback(95)

PATIENCE_S = 30
GROUPS = frozenset({"BrokerGroup", "ControllerGroup"})
ALL = frozenset(WATCHED_KINDS)


class Discovery:
    """An API server that answers which kinds it knows, and lists no resources. `failing`: it answers with
    503."""

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self.failing = False
        self.requests = 0

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/apis/epochmq.io/v1alpha1"
        self.requests += 1
        if self.failing:
            raise ApiError(503, "the API server starts")
        if not self.kinds:
            raise ApiError(404, "the group is not defined")
        names = [{"name": f"{kind.lower()}s", "kind": kind} for kind in (*sorted(self.kinds), "Other")]
        return {"resources": [*names, *({**one, "name": f"{one['name']}/status"} for one in names)]}

    async def list(self, kind: str, namespace: str | None, selector: str) -> tuple[list[Any], str]:
        return [], "1"


class Watches:
    """The watches that were started, each with its kinds; `now` are the kinds of the running ones."""

    def __init__(self) -> None:
        self.started: list[frozenset[str]] = []
        self.now: list[frozenset[str]] = []
        self.broken = threading.Event()

    def watch(self, scope: WatchedScope, stop: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        self.started.append(scope.kinds)
        self.now.append(scope.kinds)
        while not stop.wait(0.001) and not self.broken.is_set():
            pass
        self.now.remove(scope.kinds)


def watching(discovery: Discovery, watches: Watches) -> Coroutine[Any, Any, None]:
    """Watches the resources of an API server."""
    return ResourceWatch(cast(Api, discovery), ObjectCache(), WatchStates(), watches.watch).run()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions are looked at often."""
    monkeypatch.setattr("epochmq_operator.kube.kopf_watch.LOOK_AGAIN_S", 0.001)


async def until(watches: Watches, running: list[frozenset[str]]) -> None:
    """Waits until these watches run."""
    async with asyncio.timeout(PATIENCE_S):
        while watches.now != running:  # noqa: ASYNC110 -- they run on other threads
            await asyncio.sleep(0.001)


async def test_definitions_that_are_installed_late_are_watched() -> None:
    discovery, watches = Discovery(frozenset()), Watches()
    task = asyncio.create_task(watching(discovery, watches))
    async with asyncio.timeout(PATIENCE_S):
        while discovery.requests < 5:  # noqa: ASYNC110 -- a counter of a fake
            await asyncio.sleep(0.001)
    assert watches.started == []
    for kinds in (GROUPS, ALL, GROUPS, ALL):
        discovery.kinds = kinds
        await until(watches, [kinds])
    assert watches.started == [GROUPS, ALL, GROUPS, ALL]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(watches, [])


async def test_an_api_server_that_fails_for_a_moment_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochmq_operator.kube.kopf_watch.FAILED_AGAIN_S", 0.001)
    discovery, watches = Discovery(ALL), Watches()
    task = asyncio.create_task(watching(discovery, watches))
    await until(watches, [ALL])
    discovery.failing = True
    seen = discovery.requests
    async with asyncio.timeout(PATIENCE_S):
        while discovery.requests < seen + 5:  # noqa: ASYNC110 -- a counter of a fake
            await asyncio.sleep(0.001)
    discovery.failing = False
    seen = discovery.requests
    async with asyncio.timeout(PATIENCE_S):
        while discovery.requests < seen + 5:  # noqa: ASYNC110 -- a counter of a fake
            await asyncio.sleep(0.001)
    assert watches.started == watches.now == [ALL]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_kopf_is_started_again_a_few_times_and_then_its_end_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epochmq_operator.kube.kopf_watch.RESTART_AFTER_S", 0.0)
    discovery, watches = Discovery(ALL), Watches()
    watches.broken.set()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(WatchEndedError, match="kopf ended unexpectedly"):
            await watching(discovery, watches)
    assert watches.started == [ALL] * (RESTARTS_MAX + 1)


async def test_ends_of_kopf_that_are_far_apart_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochmq_operator.kube.kopf_watch.RESTART_AFTER_S", 0.0)
    monkeypatch.setattr("epochmq_operator.kube.kopf_watch.RESTARTS_WITHIN_S", 0.0)
    discovery, watches = Discovery(ALL), Watches()
    watches.broken.set()
    task = asyncio.create_task(watching(discovery, watches))
    async with asyncio.timeout(PATIENCE_S):
        while len(watches.started) < 2 * RESTARTS_MAX:  # noqa: ASYNC110 -- they run on other threads
            await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("code", [500, 410])
async def test_resources_are_seen_after_an_error_ended_a_watch_of_kopf(code: int) -> None:
    cluster, cache = ClusterOfResources(), ObjectCache()
    async with served(cluster, HOST) as connection, asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        api = Api(connection)
        states = WatchStates()
        watch = kopf_watch(cache, connection, states)
        task = tasks.create_task(ResourceWatch(api, cache, states, watch, GROUPS, ["shop"]).run())
        while not cluster.running("brokergroups"):  # noqa: ASYNC110 -- the server's
            await asyncio.sleep(0.01)
        cluster.create("orders")
        while cache.get(Ref("BrokerGroup", "shop", "orders")) is None:  # noqa: ASYNC110 -- kopf's
            await asyncio.sleep(0.01)
        cluster.fail("brokergroups", code)
        while cluster.running("brokergroups"):  # noqa: ASYNC110 -- the server's
            await asyncio.sleep(0.01)
        cluster.create("payments")
        while cache.get(Ref("BrokerGroup", "shop", "payments")) is None:  # noqa: ASYNC110 -- kopf's
            await asyncio.sleep(0.01)
        task.cancel()
        await api.close()
