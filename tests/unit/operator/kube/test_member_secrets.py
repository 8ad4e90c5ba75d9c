"""Tests that the operator creates the secret of members once, and neither reads nor shows nor replaces it."""

from __future__ import annotations

import base64
import logging
from typing import Any

import pytest

from epochmq_operator.kube import member_secrets
from epochmq_operator.kube.api import ApiError, object_path
from epochmq_operator.kube.member_secrets import MemberSecrets
from epochmq_operator.plans.objects import Manifest, Ref
from epochmq_protocol.member_proofs import parse_secrets
from tests.support.fake_api_server import FakeApiServer
from tests.unit.operator.kube.running_reconcilers import QUORUM, resource, running_reconciler, until
from tests.unit.operator.plans.fake_api import NAMESPACE

SECRET = Ref("Secret", NAMESPACE, "orders-members")
WANTED: Manifest = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": SECRET.name, "namespace": NAMESPACE},
}


def value(server: FakeApiServer) -> str:
    """The secret."""
    return base64.b64decode(server.objects[object_path(SECRET)]["data"]["secret"]).decode()


@pytest.mark.parametrize("spec", [{}, {"memberAuthentication": "Require"}])
async def test_a_group_that_wants_it_gets_a_secret_that_nobody_sees(
    spec: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    server = FakeApiServer(resource(QUORUM, replicas=1, **spec))
    async with running_reconciler(server, QUORUM) as (_, cache):
        await until(lambda: Ref("StatefulSet", NAMESPACE, "orders-controller") in server.applied)
        found = value(server)
        assert len(parse_secrets(found)) == 1
        assert len(found.strip()) == 64
        assert cache.get(SECRET) is None
        shown = f"{caplog.text}{capsys.readouterr()}{server.objects[object_path(QUORUM)]}{server.events}"
        assert found.strip() not in shown


async def test_a_group_that_does_not_want_it_gets_none() -> None:
    server = FakeApiServer(resource(QUORUM, replicas=1, memberAuthentication="Disabled"))
    async with running_reconciler(server, QUORUM):
        await until(lambda: Ref("StatefulSet", NAMESPACE, "orders-controller") in server.applied)
    assert object_path(SECRET) not in server.objects


async def test_an_existing_secret_stays_and_a_deleted_one_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_secrets, "CHECKED_WHILE_UNREADY_S", 0.0)
    server: Any = FakeApiServer()
    made = MemberSecrets(server)
    for _ in range(2):
        assert await made.ensure(WANTED, ready=False) == ""
    first = value(server)
    assert await MemberSecrets(server).ensure(WANTED, ready=True) == ""
    assert value(server) == first
    del server.objects[object_path(SECRET)]
    assert await made.ensure(WANTED, ready=True) == ""
    assert object_path(SECRET) not in server.objects
    assert await made.ensure(WANTED, ready=False) == ""
    assert value(server) != first


class ForbiddingServer(FakeApiServer):
    """An API server that lets nobody create a Secret."""

    async def create(self, manifest: Manifest) -> dict[str, Any]:
        raise ApiError(403, "secrets is forbidden")


async def test_a_missing_right_is_reported_with_its_remedy() -> None:
    server: Any = ForbiddingServer()
    made = MemberSecrets(server)
    for _ in range(2):
        problem = await made.ensure(WANTED, ready=False)
        assert "does not let the operator create Secret orders-members" in problem
        assert "give the operator the rights of its chart" in problem
