"""Keeps one pod running: starts its process, probes it, restarts it when it ends, and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from epochmq_operator.local.network import port_in_use
from epochmq_operator.local.process import identify
from epochmq_operator.local.readiness import Readiness
from epochmq_operator.local.restart_rules import RestartHistory
from epochmq_operator.local.state_directory import PodRecord, StateDirectory
from epochmq_operator.local.tasks import owned_task, wait_first
from epochmq_operator.pods import (
    BrokerProbe,
    Component,
    Pod,
    PodSidecar,
)
from epochmq_operator.status_model import PodPhase
from epochmq_protocol.durable_files import PRIVATE_MODE, make_directory, replace_file

CommandOf = Callable[[Pod], Sequence[str]]
Prober = Callable[[Pod], Awaitable[Readiness]]

GRACE_S = {Component.BROKER: 30.0, Component.CONTROLLER: 10.0, Component.NAMESERVER: 10.0}
"""How long a process may take to end after SIGTERM; a broker flushes first."""
PROBE_STARTING_S = 0.1
PROBE_READY_S = 1.0


SIDECAR_GRACE_S = 5.0
SIDECAR_PAUSE_S = 1.0
"""The delay before a sidecar that ended is started again."""


def command_of(pod: Pod) -> Sequence[str]:
    """The command of a pod's process."""
    return _command(pod.args)


def _command(args: Sequence[str]) -> Sequence[str]:
    """A command of this Python and this installation; `-P` ignores modules in the working directory."""
    return [sys.executable, "-P", "-m", "epochmq", *args]


