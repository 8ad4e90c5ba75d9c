"""Tests that the Lease is renewed however busy the operator is, and released when it ends."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from epochmq_operator.kube import lease_rules
from epochmq_operator.kube.api import ApiError
from epochmq_operator.kube.event_loop_thread import event_loop_thread
from epochmq_operator.kube.lease_holder import LeadershipLostError, LeaseHolder
from epochmq_operator.plans.objects import Ref

LEASE = Ref("Lease", "system", "epochmq-operator")
PATIENCE_S = 60


class Server:
    """An API server with one Lease, for several threads."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.writes = 0
        self.fails = False
        self._one = threading.Lock()

    async def get(self, path: str) -> dict[str, Any]:
        with self._one:
            if self.fails or self.lease is None:
                raise ApiError(0 if self.fails else 404, f"no {path}")
            return copy.deepcopy(self.lease)

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return self._store(manifest)

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return self._store(manifest)

    def take(self, who: str) -> None:
        """Writes the Lease as another operator."""
        with self._one:
            assert self.lease is not None
            spec = lease_rules.spec_when_held(self.lease["spec"], who, time.time())
            self._keep({**self.lease, "spec": spec})

    @property
    def holder(self) -> str | None:
        return None if self.lease is None else self.lease["spec"].get("holderIdentity")

    def _store(self, manifest: dict[str, Any]) -> dict[str, Any]:
        with self._one:
            known = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
            if self.fails or manifest["metadata"].get("resourceVersion") != known:
                raise ApiError(0 if self.fails else 409, "another version")
            return self._keep(manifest)

    def _keep(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.writes += 1
        stored = copy.deepcopy(manifest)
        stored["metadata"]["resourceVersion"] = str(self.writes)
        self.lease = stored
        return copy.deepcopy(stored)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server, with all delays of the lease a fortieth of those in production."""
    for name in ("RENEW_EVERY_S", "LOOK_EVERY_S"):
        monkeypatch.setattr(lease_rules, name, getattr(lease_rules, name) / 40)
    return Server()


@asynccontextmanager
async def operator(server: Server, me: str) -> AsyncIterator[LeaseHolder]:
    """An operator that may acquire the Lease."""
    api: Any = server
    async with event_loop_thread("lease") as thread:
        yield LeaseHolder(api, LEASE, me, thread)


@asynccontextmanager
async def leader(server: Server, me: str) -> AsyncIterator[tuple[LeaseHolder, asyncio.Task[None]]]:
    """An operator that holds the Lease, and its task that renews it."""
    async with operator(server, me) as leading:
        await leading.acquire()
        async with leading.released_at_exit():
            holding = asyncio.ensure_future(leading.hold())
            await asyncio.sleep(0)  # the renewals have begun
            yield leading, holding
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)


def stand_still(until: Callable[[], bool]) -> None:
    """Blocks the event loop until the condition holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


async def test_the_lease_is_renewed_while_the_operator_is_busy(server: Server) -> None:
    async with leader(server, "a") as (leading, holding):
        writes = server.writes
        stand_still(lambda: server.writes >= writes + 3)
        leading.require()
        assert not holding.done()


async def test_an_operator_that_cannot_renew_stops_writing_and_exits(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_rules, "RENEW_DEADLINE_S", 0.5)
    async with leader(server, "a") as (leading, holding):
        server.fails = True
        stand_still(lambda: not leading.leads)  # also while it is busy
        with pytest.raises(LeadershipLostError):
            leading.require()
        with pytest.raises(LeadershipLostError):
            await asyncio.wait_for(holding, PATIENCE_S)
        server.fails = False
    assert server.holder == "a"  # the Lease expires: it is no longer held, and so not released


async def test_an_operator_that_finds_another_holder_exits(server: Server) -> None:
    async with leader(server, "a") as (leading, holding):
        server.take("b")
        with pytest.raises(LeadershipLostError):
            await asyncio.wait_for(holding, PATIENCE_S)
        assert not leading.leads
    assert server.holder == "b"


async def test_a_stalled_operator_gives_up_the_lease(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_rules, "STALLED_AFTER_S", 0.5)
    async with leader(server, "a") as (leading, holding):
        stand_still(lambda: not leading.leads)
        with pytest.raises(LeadershipLostError, match="is stalled"):
            await asyncio.wait_for(holding, PATIENCE_S)


async def test_a_released_lease_is_taken_at_once(server: Server) -> None:
    async with leader(server, "a"):
        pass
    assert server.holder is None
    async with operator(server, "b") as next_one:
        await asyncio.wait_for(next_one.acquire(), PATIENCE_S)
        assert server.holder == "b"
        next_one.require()


async def test_a_blind_standby_takes_no_lease_until_it_sees_again(server: Server) -> None:
    blind, asked = ["the watch of Pod in all namespaces fails"], threading.Event()

    def unseen() -> list[str]:
        asked.set()
        return blind

    async with leader(server, "a"):
        pass
    async with operator(server, "b") as standby:
        waiting = asyncio.ensure_future(standby.acquire(unseen))
        for _ in range(3):
            asked.clear()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.to_thread(asked.wait, PATIENCE_S)
        assert server.holder is None
        assert not standby.leads
        blind = []
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert server.holder == "b"


async def test_a_stopped_standby_has_not_taken_the_lease(server: Server) -> None:
    async with leader(server, "a"), operator(server, "b") as standby:
        waiting = asyncio.ensure_future(standby.acquire())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not standby.leads
        assert server.holder == "a"
