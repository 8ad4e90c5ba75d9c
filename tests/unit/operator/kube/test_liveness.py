"""Tests that `/live` fails for an activity that never ends, and only for that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from epochmq_operator.kube import liveness as module
from epochmq_operator.kube.liveness import Liveness
from epochmq_operator.kube.metrics import OperatorMetrics, serve_metrics
from epochmq_operator.kube.object_cache import Informer, ObjectCache
from epochmq_operator.kube.watch_states import WatchStates
from tests.support.fake_api_server import FakeApiServer
from tests.support.net import loopback
from tests.unit.operator.kube.running_reconcilers import QUORUM, resource, running_reconciler, until
from tests.unit.operator.kube.watched_objects import Watching, pod

HOST = loopback(93)


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_an_activity_is_stuck_when_it_exceeds_its_limit() -> None:
    clock = Clock()
    liveness = Liveness(clock)
    liveness.begin("the watch of Pod", 30)
    with liveness.during("the reconciliation of a/b", 10):
        clock.now_s += 10
        assert liveness.stuck() == []
        clock.now_s += 1
        assert liveness.stuck() == ["the reconciliation of a/b has not ended within 10 s"]
    assert liveness.stuck() == []
    clock.now_s += 10
    liveness.begin("the watch of Pod", 30)
    clock.now_s += 30
    assert liveness.stuck() == []
    clock.now_s += 1
    assert liveness.stuck() == ["the watch of Pod has not ended within 30 s"]


async def test_the_probe_names_what_is_stuck() -> None:
    stuck: list[str] = []
    async with (
        serve_metrics(OperatorMetrics(), HOST, 0, lambda: stuck, lambda: ["not listed"]) as port,
        aiohttp.ClientSession() as session,
    ):

        async def probe(path: str) -> tuple[int, str]:
            async with session.get(f"http://{HOST}:{port}{path}") as response:
                return response.status, await response.text()

        assert await probe("/live") == (200, "yes")
        stuck += ["one", "two"]
        assert await probe("/live") == (503, "one\ntwo")
        assert await probe("/ready") == (503, "not listed")


class SilentServer(FakeApiServer):
    """An API server whose writes never end."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        super().__init__(*objects)
        self.asked = asyncio.Event()

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_reconciliation_that_never_ends_is_stuck() -> None:
    clock = Clock()
    liveness, server = Liveness(clock), SilentServer(resource(QUORUM, replicas=1))
    async with running_reconciler(server, QUORUM, liveness=liveness):
        await asyncio.wait_for(server.asked.wait(), 60)
        assert liveness.stuck() == []
        clock.now_s += module.RECONCILIATION_LIMIT_S + 1
        assert liveness.stuck() == [
            f"the reconciliation of ControllerGroup {QUORUM.namespace}/{QUORUM.name}"
            " has not ended within 600 s"
        ]


async def test_a_pause_between_reconciliations_is_not_stuck() -> None:
    clock = Clock()
    liveness, server = Liveness(clock), FakeApiServer(resource(QUORUM, replicas=1))
    async with running_reconciler(server, QUORUM, liveness=liveness):
        await until(lambda: server.applied)
        clock.now_s += 100_000
        await until(lambda: liveness.stuck() == [])


async def test_a_watch_that_never_ends_is_stuck() -> None:
    clock = Clock()
    liveness, api = Liveness(clock), Watching(([pod("p", 1)], []))
    informer = Informer(api, ObjectCache(), "Pod", "shop", "", WatchStates(liveness, clock))  # type: ignore[arg-type]
    task = asyncio.ensure_future(informer.run())
    await asyncio.wait_for(api.idle.wait(), 60)
    clock.now_s += module.WATCH_LIMIT_S
    assert liveness.stuck() == []
    clock.now_s += 1
    assert liveness.stuck() == ["the watch of Pod in shop has not ended within 900 s"]
    task.cancel()
