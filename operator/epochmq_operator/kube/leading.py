"""Holds, or waits for, the Lease (`leadership` says by which rules)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import structlog

from epochmq_operator.kube import leadership
from epochmq_operator.kube.api import Api, ApiError, path_of
from epochmq_operator.kube.leadership import Seen
from epochmq_operator.plans.objects import Ref
from epochmq_protocol.errors import EpochMQError

log = structlog.get_logger()


class LeadershipLostError(EpochMQError):
    """Another operator may be at work: this one must not write."""


class Leading:
    """One operator's view of the Lease. `api` is for the Lease alone: it writes without holding anything."""

    def __init__(self, api: Api, lease: Ref, me: str) -> None:
        self._api = api
        self._lease = lease
        self._me = me
        self._seen: Seen | None = None
        self._renewed_s: float | None = None

    def require(self) -> None:
        """LeadershipLostError when a write must not begin now."""
        if not leadership.may_write(self._renewed_s, time.monotonic()):
            raise LeadershipLostError(f"{self._me} does not hold {self._lease}")

    @property
    def leads(self) -> bool:
        """Whether this operator works."""
        return leadership.may_write(self._renewed_s, time.monotonic())

    async def acquire(self) -> None:
        """Returns once this operator holds the Lease."""
        log.info("waits for the lease", lease=str(self._lease), me=self._me)
        while not await self._attempt():  # noqa: ASYNC110 -- what is waited for is in another process
            await asyncio.sleep(leadership.LOOK_EVERY_S)
        log.info("leads", lease=str(self._lease), me=self._me)

    async def hold(self) -> None:
        """Renews the Lease. LeadershipLostError when that did not succeed in time, or another one has it."""
        while True:
            await asyncio.sleep(leadership.RENEW_EVERY_S if self._fresh() else leadership.LOOK_EVERY_S / 2)
            await self._attempt()
            self.require()

    def _fresh(self) -> bool:
        return self._renewed_s is not None and time.monotonic() - self._renewed_s < leadership.RENEW_EVERY_S

    @contextlib.asynccontextmanager
    async def let_go(self) -> AsyncIterator[None]:
        """Gives the Lease back when the block ends, if it is still held."""
        try:
            yield
        finally:
            if self.leads:
                self._renewed_s = None
                await self._give_back()

    async def _give_back(self) -> None:
        try:
            found = await self._api.get(path_of(self._lease))
            if (found.get("spec") or {}).get("holderIdentity") == self._me:
                await self._api.replace({**found, "spec": leadership.released(found["spec"])})
        except ApiError as error:
            log.warning("the lease is not given back", lease=str(self._lease), error=str(error))

    async def _attempt(self) -> bool:
        """Takes or renews the Lease if it may; whether it holds it now. A server that does not answer is no
        loss yet: time decides."""
        try:
            found = await self._read()
            spec = found.get("spec") or {}
            self._seen = leadership.saw(self._seen, spec, time.monotonic())
            if not leadership.free(self._seen, self._me, time.monotonic()):
                self._renewed_s = None
                return False
            sent_s = time.monotonic()
            await self._api.replace({**found, "spec": leadership.held(spec, self._me, time.time())})
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
