"""Tests that the operator knows what it cannot see, waits for what may come back, and works without what
cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from epochmq_operator.kube import watch_states as module
from epochmq_operator.kube.api import Api, object_path
from epochmq_operator.kube.kopf_watch import ResourceWatch, kopf_watch
from epochmq_operator.kube.liveness import WATCH_LIMIT_S, Liveness
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.kube.object_cache import Informer, ObjectCache
from epochmq_operator.kube.watch_states import (
    FAILING_FOR_S,
    FORBIDDEN_FOR_S,
    STALE_AFTER_S,
    WatchStates,
)
from epochmq_operator.plans.objects import Ref
from tests.support.fake_api_server import FakeApiServer
from tests.support.net import loopback
from tests.unit.operator.kube.cluster_of_resources import ClusterOfResources, served
from tests.unit.operator.kube.running_reconcilers import QUORUM, resource, running_reconciler, until

HOST = loopback(96)
GROUPS = frozenset({"BrokerGroup", "ControllerGroup"})


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def two_watches(clock: Clock) -> WatchStates:
    """Watches of Pods in two namespaces, both of which work."""
    states = WatchStates(clock_s=clock)
    for namespace in ("a", "b"):
        states.listed("Pod", namespace)
    return states


def test_an_operator_is_blind_until_every_watch_has_listed_and_while_one_fails() -> None:
    states = WatchStates(clock_s=Clock())
    states.expect("Pod", None)
    assert states.blind() == ["the watch of Pod in all namespaces has not listed yet"]
    states.heard("Pod", None)
    assert states.blind() == ["the watch of Pod in all namespaces has not listed yet"]
    states.listed("Pod", None)
    assert states.blind() == []
    states.failed("Pod", None, 503, "shutting down")
    assert states.blind() == ["the watch of Pod in all namespaces fails: shutting down"]
    states.heard("Pod", None)
    assert states.blind() == []


def test_a_watch_without_a_response_is_stale() -> None:
    clock = Clock()
    states = two_watches(clock)
    clock.now_s += STALE_AFTER_S
    states.heard("Pod", "a")
    assert states.blind() == []
    clock.now_s += 1
    assert states.blind() == ["the watch of Pod in b has had no response for 601 s"]


@pytest.mark.parametrize(("status", "limit_s"), [(403, FORBIDDEN_FOR_S), (503, FAILING_FOR_S)])
def test_a_namespace_that_cannot_be_read_is_given_up_and_comes_back(status: int, limit_s: float) -> None:
    clock = Clock()
    states = two_watches(clock)
    states.failed("Pod", "b", status, "forbidden")
    clock.now_s += limit_s
    states.failed("Pod", "b", status, "forbidden")
    assert states.blind() == ["the watch of Pod in b fails: forbidden"]
    assert states.missing(["Pod"], "b") == ""
    clock.now_s += 1
    states.failed("Pod", "b", status, "forbidden")
    assert states.blind() == []
    assert states.missing(["Pod"], "b") == "the watch of Pod in b fails: forbidden"
    assert states.missing(["Pod"], "a") == states.missing(["Secret"], "b") == ""
    states.listed("Pod", "b")
    assert states.blind() == []
    assert states.missing(["Pod"], "b") == ""


def test_nothing_is_given_up_while_the_api_server_is_down_nor_right_after() -> None:
    clock = Clock()
    states = two_watches(clock)
    for _ in range(10):
        clock.now_s += FAILING_FOR_S
        for namespace in ("a", "b"):
            states.failed("Pod", namespace, 503, "down")
        assert len(states.blind()) == 2
    states.heard("Pod", "a")
    assert states.blind() == ["the watch of Pod in b fails: down"]
    clock.now_s += FAILING_FOR_S + 1
    assert states.blind() == []


def test_each_watch_has_an_age_among_the_metrics_and_is_live_while_it_fails() -> None:
    clock = Clock()
    liveness, metrics = Liveness(clock), OperatorMetrics()
    states = WatchStates(liveness, clock)
    metrics.collect_watches(states.ages)
    states.listed("Pod", None)
    states.failed("Service", "a", 403, "forbidden")
    clock.now_s += 70

    def value(name: str, kind: str, where: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"kind": kind, "watched_namespace": where})

    assert value("epochmq_operator_watch_age_seconds", "Pod", "all namespaces") == 70
    assert value("epochmq_operator_watch_failing", "Pod", "all namespaces") == 0
    assert value("epochmq_operator_watch_failing", "Service", "a") == 1
    clock.now_s += WATCH_LIMIT_S
    states.failed("Service", "a", 403, "forbidden")
    assert liveness.stuck() == ["the watch of Pod in all namespaces has not ended within 900 s"]
    states.forget("Pod", None)
    assert liveness.stuck() == []


async def test_a_group_is_not_reconciled_without_the_objects_that_its_plan_needs() -> None:
    server, clock = FakeApiServer(resource(QUORUM, replicas=1)), Clock()
    states = WatchStates(clock_s=clock)
    states.listed("Service", None)
    states.expect("Pod", QUORUM.namespace)
    async with running_reconciler(server, QUORUM, watches=states) as (reconciler, _):
        await until(lambda: blind_passes(reconciler) == 1)
        assert server.applied == []
        states.listed("Pod", QUORUM.namespace)
        reconciler.object_changed(server.objects[object_path(QUORUM)])
        await until(lambda: server.applied)


def blind_passes(reconciler: Any) -> float | None:
    """The number of reconciliations that did nothing because objects cannot be seen."""
    labels = {"kind": "ControllerGroup", "outcome": "blind"}
    found: float | None = reconciler._metrics.registry.get_sample_value(
        "epochmq_operator_passes_total", labels
    )
    return found


async def test_one_forbidden_namespace_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """At start, when a namespace is deleted while the operator runs, and when it is there again."""
    monkeypatch.setattr(module, "FORBIDDEN_FOR_S", 0.0)
    monkeypatch.setattr("epochmq_operator.kube.kopf_watch.PROBE_S", 0.0)
    monkeypatch.setattr("epochmq_operator.kube.kopf_watch.LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr("epochmq_operator.kube.kopf_watch.RESTART_AFTER_S", 0.0)
    cluster, cache, states = ClusterOfResources(), ObjectCache(), WatchStates()
    cluster.forbidden.add("b")

    def known(name: str, namespace: str) -> bool:
        return cache.get(Ref("BrokerGroup", namespace, name)) is not None

    def watched(namespace: str) -> bool:
        return any(path.endswith(f"/{namespace}/brokergroups") for path, _ in cluster.watches)

    async with served(cluster, HOST) as connection:
        api = Api(connection)
        watch = kopf_watch(cache, connection, states)
        task = asyncio.ensure_future(ResourceWatch(api, cache, states, watch, GROUPS, ["a", "b"]).run())
        try:
            await until(lambda: watched("a"))
            cluster.create("first", "a")
            await until(lambda: known("first", "a"))
            assert states.missing(GROUPS, "a") == "" != states.missing(GROUPS, "b")
            assert states.blind() == []
            cluster.forbidden.clear()
            await until(lambda: watched("b") and watched("a"))
            cluster.create("second", "b")
            await until(lambda: known("second", "b"))
            assert states.missing(GROUPS, "b") == ""
            cluster.forbidden.add("b")
            cluster.fail("b/brokergroups")
            await until(lambda: states.missing(GROUPS, "b") and watched("a"))
            cluster.create("third", "a")
            await until(lambda: known("third", "a"))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.close()


async def test_a_resource_that_was_deleted_while_kopf_did_not_run_is_gone_after_its_start() -> None:
    cluster, cache, states = ClusterOfResources(), ObjectCache(), WatchStates()
    cluster.create("orders", "a")
    async with served(cluster, HOST) as connection:
        api = Api(connection)
        watch = kopf_watch(cache, connection, states)
        task = asyncio.ensure_future(ResourceWatch(api, cache, states, watch, GROUPS, ["a"]).run())
        try:
            await until(lambda: cluster.running("brokergroups"))
            assert cache.get(Ref("BrokerGroup", "a", "orders")) is not None
            cluster.items.clear()
            cluster.fail("brokergroups")
            await until(lambda: cache.get(Ref("BrokerGroup", "a", "orders")) is None)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.close()


async def test_an_informer_reports_what_it_cannot_read() -> None:
    cluster, states = ClusterOfResources(), WatchStates()
    cluster.forbidden.add("b")
    async with served(cluster, HOST) as connection:
        api = Api(connection)
        informer = Informer(api, ObjectCache(), "Pod", "b", "", states)
        task = asyncio.ensure_future(informer.run())
        try:
            await until(lambda: states.blind() == ["the watch of Pod in b fails: forbidden"])
            cluster.forbidden.clear()
            await until(lambda: states.blind() == [])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.close()