class PodKeeper:
    """Keeps one pod. `run` lasts as long as the pod, as a task of the supervisor. `record` is its present
    record."""

    def __init__(
        self,
        pod: Pod,
        state: StateDirectory,
        *,
        prober: Prober,
        command_of: CommandOf,
        wait_for_dependencies: Callable[[PodKeeper], Awaitable[None]],
        changed: Callable[[PodKeeper], None],
    ) -> None:
        """`wait_for_dependencies` returns when the pods that this one depends on are ready. `changed` is
        called after every change of `record`."""
        self.pod = pod
        self.record = PodRecord(
            pod=pod.name,
            group=pod.group,
            component=pod.component,
            address=pod.address,
            phase=PodPhase.WAITING,
            since_ms=_now_ms(),
            log_offset=_size(state.log_path(pod.name)),
            nameservers=list(pod.probe.nameservers) if isinstance(pod.probe, BrokerProbe) else [],
        )
        self.readiness = Readiness(False)
        self._state = state
        self._prober = prober
        self._command_of = command_of
        self._wait_for_dependencies = wait_for_dependencies
        self._changed = changed
        self._restarts = RestartHistory()
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._ready_since: float | None = None

    def stop(self, *, kill: bool = False) -> None:
        """Stops the pod; `run` returns when it has ended. `kill`: without grace time."""
        self._stop.set()
        if kill:
            self._kill.set()

    def replace_addresses(self, pod: Pod) -> None:
        """Replaces the pod by one that differs in addresses only (`changed_addresses`). Its configuration is
        written at the next start of the process."""
        self.pod = pod
        if isinstance(pod.probe, BrokerProbe):
            self.record.nameservers = list(pod.probe.nameservers)

    def waits_for(self, pods: Sequence[str]) -> None:
        """Records the pods that this one waits for."""
        self._enter(PodPhase.WAITING, "for " + ", ".join(pods))

    async def run(self) -> None:
        """Runs the pod until `stop`."""
        how = "not started"
        while not self._stop.is_set():
            await self._unless_stopped(self._wait_for_dependencies(self))
            if self._stop.is_set():
                break
            how = await self._run_process()
            if self._stop.is_set():
                break
            ready_for = None if self._ready_since is None else time.monotonic() - self._ready_since
            self._restarts = self._restarts.ended(ready_for)
            self.record.restarts = self._restarts.total
            self.record.failures = self._restarts.consecutive_unready_ends
            delay_s = self._restarts.delay_s
            self._enter(PodPhase.BACK_OFF, f"{how}; starts again after {delay_s:g} s")
            await self._unless_stopped(asyncio.sleep(delay_s))
        self._enter(PodPhase.STOPPED, how)

    async def _unless_stopped(self, waiting: Awaitable[None]) -> None:
        """Awaits `waiting`, but no longer than until `stop`."""
        async with owned_task(waiting) as wait, owned_task(self._stop.wait()) as stop:
            await wait_first(wait, stop)
            if wait.done():
                wait.result()

    async def _run_process(self) -> str:
        """Runs the process once until it ends; returns how it ended, in words."""
        self._ready_since = None
        self.readiness = Readiness(False)
        if busy := port_in_use(self.pod):
            return busy
        try:
            self._prepare()
            self.record.log_offset = _size(self._state.log_path(self.pod.name))
            process = await self._spawn(self._command_of(self.pod), self._state.log_path(self.pod.name))
        except OSError as error:
            return f"cannot start the process: {error}"
        try:
            return await self._watch_process(process)
        finally:
            self.record.process = None
            if process.returncode is None:  # only if this task is cancelled or has a bug
                process.kill()

    async def _watch_process(self, process: asyncio.subprocess.Process) -> str:
        self.record.process = identify(process.pid)
        self._enter(PodPhase.STARTING, "not ready yet")
        async with (
            owned_task(process.wait()) as ended,
            owned_task(self._stop.wait()) as stop,
            owned_task(self._probe_until_cancelled()) as watch,
            owned_task(self._keep_sidecar()),
        ):
            await wait_first(ended, stop, watch)
            if watch.done():
                watch.result()
            if not ended.done():
                watch.cancel()
                await self._terminate(process, ended)
            return _describe_exit(ended.result())

    def _prepare(self) -> None:
        for volume in self.pod.volumes:
            make_directory(Path(volume.path))
        for file in self.pod.files:
            path = Path(file.path)
            make_directory(path.parent)
            replace_file(path, file.text.encode(), mode=PRIVATE_MODE)  # broker.conf may hold passwords

    async def _spawn(self, command: Sequence[str], log_path: Path) -> asyncio.subprocess.Process:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            # In a session of its own: Ctrl-C in the terminal is for the supervisor, which stops the pods in
            # order.
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self._state.absolute,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    async def _keep_sidecar(self) -> None:
        """Keeps the pod's sidecar, if it has one, running until cancelled. A failing sidecar does not affect
        the pod; its log says why it failed."""
        while self.pod.sidecar is not None:
            with contextlib.suppress(OSError):
                await self._run_sidecar(self.pod.sidecar)
            await asyncio.sleep(SIDECAR_PAUSE_S)

    async def _run_sidecar(self, sidecar: PodSidecar) -> None:
        command = _command(sidecar.args)
        process = await self._spawn(command, self._state.admin_log_path(self.pod.name))
        async with owned_task(process.wait()) as ended:
            try:
                self.record.sidecar = identify(process.pid)
                self._changed(self)
                await wait_first(ended)
            finally:
                self.record.sidecar = None
                if not ended.done():
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()
                    await wait_first(ended, timeout_s=SIDECAR_GRACE_S)
                if not ended.done():
                    process.kill()

    async def _probe_until_cancelled(self) -> None:
        """Probes the pod and records the result until cancelled."""
        while True:
            readiness = await self._prober(self.pod)
            self.readiness = readiness
            if readiness.ready:
                if self._ready_since is None:
                    self._ready_since = time.monotonic()
                    self._restarts = self._restarts.ready()
                    self.record.failures = 0
                self._enter(PodPhase.READY)
            elif self._ready_since is None:
                self._enter(PodPhase.STARTING, readiness.reason)
            else:
                self._enter(PodPhase.UNREADY, readiness.reason)
            await asyncio.sleep(PROBE_READY_S if readiness.ready else PROBE_STARTING_S)

    async def _terminate(self, process: asyncio.subprocess.Process, ended: asyncio.Future[int]) -> None:
        self.readiness = Readiness(False)
        self._enter(PodPhase.STOPPING)
        # The process is our unreaped child until `ended` is done, so its id cannot be another process's.
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        async with owned_task(self._kill.wait()) as kill:
            grace_s = GRACE_S[self.pod.component]
            await wait_first(ended, kill, timeout_s=grace_s)
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await ended

    def _enter(self, phase: PodPhase, reason: str = "") -> None:
        record = self.record
        if (record.phase, record.reason) == (phase, reason):
            return
        if record.phase is not phase:
            record.since_ms = _now_ms()
        record.phase, record.reason = phase, reason
        self._changed(self)


def _describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"ended by signal {-returncode}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
