"""Puts the simulated kernel in the place of the real one: clocks, random numbers, sockets, descriptors,
syncs.

Production's code is not changed. The functions of `time`, `os`, `select` and `secrets` are replaced, and
every name by which a module of production has imported one of them, default arguments included. There is no
way back: a simulation runs in a process of its own (`isolation`).
"""

from __future__ import annotations

import gc
import inspect
import os
import random
import secrets
import select
import socket
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from epochmq_broker.replication.ha import splicer
from epochmq_protocol.transport import descriptors
from epochmq_store.files import file_system_sync
from epochmq_store.state_files import abort_file
from tests.simulation.whole.hosts import Site
from tests.simulation.whole.loop import PROCESS
from tests.simulation.whole.sockets import FD_MIN, SimulatedEpoll, SimulatedSocket
from tests.simulation.whole.threads import replace_threads

WALL_CLOCK_S = 1_790_000_000
"""Seconds since 1970 when the loop's clock is at 0."""
PACKAGES = ("epochmq", "asyncio", "logging")


def install(site: Site) -> None:
    """Replaces the kernel for the rest of this process."""
    gc.disable()
    random.seed(site.seed)
    replacements: dict[Any, Callable[..., Any]] = {
        **_clocks(site),
        **_randomness(site),
        **_descriptors(site),
        **_sockets(site),
        abort_file.boot_id: lambda: _process_of().host.boot_id,
        descriptors.descriptor_limit: lambda: 1 << 30,
        file_system_sync.has_reliable_syncfs: lambda: False,
        splicer.SocketToFileSplicer: _NoSplicer,
        gc.collect: lambda *_: 0,
        gc.freeze: lambda: None,
        gc.enable: lambda: None,
    }
    replace_threads(site)
    for module in (time, os, select, secrets, gc):
        _replace_in(vars(module), replacements)
    for module in _modules():
        _replace_in(vars(module), replacements)
        if vars(module).get("socket") is socket:
            vars(module)["socket"] = _SocketModule(site)
        for function in _functions(module):
            _replace_defaults(function, replacements)


def _process_of() -> Any:
    process = PROCESS.get()
    assert process is not None, "only processes do this"
    return process


def _clocks(site: Site) -> dict[Any, Callable[..., Any]]:
    loop = site.loop

    def wall_s() -> float:
        process = PROCESS.get()
        offset_s: float = 0.0 if process is None else process.host.clock_offset_s
        return WALL_CLOCK_S + loop.time() + offset_s

    real_localtime, real_gmtime = time.localtime, time.gmtime
    return {
        time.time: wall_s,
        time.time_ns: lambda: int(wall_s() * 1e9),
        time.monotonic: loop.time,
        time.monotonic_ns: lambda: int(loop.time() * 1e9),
        time.perf_counter: loop.time,
        time.clock_gettime: lambda _clock: loop.time(),
        time.clock_gettime_ns: lambda _clock: int(loop.time() * 1e9),
        time.localtime: lambda at=None: real_localtime(wall_s() if at is None else at),
        time.gmtime: lambda at=None: real_gmtime(wall_s() if at is None else at),
    }


def _randomness(site: Site) -> dict[Any, Callable[..., Any]]:
    dice = random.Random(site.seed + 1)
    return {
        secrets.token_bytes: lambda size=32: dice.randbytes(size),
        secrets.token_hex: lambda size=32: dice.randbytes(size).hex(),
        secrets.randbelow: dice.randrange,
    }


def _descriptors(site: Site) -> dict[Any, Callable[..., Any]]:
    """Descriptors belong to processes; a sync is noted by the disk of its process."""
    real_open, real_close, real_dup = os.open, os.close, os.dup
    real_pread, real_sendfile = os.pread, os.sendfile

    def opened(fd: int) -> int:
        process = PROCESS.get()
        if process is not None:
            process.files.add(fd)
        return fd

    def close(fd: int) -> None:
        process = PROCESS.get()
        if process is not None:
            process.files.discard(fd)
        real_close(fd)

    def sync(fd: int) -> None:
        process = PROCESS.get()
        if process is not None:
            process.host.disk.synced(fd)

    def sendfile(out: int, fd: int, offset: int, count: int) -> int:
        if out < FD_MIN:
            return real_sendfile(out, fd, offset, count)
        sock: SimulatedSocket = site.kernel.objects[out]
        return sock.send(real_pread(fd, count, offset))

    return {
        os.open: lambda *args, **options: opened(real_open(*args, **options)),
        os.dup: lambda fd: opened(real_dup(fd)),
        os.close: close,
        os.fsync: sync,
        os.fdatasync: sync,
        os.sendfile: sendfile,
        os.getpid: lambda: 1 if PROCESS.get() is None else PROCESS.get().pid,
    }


def _sockets(site: Site) -> dict[Any, Callable[..., Any]]:
    return {select.epoll: lambda *_: SimulatedEpoll(site.kernel)}


class _SocketModule:
    """The module `socket`, whose stream sockets are simulated."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def socket(self, *_args: Any) -> SimulatedSocket:
        return SimulatedSocket(self._site.kernel, PROCESS.get())

    def gethostname(self) -> str:
        process = PROCESS.get()
        return "simulator" if process is None else str(process.host.name)


class _NoSplicer:
    """A kernel that cannot splice."""

    is_supported = False

    def __init__(self, source: int) -> None:
        """Takes a descriptor, as the real one."""

    def splice(self, target: int, at: int, most: int) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


def _modules() -> Iterator[types.ModuleType]:
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0].startswith(PACKAGES) and isinstance(module, types.ModuleType):
            yield module


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for value in list(vars(module).values()):
        if isinstance(value, types.FunctionType):
            yield value
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            yield from (found for found in vars(value).values() if isinstance(found, types.FunctionType))


def _replaced(value: Any, replacements: dict[Any, Callable[..., Any]]) -> Any:
    try:
        return replacements.get(value, value)
    except TypeError:  # cannot be hashed
        return value


def _replace_in(names: dict[str, Any], replacements: dict[Any, Callable[..., Any]]) -> None:
    for name, value in list(names.items()):
        if callable(value) and (new := _replaced(value, replacements)) is not value:
            names[name] = new


def _replace_defaults(function: types.FunctionType, replacements: dict[Any, Callable[..., Any]]) -> None:
    if function.__defaults__:
        function.__defaults__ = tuple(_replaced(value, replacements) for value in function.__defaults__)
    if function.__kwdefaults__:
        function.__kwdefaults__ = {
            name: _replaced(value, replacements) for name, value in function.__kwdefaults__.items()
        }
