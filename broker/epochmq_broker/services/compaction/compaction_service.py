"""Runs the compacted queues of a broker: appends what the consume queues get, compacts now and then, and
serves gets (CompactionStore, CompactionService).

A compacted queue follows its consume queue: the messages from its end up to what readers can see are read
from the commit log and appended, on the thread `compaction-append`. So a kill, a power loss or a late copy
of a topic's settings costs no message that the commit log still has. A slave fetches older ones from its
master.
Compactions run on the thread `compaction`, gets on two others; the event loop never waits for their files.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from epochmq_broker.services.compaction.compacted_queue import CompactedQueue, CompactionOutcome, GetLimits
from epochmq_broker.services.compaction.file_pairs import file_sizes
from epochmq_broker.services.compaction.keyed_records import KeyedRecord
from epochmq_broker.services.compaction.logged_records import LoggedRecord, read_keyed_records
from epochmq_broker.services.compaction.master_messages import fetch_messages
from epochmq_broker.services.compaction.position_file import CompactionPositions
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.tables.attributes import is_compacted
from epochmq_broker.writing.quarantine import Origin, QuarantiningService
from epochmq_formats.abort_file import TailState
from epochmq_formats.queue_unit import PRE_BLANK_SIZE
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.memory_limit import memory_bytes
from epochmq_protocol.transport.connection import OVERLOAD_REMARK
from epochmq_protocol.transport.request_client import RequestClient
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.reading.message_reader import PULL_MAX_BYTES
from epochmq_store.statuses import GetResult, StoreReadError

T = TypeVar("T")

log = logging.getLogger(__name__)

APPEND_MAX: Final = 256
"""Messages that are appended to a queue before it is another queue's turn."""
GETS_MAX: Final = 1024
"""Gets that wait for a thread; a further one is rejected with SYSTEM_BUSY."""
GET_THREADS: Final = 2
RETRY_S: Final = 5.0
"""A queue whose append or fetch has failed is tried again after this time."""
CHECK_S: Final = 5.0
"""How often queues are looked for whose messages became visible without notice: a store with many arrivals
drops some."""
TICK_S: Final = 1.0
COMPACTION_DELAY_S: Final = 1.0
WORK_S: Final = 0.001
"""A compaction works for this time and then sleeps as long, because it holds the interpreter lock."""

OnGet = Callable[[GetResult | Exception], None]
OnAppend = Callable[[CompactedQueue, int, int], None]


class _CompactionStoppedError(Exception):
    """The broker stops."""


class _QueueState:
    """What the event loop knows of a compacted queue."""

    __slots__ = (
        "due",
        "fetching",
        "is_loaded",
        "next",
        "queue",
        "synced_until",
        "truncate_to",
        "was_fetched",
    )

    def __init__(self, queue: CompactedQueue) -> None:
        self.queue = queue
        self.next = 0
        """Queue offset of the next message to read from the commit log."""
        self.is_loaded = False
        self.fetching: asyncio.Task[None] | None = None
        self.was_fetched = False
        self.truncate_to: int | None = None
        self.synced_until = 0
        self.due = 0.0
        """When the next compaction begins, on the loop's clock, in seconds."""


