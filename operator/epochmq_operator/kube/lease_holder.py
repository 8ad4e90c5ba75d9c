"""Acquires, renews and releases the operator lease by the rules of `lease_rules`. Renewals run on a thread of
their own, so that they are in time however busy the operator is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog

from epochmq_operator.kube import lease_rules
from epochmq_operator.kube.api import Api, ApiError, object_path
from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.kube.event_loop_thread import EventLoopThread, event_loop_thread
from epochmq_operator.kube.lease_rules import ObservedLease
from epochmq_operator.plans.objects import Ref
from epochmq_protocol.errors import EpochMQError

SHOWN_MAX = 5
"""So many of the watches that fail are logged."""

log = structlog.get_logger()


class LeadershipLostError(EpochMQError):
    """Another operator may be active, so this one must not write."""


class LeaseHolder:
    """Holds the Lease for one operator. `api` is for the Lease only: it writes without holding the Lease, and
    belongs to the event loop of `thread`, where all requests for the Lease run."""

    def __init__(self, api: Api, lease: Ref, me: str, thread: EventLoopThread) -> None:
        self._api = api
        self._lease = lease
        self._me = me
        self._thread = thread
        self._one_attempt = asyncio.Lock()
        self._found: dict[str, Any] | None = None  # the Lease as last written by this operator
        self._observed: ObservedLease | None = None
        self._renewed_s: float | None = None
        self._progress_s = 0.0

    def require(self) -> None:
        """Raises LeadershipLostError if a write must not begin now. Call it from any thread."""
        if not self.leads:
            raise LeadershipLostError(f"{self._me} does not hold {self._lease}")

    @property
    def leads(self) -> bool:
        """Whether this operator is active. Call it from any thread."""
        return lease_rules.may_write(self._renewed_s, time.monotonic())

    async def acquire(self, blind: Callable[[], list[str]] = list) -> None:
        """Waits until this operator holds the Lease. It does not take the Lease while `blind`, which another
        thread calls, says what it cannot see."""
        log.info("waiting for the lease", lease=str(self._lease), me=self._me)
        await self._thread.run(self._acquire(blind))
        log.info("acquired the lease", lease=str(self._lease), me=self._me)

    async def _acquire(self, blind: Callable[[], list[str]]) -> None:
        while not await self._attempt(blind):  # noqa: ASYNC110 -- what is waited for is in another process
            await asyncio.sleep(lease_rules.LOOK_EVERY_S)

    async def hold(self) -> None:
        """Renews the Lease, also while the caller's event loop is busy. LeadershipLostError if no renewal
        succeeded in time, if another operator has the Lease, or if the caller's event loop is stalled
        (`lease_rules`)."""
        self._note_progress()
        await self._thread.run(self._hold(asyncio.get_running_loop()))

    async def _hold(self, working: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(
                lease_rules.RENEW_EVERY_S if self._is_renewed_recently() else lease_rules.LOOK_EVERY_S / 2
            )
            if lease_rules.is_stalled(self._progress_s, time.monotonic()):
                self._renewed_s = None
                raise LeadershipLostError(
                    f"the event loop of {self._me} is stalled; it gives up {self._lease}"
                )
            working.call_soon_threadsafe(self._note_progress)
            await self._attempt()
            self.require()

    def _note_progress(self) -> None:
        self._progress_s = time.monotonic()

    def _is_renewed_recently(self) -> bool:
        return self._renewed_s is not None and time.monotonic() - self._renewed_s < lease_rules.RENEW_EVERY_S

    @contextlib.asynccontextmanager
    async def released_at_exit(self) -> AsyncIterator[None]:
        """Releases the Lease when the block ends, if it is still held."""
        try:
            yield
        finally:
            await self._thread.run(self._release())

    async def _release(self) -> None:
        async with self._one_attempt:
            if not self.leads:
                return
            self._renewed_s = None
            try:
                found = await self._api.get(object_path(self._lease))
                if (found.get("spec") or {}).get("holderIdentity") == self._me:
                    await self._api.replace({**found, "spec": lease_rules.spec_when_released(found["spec"])})
            except ApiError as error:
                log.warning("cannot release the lease", lease=str(self._lease), error=str(error))

    async def _attempt(self, blind: Callable[[], list[str]] = list) -> bool:
        """Takes or renews the Lease if the rules allow it and nothing is `blind`. Returns whether this
        operator holds the Lease. If the API server does not respond, the Lease is not lost at once: the time
        since the last renewal decides."""
        async with self._one_attempt:
            try:
                found = self._found or await self._read()
                self._found, spec = None, found.get("spec") or {}
                self._observed = lease_rules.observe(self._observed, spec, time.monotonic())
                if not lease_rules.may_take(self._observed, self._me, time.monotonic()):
                    self._renewed_s = None
                    return False
                unseen = blind()
                if unseen:
                    log.warning("not taking the lease: the operator is blind", watches=unseen[:SHOWN_MAX])
                    return False
                sent_s = time.monotonic()
                spec = lease_rules.spec_when_held(spec, self._me, time.time())
                self._found = await self._api.replace({**found, "spec": spec})
            except ApiError as error:
                if error.status != 409:  # a conflict: another operator was faster
                    log.warning("cannot acquire or renew the lease", lease=str(self._lease), error=str(error))
                return self.leads
            self._renewed_s = sent_s
            return True

    async def _read(self) -> dict[str, Any]:
        try:
            return await self._api.get(object_path(self._lease))
        except ApiError as error:
            if error.status != 404:
                raise
        meta = {"name": self._lease.name, "namespace": self._lease.namespace}
        empty = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {}}
        return await self._api.create(empty)


@contextlib.asynccontextmanager
async def open_lease_holder(connection: ClusterConnection, lease: Ref, me: str) -> AsyncIterator[LeaseHolder]:
    """A LeaseHolder for the length of a block."""

    async def connect() -> Api:
        return Api(connection)

    async with event_loop_thread("lease") as thread:
        api = await thread.run(connect())
        try:
            yield LeaseHolder(api, lease, me, thread)
        finally:
            await thread.run(api.close())
