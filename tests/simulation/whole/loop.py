"""The event loop of all simulated processes: virtual time, and callbacks that belong to a process.

Time passes only while no callback is ready, and then jumps to the next timer. Every iteration takes a
microsecond, so that callbacks that schedule each other without end do not stop time. A callback belongs to
the process of its context. Those of a killed process never run; those of a paused process wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable
from typing import Any, Protocol

from tests.simulation.whole.sockets import EVENT_READ, EVENT_WRITE, Kernel, SimulatedSocket

ITERATION_S = 1e-6
ITERATIONS_MAX_PER_S = 200_000
"""Iterations within one second of virtual time. More are taken for a process that makes no progress."""


class SchedulableProcess(Protocol):
    """What the loop needs to know of a process."""

    name: str
    alive: bool
    paused: bool
    waiting: list[asyncio.Handle]
    """The callbacks that became ready while the process was paused."""


PROCESS: contextvars.ContextVar[Any] = contextvars.ContextVar("process", default=None)
"""The simulated process of the running callback; None for the simulator itself."""


class BusyLoopError(AssertionError):
    """Callbacks schedule each other without waiting for anything."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time. Times are seconds since the loop began."""

    def __init__(self, kernel: Kernel, job_delay_s: Callable[[], float]) -> None:
        """`job_delay_s` draws how long a job of a worker thread takes."""
        super().__init__()
        self._now = 1000.0
        self._kernel = kernel
        self._job_delay_s = job_delay_s
        self._readers: dict[int, asyncio.Handle] = {}
        self._writers: dict[int, asyncio.Handle] = {}
        self._armed: set[tuple[int, int]] = set()
        self._executors: dict[object, float] = {}  # when the last job of a pool of one process ends
        self._transports: dict[int, Any] = {}  # asyncio's own transports register themselves here
        self._second, self._in_second = 0, 0
        self.iterations = 0
        kernel.attach(self._changed)

    # time

    def time(self) -> float:
        """Virtual time."""
        return self._now

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise BusyLoopError("nothing is scheduled: the simulation cannot continue")
            self._now = max(self._now, scheduled[0]._when)
        self._now += ITERATION_S
        self._count_iteration()
        while scheduled and scheduled[0]._when <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        for _ in range(len(ready)):
            self._run_handle(ready.popleft())

    def _run_handle(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        process: SchedulableProcess | None = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is not None:
            if not process.alive:
                return
            if process.paused:
                process.waiting.append(handle)
                return
        handle._run()

    def _count_iteration(self) -> None:
        self.iterations += 1
        second = int(self._now)
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        if self._in_second > ITERATIONS_MAX_PER_S:
            busy = sorted({self._name_of(handle) for handle in self._ready})  # type: ignore[attr-defined]
            raise BusyLoopError(f"{ITERATIONS_MAX_PER_S} iterations within a second; ready: {busy}")

    @staticmethod
    def _name_of(handle: Any) -> str:
        process = handle._context.get(PROCESS)
        return f"{'simulator' if process is None else process.name}: {handle!r}"[:200]

    def resume(self, process: SchedulableProcess) -> None:
        """Lets a paused process run again."""
        process.paused = False
        waiting, process.waiting = process.waiting, []
        self._ready.extend(waiting)  # type: ignore[attr-defined]

    # descriptors

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        self._readers[fd] = asyncio.Handle(callback, args, self, contextvars.copy_context())
        self._changed(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        self._writers[fd] = asyncio.Handle(callback, args, self, contextvars.copy_context())
        self._changed(fd)

    def remove_writer(self, fd: Any) -> bool:
        return self._writers.pop(fd, None) is not None

    # the names by which asyncio's own transports call them
    _add_reader, _remove_reader = add_reader, remove_reader
    _add_writer, _remove_writer = add_writer, remove_writer

    def _changed(self, fd: int) -> None:
        """Calls the watchers of a descriptor in the next iteration, again and again while it is ready."""
        events = self._kernel.events(fd)
        for event, watchers in ((EVENT_READ, self._readers), (EVENT_WRITE, self._writers)):
            handle = watchers.get(fd)
            if handle is not None and events & event and (fd, event) not in self._armed:
                self._armed.add((fd, event))
                context = handle._context  # type: ignore[attr-defined]
                self.call_soon(self._fire, fd, event, handle, context=context)

    def _fire(self, fd: int, event: int, handle: asyncio.Handle) -> None:
        self._armed.discard((fd, event))
        watchers = self._readers if event == EVENT_READ else self._writers
        try:
            if watchers.get(fd) is handle and self._kernel.events(fd) & event:
                handle._callback(*handle._args)  # type: ignore[attr-defined]
        finally:
            self._changed(fd)

    def forget(self, fd: int) -> None:
        """Forgets a descriptor whose process has ended."""
        self._readers.pop(fd, None)
        self._writers.pop(fd, None)
        self._armed -= {(fd, EVENT_READ), (fd, EVENT_WRITE)}

    # connections

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> tuple[Any, Any]:
        """Connects to a simulated address; raises the errors that a kernel raises."""
        sock: SimulatedSocket = await self._kernel.connect(host, port)
        waiter = self.create_future()
        protocol = protocol_factory()
        transport = asyncio.selector_events._SelectorSocketTransport(  # type: ignore[attr-defined]
            self, sock, protocol, waiter
        )
        await waiter
        return transport, protocol

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> list[Any]:
        """The address itself: simulated hosts have no names."""
        return [(self._kernel.FAMILY, self._kernel.STREAM, 6, "", (host or "0.0.0.0", port))]

    # threads and signals

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Runs a job of a worker thread on this thread, a drawn time later. Jobs of one executor run in their
        order."""
        future = self.create_future()
        process = PROCESS.get()
        key = (id(process), executor)
        at = max(self._now + self._job_delay_s(), self._executors.get(key, 0.0) + ITERATION_S)
        if executor is not None:
            self._executors[key] = at

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_at(at, run)
        return future

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """There is one thread."""
        return self.call_soon(callback, *args, context=context)

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """Remembers how the present process stops in order."""
        process = PROCESS.get()
        process.on_stop = asyncio.Handle(callback, args, self, contextvars.copy_context())

    def remove_signal_handler(self, sig: int) -> bool:
        return True

    def _write_to_self(self) -> None:
        """Nobody waits in a system call."""

    def _process_events(self, event_list: Any) -> None:
        """Nothing is watched by the kernel."""