class CompactionService:
    """The compacted queues of one broker. All methods run on the event loop."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        client: RequestClient,
        master: Callable[[], str | None],
    ) -> None:
        """`master` returns the address of the master that this slave follows."""
        self.on_append: list[OnAppend] = []
        """Each is called with (queue, queue offset, tag code) of each appended message."""
        self._live = context.live
        self._store = context.store
        self._topics = context.tables.topics
        self._cold_reads = context.cold_reads
        self._quarantine = context.quarantine
        self._client = client
        self._master = master
        self._directory = context.store.config.root / "compaction"
        config = context.live.current
        self._sizes = file_sizes(config.compaction_mapped_file_size, config.compaction_cq_mapped_file_size)
        self._positions = CompactionPositions(self._directory)
        self._states: dict[tuple[str, int], _QueueState] = {}
        self._compacted_topics: set[str] = set()
        self._waiting: dict[tuple[str, int], None] = {}
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._gets = 0
        self._listens = self._stopping = False
        self._append_thread: ThreadPoolExecutor | None = None
        self._compaction_thread: ThreadPoolExecutor | None = None
        self._get_threads: ThreadPoolExecutor | None = None
        self._pacer = _Pacer()
        self._memory_bytes = memory_bytes()

    # Start and stop

    def load(self) -> None:
        """Opens the queues of the compaction topics, after the store and the tables. Raises
        StoreDamagedError, StateFileDamagedError or OSError."""
        self._positions.load()
        trusted = self._store.tail.state is TailState.INTACT
        self._note_topics(tuple(self._topics.table))
        for state in self._states.values():
            self._truncate_lost(state)
            state.queue.load(trusted=trusted)
            if state.truncate_to is not None:
                state.queue.truncate_to(state.truncate_to)
                state.truncate_to = None
            self._loaded(state)

    def start(self) -> None:
        """Starts the threads; needs a running loop."""
        self._append_thread = ThreadPoolExecutor(1, "compaction-append")
        self._compaction_thread = ThreadPoolExecutor(1, "compaction")
        self._get_threads = ThreadPoolExecutor(GET_THREADS, "compaction-get")
        loop = asyncio.get_running_loop()
        for state in self._states.values():
            self._set_due(state)
        self._topics.on_change.append(self._topics_changed)
        self._store.on_truncate.append(self._log_truncated)
        self._runner = loop.create_task(self._run(), name="appends to compacted queues")
        self._every(CHECK_S, "check", self._continue_behind)
        self._every(TICK_S, "compaction", self._begin_compaction)
        self._every(self._live.current.flush_consume_queue_thorough_interval / 1000, "sync", self._sync_all)
        self._wake.set()

    async def stop(self) -> None:
        """Ends all work and makes the queues durable."""
        if self._append_thread is None:
            return
        self._stopping = self._pacer.stopped = True
        for timer in self._timers.values():
            timer.cancel()
        fetches = [state.fetching for state in self._states.values()]
        tasks = [task for task in (self._runner, self._compacting, *fetches) if task is not None]
        for task in tasks:
            if task is not self._compacting:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        queues = [state.queue for state in self._states.values() if state.is_loaded]
        try:
            await self._on(self._append_thread, partial(self._close, queues))
        except OSError as error:
            log.error("the compacted queues could not be made durable: %s", error)
        for thread in (self._append_thread, self._compaction_thread, self._get_threads):
            if thread is not None:
                thread.shutdown(wait=False, cancel_futures=True)
        self._append_thread = None

    def _close(self, queues: list[CompactedQueue]) -> None:
        for queue in queues:
            queue.sync()
        if queues:
            self._positions.write()

    def _every(self, interval_s: float, name: str, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            self._timers[name] = loop.call_later(interval_s, run)
            work()

        self._timers[name] = loop.call_later(interval_s, run)

    @staticmethod
    async def _on(thread: ThreadPoolExecutor | None, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    # Topics and queues

    def queue_of(self, topic: str, queue_id: int) -> CompactedQueue | None:
        """The compacted queue, None if the topic is no compaction topic."""
        if topic not in self._compacted_topics:
            return None
        state = self._states.get((topic, queue_id)) or self._add(topic, queue_id)
        return state.queue

    def _note_topics(self, names: Iterable[str]) -> None:
        """Looks at the settings of these topics."""
        if not self._live.current.enable_compaction:
            return
        table = self._topics.table
        compacted = {name for name in names if name in table and is_compacted(table[name])}
        self._compacted_topics = self._compacted_topics.difference(names) | compacted
        for name in compacted:
            topic = table[name]
            for queue_id in range(max(topic.write_queue_nums, topic.read_queue_nums)):
                if (name, queue_id) not in self._states:
                    self._add(name, queue_id)
        if bool(self._compacted_topics) != self._listens:
            self._listens = not self._listens
            listeners = self._store.on_arrival
            (listeners.append if self._listens else listeners.remove)(self._message_arrived)

    def _add(self, topic: str, queue_id: int) -> _QueueState:
        queue = CompactedQueue(
            topic=topic,
            queue_id=queue_id,
            directory=self._directory,
            sizes=self._sizes,
            positions=self._positions,
            pause=self._pacer.pause,
        )
        state = self._states[topic, queue_id] = _QueueState(queue)
        if self._append_thread is not None:
            if queue.is_new:
                self._loaded(state)  # at once, so that no get is rejected meanwhile
            self._set_due(state)
            self._wait_for(state)
        return state

    def _topics_changed(self, names: tuple[str, ...]) -> None:
        before = self._compacted_topics
        self._note_topics(names)
        for name in before - self._compacted_topics:
            for key in [key for key in self._states if key[0] == name]:
                state = self._states.pop(key)
                if state.fetching is not None:
                    state.fetching.cancel()
                self._submit(state.queue.delete, f"the deletion of {state.queue}")

    def _submit(self, work: Callable[[], None], what: str) -> None:
        """Runs work on the append thread; an error is logged."""
        assert self._append_thread is not None

        def ended(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                log.error("%s failed: %s", what, error)

        asyncio.get_running_loop().run_in_executor(self._append_thread, work).add_done_callback(ended)

    # Appends

    def _message_arrived(self, queue: ConsumeQueue, offset: int, tags_code: int) -> None:
        if queue.topic in self._compacted_topics:
            state = self._states.get((queue.topic, queue.queue_id)) or self._add(queue.topic, queue.queue_id)
            self._wait_for(state)

    def _continue_behind(self) -> None:
        for state in self._states.values():
            source = self._store.lookup.existing_queue(state.queue.topic, state.queue.queue_id)
            if source is not None and max(state.next, source.min_offset) < self._store.max_offset(source):
                self._wait_for(state)

    def _wait_for(self, state: _QueueState) -> None:
        self._waiting[state.queue.topic, state.queue.queue_id] = None
        self._wake.set()

    async def _run(self) -> None:
        for known in self._states.values():
            self._wait_for(known)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                key = next(iter(self._waiting))
                del self._waiting[key]
                state = self._states.get(key)
                if state is None or state.fetching is not None:
                    continue
                try:
                    if await self._catch_up(state):
                        self._waiting[key] = None
                except Exception as error:  # the other queues go on
                    log.error("%s could not follow the log, it tries again: %s", state.queue, error)
                    asyncio.get_running_loop().call_later(RETRY_S, self._wait_for, state)

    async def _catch_up(self, state: _QueueState) -> bool:
        """Appends the next messages; whether there are more."""
        queue, thread = state.queue, self._append_thread
        if not state.is_loaded:
            await self._on(thread, partial(queue.load, trusted=False))
            self._loaded(state)
        if state.truncate_to is not None:
            offset, state.truncate_to = state.truncate_to, None
            await self._on(thread, partial(queue.truncate_to, offset))
            state.next = min(state.next, offset)
        source = self._store.lookup.existing_queue(queue.topic, queue.queue_id)
        if self._needs_master(state, source):
            state.fetching = asyncio.get_running_loop().create_task(
                self._fetch(state, source), name=f"fetch of {queue}"
            )
            return False
        if source is None or not source.max_offset:
            return False
        first = max(state.next, source.min_offset)
        end = self._store.max_offset(source)
        if first >= end:
            return False
        places, state_next = await self._places(source, first, min(end - first, APPEND_MAX))
        appended, faults = await self._on(thread, partial(self._append, queue, places))
        for place, data, error in faults:
            self._set_aside(queue, place, data, error)
        state.next = max(state_next, first + 1)
        self._report(queue, appended)
        return state.next < end

    @staticmethod
    def _append(
        queue: CompactedQueue, places: list[LoggedRecord]
    ) -> tuple[list[KeyedRecord], list[tuple[LoggedRecord, bytes, Exception]]]:
        faults: list[tuple[LoggedRecord, bytes, Exception]] = []
        records = read_keyed_records(places, lambda *fault: faults.append(fault))
        queue.append(records)
        return records, faults

    def _set_aside(self, queue: CompactedQueue, place: LoggedRecord, data: bytes, error: Exception) -> None:
        """Sets a record aside that cannot be compacted. Every replica meets it; the master stores a copy."""
        reason = f"at log offset {place.start + place.at}: {type(error).__name__}: {error}"
        origin = Origin(queue.topic, queue.queue_id, -1)
        self._quarantine.set_aside(QuarantiningService.COMPACTION, origin, data, reason)

    def _report(self, queue: CompactedQueue, records: list[KeyedRecord]) -> None:
        for on_append in self.on_append:
            for record in records:
                on_append(queue, record.queue_offset, record.tags_code)

    async def _places(self, source: ConsumeQueue, first: int, count: int) -> tuple[list[LoggedRecord], int]:
        """Where the records of these messages are, and the offset after the last of them. Units that are not
        in memory are read by the threads for that."""
        residency = self._store.reader.residency
        while residency is not None:
            try:
                source.require_resident(residency, first, count)
                break
            except NotResidentError as missing:
                await self._cold_reads.read(self, missing)
        places = []
        following = first
        for physical, size, after in _units(source, first, count):
            following = after
            file = self._store.log.files.find(physical)
            if file is not None and size != PRE_BLANK_SIZE and physical >= self._store.min_phy_offset:
                places.append(LoggedRecord(file.path, file.start, physical - file.start, size))
        return places, following

    def _loaded(self, state: _QueueState) -> None:
        state.is_loaded = True
        state.next = state.synced_until = state.queue.max_offset

    # Truncation

    def _log_truncated(self, offset: int) -> None:
        for state in self._states.values():
            self._truncate_lost(state)
            if state.truncate_to is not None:
                self._wait_for(state)

    def _truncate_lost(self, state: _QueueState) -> None:
        """Notes that messages are to be removed that the consume queue does not have any more. An empty
        consume queue says nothing once the log has expired in part."""
        queue = state.queue
        source = self._store.lookup.existing_queue(queue.topic, queue.queue_id)
        end = 0 if source is None else source.max_offset
        if end or self._store.min_phy_offset == 0:
            state.truncate_to = end if state.truncate_to is None else min(end, state.truncate_to)

    # Messages of the master

    def _needs_master(self, state: _QueueState, source: ConsumeQueue | None) -> bool:
        """Whether this slave lacks messages before those of its own log."""
        if self._live.standing.capabilities.is_master:
            return False
        if source is not None and source.max_offset:
            return max(source.min_offset, 0) > state.next
        return not state.was_fetched and not state.queue.max_offset

    async def _fetch(self, state: _QueueState, source: ConsumeQueue | None) -> None:
        queue = state.queue
        try:
            master = self._master()
            if master is None:
                await asyncio.sleep(RETRY_S)
                return
            end = source.min_offset if source is not None and source.max_offset else None

            async def deliver(records: list[KeyedRecord]) -> None:
                await self._on(self._append_thread, partial(queue.append, records))
                self._report(queue, records)

            count = await fetch_messages(
                self._client,
                master,
                self._live.current.client_ip,
                queue.topic,
                queue.queue_id,
                state.next,
                end,
                deliver,
            )
            log.info("%s has fetched %d messages from the master %s", queue, count, master)
            state.was_fetched = True
            state.next = max(queue.max_offset, end or 0)
        except Exception as error:
            log.warning("%s could not fetch messages from the master, it tries again: %s", queue, error)
            await asyncio.sleep(RETRY_S)
        finally:
            state.fetching = None
            self._wait_for(state)

    # Gets

    def get(self, queue: CompactedQueue, offset: int, count: int, done: OnGet) -> GetResult | None:
        """The result of a get that finds nothing. Otherwise None; `done` is called later with what is found,
        or with an error. Raises RequestError SYSTEM_BUSY."""
        self.require_loaded(queue)
        if self._gets >= GETS_MAX:
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        found = queue.result_without_reads(offset)
        if found is not None:
            return found
        self._gets += 1
        work = partial(queue.get, offset, self.limits(count))
        future = asyncio.get_running_loop().run_in_executor(self._get_threads, work)

        def ended(future: asyncio.Future[GetResult]) -> None:
            self._gets -= 1
            error = StoreReadError("the broker is stopping") if future.cancelled() else future.exception()
            if error is None:
                done(future.result())
            else:
                log.error("a get from %s failed: %s", queue, error)
                done(StoreReadError(f"messages of {queue} cannot be read: {error}"))

        future.add_done_callback(ended)
        return None

    def require_loaded(self, queue: CompactedQueue) -> None:
        """Raises RequestError SYSTEM_BUSY unless the queue is open."""
        state = self._states.get((queue.topic, queue.queue_id))
        if state is None or not state.is_loaded or self._stopping:
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)

    def limits(self, count: int) -> GetLimits:
        """The limits of a get of `count` messages."""
        config = self._live.current
        return GetLimits(
            count,
            PULL_MAX_BYTES,
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_disk,
            config.max_transfer_bytes_on_message_in_disk,
            self._memory_bytes * config.access_message_in_memory_max_ratio // 100,
        )

    # Compactions and syncs

    def _set_due(self, state: _QueueState) -> None:
        interval_s = self._live.current.compaction_schedule_internal / 1000
        wait_s = interval_s + COMPACTION_DELAY_S + random.random() * interval_s
        state.due = asyncio.get_running_loop().time() + wait_s

    def _begin_compaction(self) -> None:
        """Starts the compaction of one queue that is due."""
        if self._compacting is not None or self._stopping:
            return
        now = asyncio.get_running_loop().time()
        due = [state for state in self._states.values() if state.due <= now and state.is_loaded]
        if due:
            state = min(due, key=lambda one: one.due)
            self._compacting = asyncio.get_running_loop().create_task(
                self._compact(state), name=f"compaction of {state.queue}"
            )

    async def _compact(self, state: _QueueState) -> None:
        try:
            await self.compact(state.queue)
        except _CompactionStoppedError:
            log.info("the compaction of %s is dropped, because the broker stops", state.queue)
        except Exception as error:
            log.error("the compaction of %s failed, it is tried again: %s", state.queue, error)
        finally:
            self._set_due(state)
            self._compacting = None

    async def compact(self, queue: CompactedQueue) -> CompactionOutcome | None:
        """Compacts a queue now. Raises OSError."""
        table_bytes = self._live.current.max_offset_map_size
        outcome = await self._on(self._compaction_thread, partial(queue.compact, table_bytes))
        if outcome is not None:
            log.info(
                "%s is compacted: %d of %d messages remain",
                queue,
                outcome.messages_after,
                outcome.messages_before,
            )
        return outcome

    def _sync_all(self) -> None:
        for state in self._states.values():
            end = state.queue.max_offset
            if state.is_loaded and state.synced_until != end:
                state.synced_until = end
                self._submit(partial(self._sync, state.queue), f"the sync of {state.queue}")

    def _sync(self, queue: CompactedQueue) -> None:
        try:
            queue.sync()
        except OSError as error:
            self._store.fsync_failure.report(error)
            raise


class _Pacer:
    """Interrupts a compaction, so that the event loop gets the interpreter lock."""

    def __init__(self) -> None:
        self.stopped = False
        self._began = 0.0

    def pause(self) -> None:
        """Sleeps if the thread has worked for WORK_S. Raises _CompactionStoppedError when the broker
        stops."""
        if time.monotonic() - self._began >= WORK_S:
            if self.stopped:
                raise _CompactionStoppedError
            time.sleep(WORK_S)
            self._began = time.monotonic()


def _units(source: ConsumeQueue, first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(physical offset, size, queue offset after it) of up to `count` units from a queue offset on."""
    if isinstance(source, BatchConsumeQueue):
        for unit in source.batch_units(first):
            if unit.base >= first + count:
                return
            yield unit.physical, unit.size, unit.end
    else:
        for at, (physical, size, _) in enumerate(source.units(first, count)):
            yield physical, size, first + at + 1
