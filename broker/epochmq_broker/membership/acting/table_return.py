"""Takes a group's tables back from a slave: what a returning master does before it goes online
(BrokerPreOnlineService.syncMetadataReverse).

While the master was down, the acting master advanced consumer offsets, delay offsets and the timer.
`table_merge` decides what is adopted. Offsets beyond the end of this broker's queues are lowered to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from epochmq_broker.membership.acting.table_merge import adopts_all, ahead, merge
from epochmq_broker.replication.offset_table_bodies import (
    DelayOffsetTableBody,
    OffsetTableBody,
    decode_consumer_offsets,
    decode_delay_offsets,
)
from epochmq_broker.services.delay_service import DelayService
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_formats.timer_checkpoint import TimerCheckpoint
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.transport.request_client import RequestClient
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 3000
NO_TIMER: Final = "The checkpoint is null"
"""The remark of a broker that has no timer (timerWheelEnable=false)."""


class TableReturn:
    """The tables of one returning master. Its special services must not run."""

    def __init__(
        self,
        client: RequestClient,
        store: MessageStore,
        offsets: ConsumerOffsetTable,
        delays: DelayService,
        timer: TimerService | None,
        persist_offsets: Callable[[], None],
    ) -> None:
        """`persist_offsets` writes the consumer offsets to disk, soon."""
        self._client = client
        self._store = store
        self._offsets = offsets
        self._delays = delays
        self._timer = timer
        self._persist_offsets = persist_offsets

    async def take_back(self, address: str) -> None:
        """Takes the tables of the slave at `address`. All are fetched before one is changed. Raises
        EpochMQError if the slave does not respond or cannot be understood, and OSError."""
        delay_offsets = decode_delay_offsets(await self._fetch(address, RequestCode.GET_ALL_DELAY_OFFSET))
        offsets = await decode_consumer_offsets(
            await self._fetch(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        )
        checkpoint = await self._fetch_checkpoint(address)
        self._take_offsets(offsets, address)
        self._take_delays(delay_offsets, address)
        if self._timer is not None and checkpoint is not None:
            _take_checkpoint(self._timer, checkpoint, address)

    def _take_offsets(self, theirs: OffsetTableBody, address: str) -> None:
        own = self._offsets
        if adopts_all(own.table, own.data_version, theirs.data_version):
            taken, version = theirs.offset_table, theirs.data_version
        else:
            taken = {
                key: {**own.table.get(key, {}), **newer}
                for key, queues in theirs.offset_table.items()
                if (newer := ahead(queues, own.table.get(key, {})))
            }
            version = own.data_version
        light = own.light_table
        if light is not None:  # the commits of light groups do not change the data version
            light = {**light, **ahead(theirs.lmq_offset_table or {}, light)}
        own.restore({**own.table, **taken}, version, light)
        lowered = own.clamp(self._end_of_queue)
        self._persist_offsets()
        log.info(
            "took %d entries of the consumer offsets of %s; %d were lowered", len(taken), address, lowered
        )

    def _take_delays(self, theirs: DelayOffsetTableBody, address: str) -> None:
        own = self._delays
        own.replace_all(*merge(own.offsets, own.data_version, theirs.offset_table, theirs.data_version))
        log.info("took the delay offsets of %s", address)

    def _end_of_queue(self, topic: str, queue_id: int) -> int:
        queue = self._store.lookup.existing_queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    async def _fetch_checkpoint(self, address: str) -> TimerCheckpoint | None:
        """The slave's checkpoint; None if one of the two brokers has no timer."""
        if self._timer is None:
            return None
        response = await self._ask(address, RequestCode.GET_TIMER_CHECK_POINT)
        if response.code == ResponseCode.SYSTEM_ERROR and NO_TIMER in (response.remark or ""):
            return None
        try:
            return TimerCheckpoint.decode(_body_of(response, address))
        except ValueError as error:
            raise EpochMQError(f"the timer's checkpoint of {address}: {error}") from None

    async def _fetch(self, address: str, code: RequestCode) -> bytes:
        return _body_of(await self._ask(address, code), address)

    async def _ask(self, address: str, code: RequestCode) -> Command:
        return await self._client.call(address, request(code), CALL_TIMEOUT_MS)


def _take_checkpoint(timer: TimerService, theirs: TimerCheckpoint, address: str) -> None:
    own = timer.timers.checkpoint
    version = own.data_version
    if version.compare(theirs.data_version) > 0:
        if theirs.read_time_ms <= own.read_time_ms:
            return
        theirs.data_version = version
        theirs.master_queue_offset = max(theirs.master_queue_offset, own.master_queue_offset)
    timer.follow(theirs)
    log.info("took the timer's checkpoint of %s: delivered until %d", address, theirs.read_time_ms)


def _body_of(response: Command, address: str) -> bytes:
    if response.code != ResponseCode.SUCCESS:
        raise EpochMQError(f"{address} responded with code {response.code}: {response.remark or 'no remark'}")
    return response.body
