"""Asks the master once a second where its log ends and who is in sync, so that a replica knows its lag. A
RocketMQ master reports only the end of its log (GET_BROKER_HA_STATUS)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from epochmq_broker.admin.lag_estimator import LagEstimator
from epochmq_broker.config.clock import monotonic_ms
from epochmq_protocol.bodies import HARuntimeInfo, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.replica_control import MasterLogStateHeader, ReplicaControlCode
from epochmq_protocol.transport.client import RemotingClient

log = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
TIMEOUT_MS: Final = 1000


class MasterPoller:
    """Polls the master of one broker, while the broker is a replica. `start` it, `stop` it."""

    def __init__(
        self, client: RemotingClient, is_replica: Callable[[], bool], master: Callable[[], str | None]
    ) -> None:
        """`is_replica`: whether the broker is a replica now. `master` returns the address at which the master
        serves clients, None while it is unknown."""
        self.latest: MasterLogStateHeader | None = None
        """The latest response of an EpochMQ master."""
        self.master_is_rocketmq = False
        """Whether the master is a RocketMQ broker, which does not report the SyncStateSet."""
        self._client = client
        self._is_replica = is_replica
        self._master = master
        self._address: str | None = None
        self._lag = LagEstimator()
        self._master_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts polling; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="watch the master")

    async def stop(self) -> None:
        """Stops polling."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def lag(self, own_end: int) -> tuple[int | None, int | None]:
        """(bytes, milliseconds) behind the master; None while unknown."""
        self._current_address()
        return self._lag.lag(monotonic_ms(), own_end)

    def _current_address(self) -> str | None:
        """Returns the master's address. Discards the data about another master."""
        address = self._master() if self._is_replica() else None
        if address != self._address:
            self._address, self.latest, self._lag = address, None, LagEstimator()
            self.master_is_rocketmq = False
            self._master_changed.set()
        return address

    async def _run(self) -> None:
        while True:
            address = self._current_address()
            self._master_changed.clear()
            if address is not None:
                try:
                    await self._poll(address)
                except EpochMQError as error:
                    log.debug("master %s did not report its log's end: %s", address, error)
                except Exception:
                    log.exception("could not poll master %s", address)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._master_changed.wait()

    async def _poll(self, address: str) -> None:
        # The replica may reach this end before the response arrives; so it counts from the request's time.
        asked_ms, lag = monotonic_ms(), self._lag
        answer = await self._client.call(
            address, request(ReplicaControlCode.GET_MASTER_LOG_STATE), TIMEOUT_MS
        )
        if answer.code == ResponseCode.SUCCESS:
            self.latest = MasterLogStateHeader.decode(answer.ext)
            lag.observe(asked_ms, self.latest.max_offset)
        elif answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self.master_is_rocketmq = True
            answer = await self._client.call(address, request(RequestCode.GET_BROKER_HA_STATUS), TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS:
                info = from_json(HARuntimeInfo, answer.body)
                if info.master:
                    lag.observe(asked_ms, info.master_commit_log_max_offset)
