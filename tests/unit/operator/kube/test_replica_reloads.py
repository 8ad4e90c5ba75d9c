"""Tests the requests by which a broker applies a configuration and a leading controller changes its quorum,
and what a sidecar's rejection leaves."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from epochmq_operator.kube.lease_holder import LeadershipLostError
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.replica_observer import ReplicaObserver
from epochmq_operator.kube.sidecar_client import MembershipRejectionError, SidecarClient
from epochmq_operator.kube.sidecar_credentials import CredentialsCache
from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL
from epochmq_operator.plans.effects import ChangeQuorumMembers, ReloadConfiguration
from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.observed_state import RejectedReload
from epochmq_operator.pod_rendering import ADMIN_PORT
from tests.support.fake_api_server import FakeApiServer
from tests.support.net import loopback

ORDERS = Ref("BrokerGroup", "shop", "orders")
POD = Ref("Pod", "shop", "orders-broker-0")
TOKEN = "a-token-of-good-length"
SECRET = {
    "kind": "Secret",
    "metadata": {"name": "token", "namespace": "shop"},
    "data": {"token": base64.b64encode(f"\n{TOKEN}\nanother\n".encode()).decode()},
}
RELOAD = ReloadConfiguration(POD, "uid-1", "orders-broker-1", {"fileReservedTime": "48"})


class Sidecar:
    """A sidecar that records requests and responds with `status`."""

    def __init__(self) -> None:
        self.address = loopback(98)
        self.asked: list[tuple[str, str | None, Any]] = []
        self.status = 200
        self.kind = "refused"

    async def respond(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append((request.method + request.path, request.headers.get("X-EpochMQ-Token"), body))
        fault = {"kind": self.kind, "message": "fileReservedTime=48: expected less"}
        return web.json_response({} if self.status == 200 else {"error": fault}, status=self.status)


@asynccontextmanager
async def observed(**admin: str) -> AsyncIterator[tuple[ReplicaObserver, Sidecar, Any]]:
    """An observer of one group with one pod, whose sidecar runs, and the API server."""
    sidecar, cache, api = Sidecar(), ObjectCache(), FakeApiServer(SECRET)
    cache.put(
        {
            "kind": "BrokerGroup",
            "metadata": {"name": "orders", "namespace": "shop"},
            "spec": {"replicas": 1, "admin": admin},
        }
    )
    labels = {KIND_LABEL: "BrokerGroup", GROUP_LABEL: "orders"}
    meta = {"name": POD.name, "namespace": "shop", "uid": "uid-1", "labels": labels}
    cache.put({"kind": "Pod", "metadata": meta, "status": {"phase": "Running", "podIP": sidecar.address}})
    app = web.Application()
    app.router.add_put("/v1/config", sidecar.respond)
    app.router.add_put("/v1/members", sidecar.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, sidecar.address, ADMIN_PORT).start()
    wanted: Any = api
    client = SidecarClient(wanted, by_proxy=False)
    try:
        yield ReplicaObserver(cache, client, CredentialsCache(wanted)), sidecar, api
    finally:
        await client.close()
        await runner.cleanup()


async def test_a_broker_gets_the_file_with_the_first_token_of_the_secret() -> None:
    async with observed(tokenSecret="token") as (observer, sidecar, _):
        assert await observer.can_reload(ORDERS)
        await observer.reload(ORDERS, RELOAD)
        body = {"config": {"fileReservedTime": "48"}, "version": "orders-broker-1"}
        assert sidecar.asked == [("PUT/v1/config", TOKEN, body)]
        assert observer.rejected_reloads(ORDERS) == {}


async def test_a_rejection_is_known_until_the_pod_is_replaced() -> None:
    async with observed(tokenSecret="token") as (observer, sidecar, _):
        sidecar.status = 409
        await observer.reload(ORDERS, RELOAD)
        rejection = RejectedReload("orders-broker-1", "fileReservedTime=48: expected less")
        assert observer.rejected_reloads(ORDERS) == {POD.name: rejection}
        later = ReloadConfiguration(POD, "uid-2", "orders-broker-1", {"a": "b"})
        await observer.reload(ORDERS, later)
        assert len(sidecar.asked) == 1, "a pod with another uid gets nothing"


async def test_a_sidecar_that_fails_is_no_rejection() -> None:
    async with observed(tokenSecret="token") as (observer, sidecar, _):
        sidecar.status = 503
        await observer.reload(ORDERS, RELOAD)
        assert observer.rejected_reloads(ORDERS) == {}
        assert observer.failures == 1


@pytest.mark.parametrize("admin", [{}, {"tokenSecret": "missing"}])
async def test_without_a_token_running_brokers_cannot_be_changed(admin: dict[str, str]) -> None:
    async with observed(**admin) as (observer, _, _):
        assert not await observer.can_reload(ORDERS)


async def test_an_operator_without_the_lease_changes_no_broker() -> None:
    def refuse() -> None:
        raise LeadershipLostError

    async with observed(tokenSecret="token") as (observer, sidecar, api):
        api.may_write = refuse
        with pytest.raises(LeadershipLostError):
            await observer.reload(ORDERS, RELOAD)
        assert sidecar.asked == []


@pytest.mark.parametrize("address", [None, "n3.example:9878"])
async def test_a_leading_controller_is_asked_to_change_its_quorum(address: str | None) -> None:
    async with observed(tokenSecret="token") as (observer, sidecar, _):
        await observer.change_members(ORDERS, ChangeQuorumMembers(POD, "uid-1", "n3", address))
        body = {"member": "n3"} if address is None else {"member": "n3", "address": address}
        assert sidecar.asked == [("PUT/v1/members", TOKEN, body)]


@pytest.mark.parametrize(("status", "uid"), [(409, "uid-1"), (503, "uid-1"), (200, "uid-2")])
async def test_a_change_of_a_quorum_that_may_not_be_in_effect_is_an_error(status: int, uid: str) -> None:
    """The effects after it, which rely on the change, are not carried out."""
    async with observed(tokenSecret="token") as (observer, sidecar, _):
        sidecar.status = status
        with pytest.raises(MembershipRejectionError):
            await observer.change_members(ORDERS, ChangeQuorumMembers(POD, uid, "n3"))
        assert len(sidecar.asked) == (1 if uid == "uid-1" else 0)


@pytest.mark.parametrize(("status", "kind"), [(503, "busy"), (503, "silent"), (409, "refused")])
async def test_a_leader_that_is_still_making_a_change_is_told_from_one_that_rejects_it(
    status: int, kind: str
) -> None:
    async with observed(tokenSecret="token") as (observer, sidecar, _):
        sidecar.status, sidecar.kind = status, kind
        with pytest.raises(MembershipRejectionError) as caught:
            await observer.change_members(ORDERS, ChangeQuorumMembers(POD, "uid-1", "n3"))
        assert caught.value.is_under_way is (kind == "busy")
