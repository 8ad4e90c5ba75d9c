"""Tests how an order to replace a replica reaches the operator, and what the operator requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.client import Configuration

from epochmq_operator.kube import group_reconciler, replacement_order
from epochmq_operator.kube.api import Api, ApiError, object_path
from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.kube.replacement_order import order_replacement
from epochmq_operator.named_replica import ReplicaControlError, named_controller
from epochmq_operator.plans.effects import ReconciliationResult
from epochmq_operator.plans.objects import REPLACE_REPLICA, Ref, annotation
from epochmq_operator.plans.observed_state import NodeState, ObservedState
from tests.support.fake_api_server import FakeApiServer
from tests.unit.operator.kube.running_reconcilers import QUORUM, resource, running_reconciler, until
from tests.unit.operator.plans.fake_api import NAMESPACE

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
POD = Ref("Pod", NAMESPACE, "orders-broker-2")
CLAIM = Ref("PersistentVolumeClaim", NAMESPACE, f"store-{POD.name}")
ORDER = f"{POD.name}.uid-7"
UNTIL_S = 30


def cluster(**annotations: str) -> FakeApiServer:
    """An API server with a group, its StatefulSet and a volume claim."""
    group = resource(ORDERS, replicas=3)
    group["metadata"]["annotations"] = annotations
    place = {"namespace": NAMESPACE}
    stateful_set = {
        "kind": "StatefulSet",
        "metadata": {"name": "orders-broker", **place},
        "spec": {"volumeClaimTemplates": [{"metadata": {"name": "store"}}]},
    }
    claim = {"kind": CLAIM.kind, "metadata": {"name": CLAIM.name, "uid": "uid-7", **place}}
    return FakeApiServer(group, stateful_set, claim)


async def ordered(server: Any, timeout_s: float = UNTIL_S, *, fewer: bool = False) -> None:
    """Orders a new volume for replica 2."""
    await order_replacement(server, ORDERS, POD.name, timeout_s, fewer=fewer)


async def respond(server: FakeApiServer, order: str, state: str, message: str) -> None:
    """What the operator does when it sees the order."""
    await until(lambda: annotation(server.objects[object_path(ORDERS)], REPLACE_REPLICA) == order)
    found = server.objects[object_path(ORDERS)]
    status = {"replacement": {"order": order, "state": state, "message": message}}
    await server.put_status(ORDERS, found["metadata"]["resourceVersion"], status)
    await server.remove_annotation(ORDERS, REPLACE_REPLICA, order)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacement_order, "POLL_S", 0.0)


@pytest.mark.parametrize(("fewer", "order"), [(False, ORDER), (True, f"{ORDER}.fewer-copies")])
async def test_an_order_ends_when_the_operator_has_carried_it_out(fewer: bool, order: str) -> None:
    server = cluster()
    await asyncio.gather(ordered(server, fewer=fewer), respond(server, order, "Replaced", "done"))


async def test_a_refusal_is_an_error_with_the_operators_reason_also_the_second_time() -> None:
    server = cluster()
    for why in ("no leader", "no master"):
        with pytest.raises(ReplicaControlError, match=f"the operator does not replace it: {why}"):
            await asyncio.gather(
                ordered(server), respond(server, ORDER, "Refused", f"does not replace it: {why}")
            )


async def test_an_order_that_has_not_ended_in_time_stays_and_says_what_it_waits_for() -> None:
    server = cluster()
    with pytest.raises(ReplicaControlError, match="the operator has not read the order; the order stays"):
        await ordered(server, 0.0)
    group = server.objects[object_path(ORDERS)]
    assert annotation(group, REPLACE_REPLICA) == ORDER
    group["status"] = {"replacement": {"order": ORDER, "state": "Replacing", "message": "waits for a node"}}
    with pytest.raises(
        ReplicaControlError, match="waits for a node; the order stays; to take it back: kubectl"
    ):
        await ordered(server, 0.0)


async def test_there_is_one_order_at_a_time_and_none_for_a_replica_without_a_volume() -> None:
    with pytest.raises(ReplicaControlError, match=r"another order is being carried out: orders-broker-1\.x"):
        await ordered(cluster(**{REPLACE_REPLICA: "orders-broker-1.x"}))
    server = cluster()
    del server.objects[object_path(CLAIM)]
    with pytest.raises(ReplicaControlError, match=f"{CLAIM} does not exist"):
        await ordered(server)


async def test_an_order_for_a_controller_names_its_group_and_its_own_volume() -> None:
    quorum, pod = Ref("ControllerGroup", NAMESPACE, "quorum"), "quorum-controller-1"
    place = {"namespace": NAMESPACE}
    templates = {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}
    stateful_set = {
        "kind": "StatefulSet",
        "metadata": {"name": "quorum-controller", **place},
        "spec": templates,
    }
    claim = {"kind": CLAIM.kind, "metadata": {"name": f"data-{pod}", "uid": "uid-9", **place}}
    server = FakeApiServer(resource(quorum, replicas=3), stateful_set, claim)
    with pytest.raises(
        ReplicaControlError, match="kubectl annotate controllergroup quorum --namespace trade"
    ):
        await order_replacement(server, quorum, pod, 0.0, fewer=False)  # type: ignore[arg-type]
    assert annotation(server.objects[object_path(quorum)], REPLACE_REPLICA) == f"{pod}.uid-9"
    del server.objects[object_path(Ref("StatefulSet", NAMESPACE, "quorum-controller"))]
    with pytest.raises(ReplicaControlError, match="ControllerGroup quorum has no controllers in this name"):
        await order_replacement(server, quorum, pod, 0.0, fewer=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["quorum/1", "quorum/quorum-controller-1"])
def test_a_controller_is_named_by_its_group_and_its_pod(name: str) -> None:
    assert named_controller(name) == ("quorum", "quorum-controller-1")


@pytest.mark.parametrize("name", ["", "quorum", "quorum/", "/1", "quorum/x", "quorum/orders-controller-1"])
def test_another_form_of_a_controllers_name_is_an_error(name: str) -> None:
    with pytest.raises(ReplicaControlError, match="expected GROUP/CONTROLLER, such as orders/0"):
        named_controller(name)


async def test_the_operator_answers_an_order_in_the_status_and_removes_it() -> None:
    server = cluster(**{REPLACE_REPLICA: ORDER})
    server.put(resource(QUORUM, replicas=1))
    async with running_reconciler(server, ORDERS, QUORUM):
        await until(lambda: annotation(server.objects[object_path(ORDERS)], REPLACE_REPLICA) is None)
    answer = server.objects[object_path(ORDERS)]["status"]["replacement"]
    assert (answer["order"], answer["state"]) == (ORDER, "Refused")


class Nodes(FakeApiServer):
    """An API server that does not let the operator read one of its nodes."""

    async def get(self, path: str) -> dict[str, Any]:
        if path.endswith("/nodes/secret"):
            raise ApiError(403, "forbidden")
        if path.endswith("/nodes/down"):
            return {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        return await super().get(path)


@pytest.mark.parametrize(
    ("node", "states"),
    [("down", {"down": NodeState.NOT_READY}), ("gone", {"gone": NodeState.GONE}), ("secret", {})],
)
async def test_the_operator_asks_for_the_node_of_a_pod_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch, node: str, states: Mapping[str, NodeState]
) -> None:
    seen: list[ObservedState] = []

    def note(_: Any, observed: ObservedState, __: float) -> ReconciliationResult:
        seen.append(observed)
        return ReconciliationResult()

    monkeypatch.setattr(group_reconciler, "reconcile", note)
    group = resource(ORDERS, replicas=3)
    group["metadata"]["annotations"] = {REPLACE_REPLICA: ORDER}
    meta = {"name": POD.name, "namespace": NAMESPACE, "deletionTimestamp": "2027-01-15T08:00:00Z"}
    server = Nodes(group, {"kind": "Pod", "metadata": meta, "spec": {"nodeName": node}})
    async with running_reconciler(server, ORDERS, POD):
        await until(lambda: seen)
    assert seen[0].nodes == states


@asynccontextmanager
async def recorded_requests(status: int) -> AsyncIterator[tuple[Api, list[tuple[str, str, str, Any]]]]:
    """An API client, and what it requests: method, path, content type and body. Every response has this
    status."""
    requests: list[tuple[str, str, str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append(
            (request.method, request.raw_path, request.content_type, json.loads(await request.text()))
        )
        return web.json_response({"metadata": {}, "message": "no"}, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = Api(ClusterConnection(url, NAMESPACE, Configuration(host=url)))
    try:
        yield api, requests
    finally:
        await api.close()
        await runner.cleanup()


async def test_a_forced_deletion_has_no_grace_period_and_both_name_the_uid() -> None:
    async with recorded_requests(200) as (api, requests):
        await api.delete(POD, "uid-1")
        await api.delete(POD, "uid-1", forced=True)
    plain, forced = (body for *_, body in requests)
    assert plain == {"preconditions": {"uid": "uid-1"}, "propagationPolicy": "Background"}
    assert forced == {**plain, "gracePeriodSeconds": 0}


async def test_an_annotation_is_removed_only_with_its_value() -> None:
    path = "/metadata/annotations/epochmq.io~1replace-replica"
    async with recorded_requests(422) as (api, requests):
        assert await api.remove_annotation(ORDERS, REPLACE_REPLICA, ORDER) is None
    ((method, _, kind, body),) = requests
    assert (method, kind) == ("PATCH", "application/json-patch+json")
    assert body == [{"op": "test", "path": path, "value": ORDER}, {"op": "remove", "path": path}]


async def test_an_order_is_written_only_to_the_version_that_was_read() -> None:
    async with recorded_requests(200) as (api, requests):
        await api.annotate(ORDERS, "12", REPLACE_REPLICA, ORDER)
    ((method, _, kind, body),) = requests
    assert (method, kind) == ("PATCH", "application/merge-patch+json")
    assert body == {"metadata": {"resourceVersion": "12", "annotations": {REPLACE_REPLICA: ORDER}}}
