"""Reads what is not in memory on threads of its own, so that one reader with a backlog delays nobody but
itself.

Whoever reads on the event loop gets `NotResidentError` where the disk would have to be read. The bytes are
read on one of a few threads then, and the request is run again. Clients take turns; each has so many reads
under way and so many waiting at most, and all together so many. One more request is refused: SYSTEM_BUSY, as
RocketMQ's brokers refuse pulls when their threads' queue is full.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from epochmq_broker.store.message_reader import MessageReader
from epochmq_broker.store.page_residency import NotResidentError, warm
from epochmq_broker.store.statuses import StoreReadError
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import OVERLOAD_REMARK, RemotingConnection, RequestHandler

log = logging.getLogger(__name__)

THREADS: Final = 4
PER_CLIENT: Final = 2
"""Reads of one client under way at a time: it cannot take all threads."""
WAITING_PER_CLIENT: Final = 1024  # a consumer has one pull on its way for each of its queues
WAITING_MAX: Final = 16_384
TRIES_MAX: Final = 64
"""Reads that one request may need: a search by time needs one for each step. Beyond, it is answered as it
is."""
PULL_TRIES_MAX: Final = 6  # a pull needs its units, then its records

OnRead = Callable[[Exception | None], None]


class ColdReadPool:
    """The threads, and who waits for them. Everything but `warm` happens on the loop."""

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
        self.waiting = 0
        self.running = 0
        self.failures = 0  # reads that the disk could not serve, since the start

    def start(self) -> None:
        """Begins to take reads; needs a running loop."""
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="store-read")

    def stop(self) -> None:
        """Takes no more reads; those that wait end with StoreReadError."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
        waiting, self._waiting = self._waiting, {}
        self.waiting = 0
        for reads in waiting.values():
            for _, done in reads:
                done(StoreReadError("the broker is stopping"))

    def submit(self, client: Hashable, missing: NotResidentError, done: OnRead) -> None:
        """Reads the missing bytes; calls `done` on the loop with None, or with what went wrong. RequestError
        SYSTEM_BUSY: too many reads wait already."""
        reads = self._waiting.get(client)
        if (
            self._executor is None
            or self.waiting >= self._waiting_max
            or (reads is not None and len(reads) >= self._waiting_per_client)
        ):
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        if reads is None:
            reads = self._waiting[client] = deque()
        reads.append((missing, done))
        self.waiting += 1
        self._begin()

    def _begin(self) -> None:
        """Starts reads while threads are free, one of each client in turn."""
        skipped = 0
        while self.running < self._threads and skipped < len(self._waiting):
            client = next(iter(self._waiting))
            reads = self._waiting.pop(client)
            if self._active.get(client, 0) >= self._per_client:
                self._waiting[client] = reads  # behind all others
                skipped += 1
                continue
            skipped = 0
            missing, done = reads.popleft()
            self.waiting -= 1
            if reads:
                self._waiting[client] = reads
            self._run(client, missing, done)

    def _run(self, client: Hashable, missing: NotResidentError, done: OnRead) -> None:
        assert self._executor is not None
        loop = asyncio.get_running_loop()
        self.running += 1
        self._active[client] = self._active.get(client, 0) + 1
        future = loop.run_in_executor(self._executor, self._read, missing)

        def ended(future: asyncio.Future[None]) -> None:
            self.running -= 1
            left = self._active[client] - 1
            if left:
                self._active[client] = left
            else:
                del self._active[client]
            error = StoreReadError("the broker is stopping") if future.cancelled() else future.exception()
            if error is not None:
                log.error("a read from the disk failed: %s", error)
                self.failures += not future.cancelled()
            assert error is None or isinstance(error, Exception)
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
    """Wraps handlers that read from the store: a request that needs the disk is run again when the bytes are
    in memory. Such a handler changes nothing before it has read."""

    def __init__(self, reader: MessageReader, reads: ColdReadPool) -> None:
        self._reader = reader
        self._reads = reads

    def wrap(self, handlers: Mapping[int, RequestHandler]) -> dict[int, RequestHandler]:
        """The handlers, each of which never reads from the disk on the loop."""
        return {code: self._wrapped(handler) for code, handler in handlers.items()}

    def _wrapped(self, handler: RequestHandler) -> RequestHandler:
        def handle(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            try:
                return self._in_memory(handler, connection, command)
            except NotResidentError as missing:
                return self._later(handler, connection, command, missing)

        return handle

    def _in_memory(
        self, handler: RequestHandler, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        self._reader.resident_only = self._reader.residency
        try:
            return handler(connection, command)
        finally:
            self._reader.resident_only = None

    async def _later(
        self,
        handler: RequestHandler,
        connection: RemotingConnection,
        command: Command,
        missing: NotResidentError,
    ) -> Command | None:
        for _ in range(TRIES_MAX):
            await self._reads.read(connection, missing)
            try:
                answer = self._in_memory(handler, connection, command)
            except NotResidentError as again:
                missing = again
                continue
            return await _result(answer)
        # A question about very many queues, or pages that the kernel does not keep.
        log.warning("request %d of %s reads from the disk on the event loop", command.code, connection.remote)
        return await _result(handler(connection, command))


async def _result(answer: Command | Awaitable[Command | None] | None) -> Command | None:
    if inspect.isawaitable(answer):
        found: Command | None = await answer
        return found
    assert answer is None or isinstance(answer, Command)
    return answer
