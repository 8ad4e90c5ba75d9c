"""Tests that no reconciliation waits for an Event, whatever the API server responds to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from epochmq_operator.kube import event_poster as module
from epochmq_operator.kube.api import ApiError, object_path
from epochmq_operator.kube.event_poster import ATTEMPTS, QUEUED_MAX, EventPoster
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.plans.effects import CreateEvent, EventType
from epochmq_operator.plans.objects import FINALIZER, Ref
from tests.support.fake_api_server import FakeApiServer
from tests.unit.operator.kube.running_reconcilers import QUORUM, resource, running_reconciler, until
from tests.unit.operator.plans.fake_api import NAMESPACE

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
LIMIT, OUTAGE, TERMINATING, DEFECT = 429, 500, 403, -1


class ServerWithoutEvents(FakeApiServer):
    """An API server that responds to every Event with an error, or never for the status 0."""

    def __init__(self, status: int, *objects: dict[str, Any]) -> None:
        super().__init__(*objects)
        self.attempts = 0
        self._status = status

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        if manifest["kind"] != "Event":
            return await super().create(manifest)
        self.attempts += 1
        if self._status == 0:
            await asyncio.Event().wait()
        if self._status == DEFECT:
            raise TypeError("a defect")
        raise ApiError(self._status, "events are not accepted")


def event(number: int) -> CreateEvent:
    """An Event with a key of its own."""
    return CreateEvent(EventType.NORMAL, "Created", f"event {number}", f"key {number}")


@pytest.mark.parametrize("status", [LIMIT, OUTAGE, TERMINATING, DEFECT, 0])
async def test_a_group_is_made_while_the_api_server_accepts_no_event(status: int) -> None:
    server = ServerWithoutEvents(status, resource(QUORUM, replicas=3))
    async with running_reconciler(server, QUORUM):
        await until(lambda: Ref("StatefulSet", NAMESPACE, "orders-controller") in server.applied)
        await until(lambda: server.attempts)
    assert "status" in server.objects[object_path(QUORUM)]


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_guarded_group_goes_with_its_namespace_that_accepts_no_event(confirmed: bool) -> None:
    group = resource(ORDERS, replicas=1, deletionGuard=confirmed, controllerGroup="quorum")
    group["metadata"] |= {"finalizers": [FINALIZER], "deletionTimestamp": "2027-01-15T08:00:00Z"}
    group["metadata"]["annotations"] = {"epochmq.io/confirm-deletion": "orders"} if confirmed else {}
    server = ServerWithoutEvents(TERMINATING, group)
    async with running_reconciler(server, ORDERS):
        await until(lambda: object_path(ORDERS) not in server.objects)
        await until(lambda: server.attempts)


async def lost(poster: EventPoster, metrics: OperatorMetrics, count: int) -> None:
    """Runs the poster until it has dropped so many Events."""
    task = asyncio.ensure_future(poster.run())
    try:
        await until(lambda: metrics.registry.get_sample_value("epochmq_operator_events_lost_total") == count)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("status", "attempts"), [(LIMIT, ATTEMPTS), (OUTAGE, ATTEMPTS), (TERMINATING, 1), (DEFECT, 1)]
)
async def test_an_event_is_posted_again_unless_it_was_rejected_and_then_counted(
    status: int, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    api: Any = ServerWithoutEvents(status)
    metrics = OperatorMetrics()
    poster = EventPoster(api, metrics)
    assert poster.put(event(1), ORDERS, resource(ORDERS))
    assert not poster.put(event(1), ORDERS, resource(ORDERS)), "one occurrence makes one Event"
    await lost(poster, metrics, 1)
    assert api.attempts == attempts


async def test_the_queue_is_bounded_and_drops_the_oldest() -> None:
    api: Any = FakeApiServer()
    metrics = OperatorMetrics()
    poster = EventPoster(api, metrics)
    for number in range(QUEUED_MAX + 3):
        poster.put(event(number), ORDERS, resource(ORDERS))
    assert metrics.registry.get_sample_value("epochmq_operator_events_lost_total") == 3
    task = asyncio.ensure_future(poster.run())
    await until(lambda: len(api.events) == QUEUED_MAX)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
