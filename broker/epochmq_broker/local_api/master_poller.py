"""What a replica knows of its master: it asks once a second how far the master's log reaches and who is in
sync. A master of RocketMQ's says the first only (GET_BROKER_HA_STATUS)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from epochmq_broker.ha.service import HARole, HAService
from epochmq_broker.local_api.lag_estimator import LagEstimator
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
    """The watch of one broker. `start`, `stop`; it asks while the broker is a replica."""

    def __init__(self, client: RemotingClient, ha: HAService, master: Callable[[], str | None]) -> None:
        """`master`: where it serves clients, None while that is not known."""
        self.shown: MasterLogStateHeader | None = None
        """What a master of ours said last."""
        self.master_is_rocketmq = False
        """Whether the master is one of RocketMQ's."""
        self._client = client
        self._ha = ha
        self._master = master
        self._address: str | None = None
        self._clock = LagEstimator()
        self._another = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="watch the master")

    async def stop(self) -> None:
        """Ends."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def lag(self, own_end: int) -> tuple[int | None, int | None]:
        """(bytes, milliseconds) behind the master; None while that is not known."""
        self._turn()
        return self._clock.lag(_now_ms(), own_end)

    def _turn(self) -> str | None:
        """The master's address; what was known of another is forgotten."""
        address = self._master() if self._ha.role is HARole.REPLICA else None
        if address != self._address:
            self._address, self.shown, self._clock = address, None, LagEstimator()
            self.master_is_rocketmq = False
            self._another.set()
        return address

    async def _run(self) -> None:
        while True:
            address = self._turn()
            self._another.clear()
            if address is not None:
                try:
                    await self._look(address)
                except EpochMQError as error:
                    log.debug("%s does not say where its log ends: %s", address, error)
                except Exception:
                    log.exception("asking the master where its log ends failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._another.wait()

    async def _look(self, address: str) -> None:
        # The end may have been reached before the answer is here: it counts from when it was asked for.
        asked_ms, clock = _now_ms(), self._clock
        answer = await self._client.call(
            address, request(ReplicaControlCode.GET_MASTER_LOG_STATE), TIMEOUT_MS
        )
        if answer.code == ResponseCode.SUCCESS:
            self.shown = MasterLogStateHeader.decode(answer.ext)
            clock.observe(asked_ms, self.shown.max_offset)
        elif answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self.master_is_rocketmq = True
            answer = await self._client.call(address, request(RequestCode.GET_BROKER_HA_STATUS), TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS:
                info = from_json(HARuntimeInfo, answer.body)
                if info.master:
                    clock.observe(asked_ms, info.master_commit_log_max_offset)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
