"""Hosts, the processes that run on them, and how both end.

A process is a coroutine in a context of its own: everything that it starts belongs to it. A killed process
runs no further statement, not even its `finally` blocks; its kernel closes its connections. A host that
loses power closes nothing: its peers find out by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import random
import shutil
import traceback
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochmq_store.files.lock_file import _held as _held_locks
from tests.simulation.whole.files import Disk
from tests.simulation.whole.loop import PROCESS, SimulatedLoop
from tests.simulation.whole.network import Network
from tests.simulation.whole.sockets import Kernel, SimulatedSocket
from tests.simulation.whole.trace import Trace

Main = Callable[[], Coroutine[Any, Any, Any]]


@dataclass(eq=False)
class Host:
    """A machine: one address, one disk, one boot at a time."""

    name: str
    address: str
    disk: Disk
    boot: int = 1
    has_power: bool = True
    disk_delay: float = 1.0
    """By how much its disk is slower than drawn."""
    clock_offset_s: float = 0.0

    @property
    def boot_id(self) -> str:
        """What the kernel calls this boot."""
        return f"{self.name}-boot-{self.boot}"

    @property
    def root(self) -> Path:
        """The directory that stands for its disk."""
        return self.disk.root


@dataclass(eq=False)
class Process:
    """A running process."""

    host: Host
    name: str
    pid: int
    alive: bool = True
    paused: bool = False
    waiting: list[asyncio.Handle] = field(default_factory=list)
    on_stop: asyncio.Handle | None = None
    task: asyncio.Task[Any] | None = None
    files: set[int] = field(default_factory=set)
    """The descriptors of files that it has open."""
    kept: list[Any] = field(default_factory=list)
    """What must outlive the process: a task that is collected would run its `finally` blocks."""
    service: Any = None
    """The object that its main function has made, for checks."""


class Site:
    """All hosts, the network between them, and the loop that runs them."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.directory = directory
        self.trace = Trace(directory)
        self.kernel = Kernel()
        self.loop = SimulatedLoop(self.kernel, self._job_delay_s)
        self.network = Network(self.kernel, self.loop.time, self._segment_delay_s, self._traced)
        self.network.loop = self.loop
        self.kernel.owner_of_new = PROCESS.get
        self.hosts: dict[str, Host] = {}
        self.processes: dict[str, Process] = {}
        self._ended: list[Process] = []
        self._next_pid = 100
        self._delays = random.Random(seed * 7919 + 1)
        self.loop.set_exception_handler(self._unhandled)
        self.failures: list[str] = []
        """Errors that nobody has handled."""
        self.broken: list[str] = []
        """Promises that a client or a watch has seen broken."""
        self.may_exit: set[str] = set()
        """The processes that may reject what they find on their disk."""

    def host(self, name: str) -> Host:
        """The host of this name; a new one if there is none."""
        found = self.hosts.get(name)
        if found is None:
            address = f"10.0.0.{len(self.hosts) + 1}"
            root = self.directory / name
            found = self.hosts[name] = Host(name, address, Disk(root, self.random))
            self.network.add_host(found)
        return found

    # processes

    def start(self, name: str, main: Main, *, on: str | None = None) -> Process:
        """Starts a process on a host, by default on the one of the same name."""
        host = self.host(on or name)
        assert host.has_power, f"{host.name} has no power"
        old = self.processes.get(name)
        assert old is None or not old.alive, f"{name} runs already"
        self._next_pid += 1
        process = Process(host, name, self._next_pid)
        self.processes[name] = process
        self.trace.add(f"start {name}")
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        process.task = context.run(self._create_task, main)
        process.task.add_done_callback(lambda task: self._main_ended(process, task))
        return process

    def _create_task(self, main: Main) -> asyncio.Task[Any]:
        return self.loop.create_task(main())

    def _main_ended(self, process: Process, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        self.trace.tell(f"ended {process.name} {error!r}")
        if error is not None and process.name not in self.may_exit:
            self.failures.append("".join(traceback.format_exception(error)))
        if process.alive:
            self._release(process)

    def stop(self, name: str) -> asyncio.Task[Any]:
        """Sends SIGTERM; the task ends with the process."""
        process = self.processes[name]
        assert process.on_stop is not None
        assert process.task is not None
        self.trace.add(f"SIGTERM {name}")
        self.loop._ready.append(process.on_stop)  # type: ignore[attr-defined]
        return process.task

    def kill(self, name: str) -> None:
        """Ends a process as SIGKILL does."""
        process = self.processes[name]
        if process.alive:
            self.trace.add(f"SIGKILL {name}")
            self._release(process)

    def _release(self, process: Process) -> None:
        process.alive = False
        process.kept += asyncio.all_tasks(self.loop)
        process.waiting.clear()
        self._ended.append(process)
        for fd, thing in list(self.kernel.objects.items()):
            if thing.owner is process:
                if isinstance(thing, SimulatedSocket):
                    thing.close()
                self.kernel.objects.pop(fd, None)
                self.loop.forget(fd)
        for fd in sorted(process.files):
            with contextlib.suppress(OSError):
                os.close(fd)
        process.files.clear()
        _held_locks.difference_update({path for path in _held_locks if process.host.root in path.parents})

    def pause(self, name: str) -> None:
        """Stops a process as SIGSTOP does, until `resume`."""
        self.trace.add(f"SIGSTOP {name}")
        self.processes[name].paused = True

    def resume(self, name: str) -> None:
        """Lets a stopped process go on, as SIGCONT does."""
        self.trace.add(f"SIGCONT {name}")
        self.loop.resume(self.processes[name])

    def running(self) -> Iterator[Process]:
        """The processes that run."""
        return (process for process in self.processes.values() if process.alive)

    # hosts

    def power_off(self, name: str) -> None:
        """Cuts the power of a host: its processes and connections are gone, and unsynced bytes may be."""
        host = self.hosts[name]
        self.trace.add(f"power off {name}")
        self.network.power_lost(host)
        host.has_power = False
        carrier, self.kernel.carrier = self.kernel.carrier, None  # nothing is sent any more
        for process in self.processes.values():
            if process.host is host and process.alive:
                self._release(process)
        self.kernel.carrier = carrier
        host.disk.lose_power()

    def power_on(self, name: str) -> None:
        """Boots a host again; its processes are not started."""
        host = self.hosts[name]
        host.has_power = True
        host.boot += 1

    # running

    def run(self, main: Coroutine[Any, Any, Any], *, within_s: float) -> Any:
        """Runs until the end of a coroutine that belongs to no process. AssertionError after `within_s`."""

        async def bounded() -> Any:
            try:
                async with asyncio.timeout(within_s):
                    return await main
            except TimeoutError:
                raise AssertionError(f"not finished within {within_s:g} s of virtual time") from None

        asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(bounded())

    def remove(self) -> None:
        """Removes the directories of all hosts."""
        shutil.rmtree(self.directory, ignore_errors=True)

    # inside

    def _segment_delay_s(self) -> float:
        drawn = self._delays.random()
        return 0.0001 + (0.0004 * drawn if drawn < 0.98 else 0.02 * drawn)

    def _job_delay_s(self) -> float:
        process = PROCESS.get()
        slower = 1.0 if process is None else process.host.disk_delay
        drawn = self._delays.random()
        return (0.0002 + 0.001 * drawn if drawn < 0.97 else 0.02) * slower

    def _traced(self, line: str) -> None:
        self.trace.add(f"{self.loop.time():.6f} {line}")

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = PROCESS.get()
        error = context.get("exception")
        text = f"{'simulator' if process is None else process.name}: {context.get('message')}: {error!r}"
        self.trace.add(text)
        self.failures.append(text)
