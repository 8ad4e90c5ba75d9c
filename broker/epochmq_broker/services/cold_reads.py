"""Reads bytes that are not in memory on worker threads, so that a consumer with a backlog delays no other
client.

A read on the event loop raises `NotResidentError` if it would have to wait for the disk. A worker thread then
reads the bytes into memory, and the request runs again. Requests that need blocks which a thread is reading
already wait for that read. Clients take turns.
Each client, and all clients together, have a bounded number of running and waiting reads. Further requests
are rejected with SYSTEM_BUSY, as a RocketMQ broker rejects pulls when the queue of its pull threads is full.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import OVERLOAD_REMARK, RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import WorkInTurns
from epochmq_store.files.page_residency import NotResidentError, warm
from epochmq_store.reading.message_reader import MessageReader
from epochmq_store.statuses import StoreReadError

log = logging.getLogger(__name__)

THREADS: Final = 4
PER_CLIENT: Final = 2
"""Concurrent reads of one client: one client cannot occupy all threads."""
WAITING_PER_CLIENT: Final = 1024  # a consumer sends one pull at a time for each of its queues
WAITING_MAX: Final = 16_384
TRIES_MAX: Final = 64
"""Reads that one request may need; a search by time needs one per step. After these the request runs on the
event loop and waits for the disk."""
PULL_TRIES_MAX: Final = 6  # a pull reads consume-queue units, then records

OnRead = Callable[[Exception | None], None]


class _RunningRead:
    """A read on a worker thread, and the requests that wait for it beside the one that began it."""

    __slots__ = ("blocks", "followers")

    def __init__(self, missing: NotResidentError) -> None:
        self.blocks = missing.blocks()
        self.followers: list[OnRead] = []


class ColdReadPool:
    """The worker threads and the reads that wait for them. All methods run on the event loop; only the
    constructor's `read` runs on the threads."""

    def __init__(
        self,
        *,
        threads: int = THREADS,
        per_client: int = PER_CLIENT,
        waiting_per_client: int = WAITING_PER_CLIENT,
        waiting_max: int = WAITING_MAX,
        read: Callable[[NotResidentError], None] = warm,
    ) -> None:
        self._threads = threads
        self._per_client = per_client
        self._waiting_per_client = waiting_per_client
        self._waiting_max = waiting_max
        self._read = read
        self._executor: ThreadPoolExecutor | None = None
        self._active: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[tuple[NotResidentError, OnRead]]] = {}
        self._reads: list[_RunningRead] = []
        self.waiting = 0
        self.running = 0
        self.failures = 0  # reads that the disk failed to serve, since the start

    def start(self) -> None:
        """Starts to accept reads; needs a running loop."""
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="store-read")

    def stop(self) -> None:
        """Accepts no more reads; waiting reads end with StoreReadError."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
        ended = [done for reads in self._waiting.values() for _, done in reads]
        self._waiting = {}
        for read in self._reads:
            ended += read.followers
            read.followers = []
        self.waiting = 0
        for done in ended:
            done(StoreReadError("the broker is stopping"))

    def submit(self, client: Hashable, missing: NotResidentError, done: OnRead) -> None:
        """Reads the missing bytes and calls `done` on the loop with None or the error. Raises RequestError
        SYSTEM_BUSY if too many reads wait already."""
        reads = self._waiting.get(client)
        if (
            self._executor is None
            or self.waiting >= self._waiting_max
            or (reads is not None and len(reads) >= self._waiting_per_client)
        ):
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        if self._follow(missing, done):
            return
        if reads is None:
            reads = self._waiting[client] = deque()
        reads.append((missing, done))
        self.waiting += 1
        self._begin()

    def _follow(self, missing: NotResidentError, done: OnRead) -> bool:
        """Waits for a running read if it reads all missing blocks."""
        if not self._reads:
            return False
        blocks = missing.blocks()
        for read in self._reads:
            if blocks <= read.blocks and len(read.followers) < self._waiting_per_client:
                read.followers.append(done)
                self.waiting += 1
                return True
        return False

    def _begin(self) -> None:
        """Starts waiting reads while threads are free, one per client in turn."""
        skipped = 0
        while self.running < self._threads and skipped < len(self._waiting):
            client = next(iter(self._waiting))
            reads = self._waiting.pop(client)
            if self._active.get(client, 0) >= self._per_client:
                self._waiting[client] = reads  # at the end of the queue
                skipped += 1
                continue
            skipped = 0
            missing, done = reads.popleft()
            self.waiting -= 1
            if reads:
                self._waiting[client] = reads
            if not self._follow(missing, done):
                self._run(client, missing, done)

    def _run(self, client: Hashable, missing: NotResidentError, done: OnRead) -> None:
        assert self._executor is not None
        loop = asyncio.get_running_loop()
        self.running += 1
        self._active[client] = self._active.get(client, 0) + 1
        read = _RunningRead(missing)
        self._reads.append(read)
        future = loop.run_in_executor(self._executor, self._read, missing)

        def ended(future: asyncio.Future[None]) -> None:
            self.running -= 1
            self._reads.remove(read)
            self.waiting -= len(read.followers)
            left = self._active[client] - 1
            if left:
                self._active[client] = left
            else:
                del self._active[client]
            error = StoreReadError("the broker is stopping") if future.cancelled() else future.exception()
            if error is not None:
                log.error("reading the store from the disk failed: %s", error)
                self.failures += not future.cancelled()
            assert error is None or isinstance(error, Exception)
            for follower in read.followers:
                loop.call_soon(follower, error)
            try:
                done(error)
            finally:
                if self._executor is not None:
                    self._begin()

        future.add_done_callback(ended)

    async def read(self, client: Hashable, missing: NotResidentError) -> None:
        """Reads the missing bytes. Raises StoreReadError, or RequestError SYSTEM_BUSY."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self.submit(client, missing, done)
        await ended


