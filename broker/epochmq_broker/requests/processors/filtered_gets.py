"""Gets the messages that an expression selects, a few at a time, so that the evaluation of expressions blocks
no other client.

A get examines as many messages as RocketMQ's (`maxFilterMessageSize` / 20 bytes). The first `STEP_MESSAGES`
are examined at once. The rest follows in later turns of the event loop; all gets together have `TURN_S` in
each turn. Records that are not in memory are read by worker threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.services.cold_reads import ColdReadPool
from epochmq_broker.tables.filters.message_filter import MessageFilter
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.transport.connection import OVERLOAD_REMARK
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.reading.message_reader import MessageReader
from epochmq_store.statuses import GetResult, GetStatus

log = logging.getLogger(__name__)

STEP_MESSAGES: Final = 128
TURN_S: Final = 0.002
GETS_MAX: Final = 10_000
"""Gets that wait for their next step; a further one is rejected with SYSTEM_BUSY."""
COLD_READS_MAX: Final = 32
"""Reads from the disk for one get. If the kernel keeps evicting the pages, the event loop waits for the disk
in the end."""
UNIT_BYTES: Final = 20

OnResult = Callable[[GetResult | Exception], None]


class FilteredGet:
    """One get with an expression. `result` is None until the get is complete."""

    __slots__ = (
        "_bodies",
        "_bytes",
        "_cold_reads",
        "_count",
        "_end",
        "_excludes",
        "_max_count",
        "_next",
        "_queue",
        "_reader",
        "_select",
        "result",
    )

    def __init__(
        self,
        reader: MessageReader,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        wanted: MessageFilter,
        examine_max: int,
    ) -> None:
        assert wanted.select is not None
        self.result: GetResult | None = None
        self._reader = reader
        self._queue = queue
        self._next = offset
        self._end = offset + max(examine_max, max_count)
        self._max_count = max_count
        self._select = wanted.select
        self._excludes = wanted.excludes
        self._bodies: list[bytes | memoryview] = []
        self._count = self._bytes = 0
        self._cold_reads = 0

    def step(self) -> None:
        """Examines the next messages. Raises NotResidentError if they are not in memory; then the step can be
        repeated."""
        examine = min(STEP_MESSAGES, self._end - self._next)
        try:
            found = self._reader.get_selected(
                self._queue,
                self._next,
                self._max_count,
                self._select,
                examine_max=examine,
                excludes=self._excludes,
                had=(self._count, self._bytes),
                resident=self._cold_reads < COLD_READS_MAX,
            )
        except NotResidentError:
            self._cold_reads += 1
            raise
        self._count += found.count
        self._bytes += found.size
        examined = found.next_offset - self._next
        goes_on = found.status in (
            GetStatus.FOUND,
            GetStatus.NO_MATCHED_MESSAGE,
            GetStatus.MESSAGE_WAS_REMOVING,
        )
        at_end = found.next_offset >= min(self._end, found.max_offset)
        if goes_on:
            self._next = found.next_offset
        if not goes_on or at_end or not examined or self._count >= self._max_count:
            self._bodies.extend(found.pieces)
            self._finish(found)
        elif found.pieces:
            self._bodies.append(found.body)  # a copy, because the views must not be kept

    def _finish(self, last: GetResult) -> None:
        if self._count:
            last = GetResult(
                GetStatus.FOUND,
                self._next,
                last.min_offset,
                last.max_offset,
                self._bodies,
                self._bytes,
                self._count,
                last.physical_end,
            )
        self.result = last


class FilteredGets:
    """The gets with expressions of one broker. All methods run on the event loop."""

    def __init__(self, live: LiveConfig, reader: MessageReader, cold_reads: ColdReadPool) -> None:
        self._live = live
        self._reader = reader
        self._cold_reads = cold_reads
        self._waiting: deque[tuple[FilteredGet, Hashable, OnResult]] = deque()
        self._scheduled: asyncio.Handle | None = None

    def begin(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        wanted: MessageFilter,
        client: Hashable,
        done: OnResult,
    ) -> GetResult | None:
        """Starts a get, and returns its result if one step completes it. Otherwise returns None and calls
        `done` later with the result or an error. Raises RequestError SYSTEM_BUSY."""
        examine_max = self._live.current.max_filter_message_size // UNIT_BYTES
        get = FilteredGet(self._reader, queue, offset, max_count, wanted, examine_max)
        try:
            get.step()
        except NotResidentError as missing:
            self._read(get, client, done, missing)
            return None
        if get.result is None:
            self._enqueue(get, client, done)
        return get.result

    def selects_new(self, queue: ConsumeQueue, offset: int, wanted: MessageFilter) -> tuple[bool, int]:
        """Whether a message from `offset` on may be selected, and the offset up to which none is. True also
        if that takes a read from the disk, or more than one step."""
        assert wanted.select is not None
        try:
            found = self._reader.get_selected(
                queue, offset, 1, wanted.select, examine_max=STEP_MESSAGES, excludes=wanted.excludes
            )
        except NotResidentError:
            return True, offset
        none = found.status is GetStatus.NO_MATCHED_MESSAGE and found.next_offset >= found.max_offset
        return not none, found.next_offset

    def _enqueue(self, get: FilteredGet, client: Hashable, done: OnResult) -> None:
        if len(self._waiting) >= GETS_MAX:
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        self._waiting.append((get, client, done))
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """Runs one step of each waiting get in turn, until the time of this turn is over."""
        self._scheduled = None
        until = time.perf_counter() + TURN_S
        while self._waiting:
            get, client, done = self._waiting.popleft()
            try:
                self._step(get, client, done)
            except Exception as error:  # the other gets must still run
                _finish(done, error)
            if time.perf_counter() >= until:
                break
        if self._waiting and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def _step(self, get: FilteredGet, client: Hashable, done: OnResult) -> None:
        try:
            get.step()
        except NotResidentError as missing:
            self._read(get, client, done, missing)
            return
        if get.result is None:
            self._enqueue(get, client, done)
        else:
            _finish(done, get.result)

    def _read(self, get: FilteredGet, client: Hashable, done: OnResult, missing: NotResidentError) -> None:
        def ended(error: Exception | None) -> None:
            if error is not None:
                done(error)
                return
            try:
                self._enqueue(get, client, done)
            except RequestError as busy:
                done(busy)

        self._cold_reads.submit(client, missing, ended)


def _finish(done: OnResult, result: GetResult | Exception) -> None:
    try:
        done(result)
    except Exception:  # the other gets must still run
        log.exception("a pull by an expression failed after its messages were found")
