"""Holds, or waits for, the Lease (`leadership` says by which rules), on a thread of its own: however much
there is to do for the groups, it is renewed in time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import structlog

from epochmq_operator.kube import leadership
from epochmq_operator.kube.api import Api, ApiError, path_of
from epochmq_operator.kube.aside import Aside, aside
from epochmq_operator.kube.connection import Connection
from epochmq_operator.kube.leadership import Seen
from epochmq_operator.plans.objects import Ref
from epochmq_protocol.errors import EpochMQError

log = structlog.get_logger()


class LeadershipLostError(EpochMQError):
    """Another operator may be at work: this one must not write."""


class Leading:
    """One operator's view of the Lease. `api` is for the Lease alone: it writes without holding anything, and
    belongs to the event loop of `thread`, where all that asks for the Lease is done."""

    def __init__(self, api: Api, lease: Ref, me: str, thread: Aside) -> None:
        self._api = api
        self._lease = lease
        self._me = me
        self._thread = thread
        self._turn = asyncio.Lock()
        self._found: dict[str, Any] | None = None  # the Lease as we wrote it last
        self._seen: Seen | None = None
        self._renewed_s: float | None = None
        self._moved_s = 0.0

    def require(self) -> None:
        """LeadershipLostError when a write must not begin now. From any thread."""
        if not self.leads:
            raise LeadershipLostError(f"{self._me} does not hold {self._lease}")

    @property
    def leads(self) -> bool:
        """Whether this operator works. From any thread."""
        return leadership.may_write(self._renewed_s, time.monotonic())

    async def acquire(self) -> None:
        """Returns once this operator holds the Lease."""
        log.info("waits for the lease", lease=str(self._lease), me=self._me)
        await self._thread.run(self._acquire())
        log.info("leads", lease=str(self._lease), me=self._me)

    async def _acquire(self) -> None:
        while not await self._attempt():  # noqa: ASYNC110 -- what is waited for is in another process
            await asyncio.sleep(leadership.LOOK_EVERY_S)

    async def hold(self) -> None:
        """Renews the Lease, also while the caller's event loop is busy. LeadershipLostError when that did not
        succeed in time, when another one has it, or when that loop stands still (`leadership`)."""
        self._moves()
        await self._thread.run(self._hold(asyncio.get_running_loop()))

    async def _hold(self, working: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(leadership.RENEW_EVERY_S if self._fresh() else leadership.LOOK_EVERY_S / 2)
            if leadership.stands_still(self._moved_s, time.monotonic()):
                self._renewed_s = None
                raise LeadershipLostError(f"{self._me} stands still and leaves {self._lease} to others")
            working.call_soon_threadsafe(self._moves)
            await self._attempt()
            self.require()

    def _moves(self) -> None:
        self._moved_s = time.monotonic()

    def _fresh(self) -> bool:
        return self._renewed_s is not None and time.monotonic() - self._renewed_s < leadership.RENEW_EVERY_S

    @contextlib.asynccontextmanager
    async def let_go(self) -> AsyncIterator[None]:
        """Gives the Lease back when the block ends, if it is still held."""
        try:
            yield
        finally:
            await self._thread.run(self._give_back())

    async def _give_back(self) -> None:
        async with self._turn:
            if not self.leads:
                return
            self._renewed_s = None
            try:
                found = await self._api.get(path_of(self._lease))
                if (found.get("spec") or {}).get("holderIdentity") == self._me:
                    await self._api.replace({**found, "spec": leadership.released(found["spec"])})
            except ApiError as error:
                log.warning("the lease is not given back", lease=str(self._lease), error=str(error))

    async def _attempt(self) -> bool:
        """Takes or renews the Lease if it may; whether it holds it now. A server that does not answer is no
        loss yet: time decides."""
        async with self._turn:
            try:
                found = self._found or await self._read()
                self._found, spec = None, found.get("spec") or {}
                self._seen = leadership.saw(self._seen, spec, time.monotonic())
                if not leadership.free(self._seen, self._me, time.monotonic()):
                    self._renewed_s = None
                    return False
                sent_s = time.monotonic()
                spec = leadership.held(spec, self._me, time.time())
                self._found = await self._api.replace({**found, "spec": spec})
            except ApiError as fault:
                if fault.status != 409:  # a conflict: somebody else was faster
                    log.warning("the lease could not be had", lease=str(self._lease), error=str(fault))
                return self.leads
            self._renewed_s = sent_s
            return True

    async def _read(self) -> dict[str, Any]:
        try:
            return await self._api.get(path_of(self._lease))
        except ApiError as fault:
            if fault.status != 404:
                raise
        meta = {"name": self._lease.name, "namespace": self._lease.namespace}
        empty = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {}}
        return await self._api.create(empty)


@contextlib.asynccontextmanager
async def led(connection: Connection, lease: Ref, me: str) -> AsyncIterator[Leading]:
    """For the length of a block."""

    async def connect() -> Api:
        return Api(connection)

    async with aside("lease") as thread:
        api = await thread.run(connect())
        try:
            yield Leading(api, lease, me, thread)
        finally:
            await thread.run(api.close())