class ColdReadRetrier:
    """Wraps handlers that read from the store. A request that needs the disk runs again once its bytes are in
    memory, so a wrapped handler must not change anything before it has read."""

    def __init__(self, reader: MessageReader, reads: ColdReadPool) -> None:
        self._reader = reader
        self._reads = reads

    def wrap(self, handlers: Mapping[int, RequestHandler]) -> dict[int, RequestHandler]:
        """The wrapped handlers; none of them waits for the disk on the event loop."""
        return {code: self._wrapped(handler) for code, handler in handlers.items()}

    def _wrapped(self, handler: RequestHandler) -> RequestHandler:
        def handle(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            try:
                result = self._in_memory(handler, connection, command)
            except NotResidentError as missing:
                return self._run_after_reads(handler, connection, command, missing)
            if isinstance(result, WorkInTurns):
                return _ColdTurns(self, result, handler, connection, command)
            return result

        return handle

    async def finish(
        self,
        work: WorkInTurns[Command | None],
        handler: RequestHandler,
        connection: RemotingConnection,
        command: Command,
    ) -> Command | None:
        """Runs the further turns of a request; anew, if one of them needs the disk."""
        try:
            return await self._in_memory_turns(work)
        except NotResidentError as missing:
            return await self._run_after_reads(handler, connection, command, missing)

    async def _in_memory_turns(self, work: WorkInTurns[Command | None]) -> Command | None:
        def turn() -> None:
            with self._reader.resident:
                work.run_turn()

        return await work.run(turn)

    def _in_memory(
        self, handler: RequestHandler, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        with self._reader.resident:
            return handler(connection, command)

    async def _run_after_reads(
        self,
        handler: RequestHandler,
        connection: RemotingConnection,
        command: Command,
        missing: NotResidentError,
    ) -> Command | None:
        for _ in range(TRIES_MAX):
            await self._reads.read(connection, missing)
            try:
                result = self._in_memory(handler, connection, command)
                if isinstance(result, WorkInTurns):
                    return await self._in_memory_turns(result)
            except NotResidentError as again:
                missing = again
                continue
            return await _result(result)
        # The request covers very many queues, or the kernel does not keep the pages.
        log.warning(
            "request code %d of %s still lacks bytes in memory after %d reads; it reads on the event loop",
            command.code,
            connection.remote,
            TRIES_MAX,
        )
        return await _result(handler(connection, command))


class _ColdTurns:
    """The further turns of a request, which `ColdReadRetrier.finish` runs."""

    def __init__(
        self,
        retrier: ColdReadRetrier,
        work: WorkInTurns[Command | None],
        handler: RequestHandler,
        connection: RemotingConnection,
        command: Command,
    ) -> None:
        self._retrier = retrier
        self._work = work
        self._request = handler, connection, command

    def __await__(self) -> Generator[Any, None, Command | None]:
        return self._retrier.finish(self._work, *self._request).__await__()

    def close(self) -> None:
        """Ends the work half way: nothing will await it. A connection that it holds is released."""
        self._work.close()


async def _result(result: Command | Awaitable[Command | None] | None) -> Command | None:
    if inspect.isawaitable(result):
        found: Command | None = await result
        return found
    assert result is None or isinstance(result, Command)
    return result
