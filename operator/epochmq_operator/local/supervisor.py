"""Runs the pods of a state directory's resources as processes of this machine.

The supervisor is level-triggered: every reconciliation compares the desired pods with the running ones, stops
those that are removed or changed, and starts those that are new or changed. In groups in the modes
MasterSlave and DLedger the changed pods restart one after another, the master last. The number of
controllers, and of brokers of a DLedger group, changes by one at a time (`quorum_changes`). Only one
supervisor runs in a state directory; it holds the directory's lock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from epochmq_operator.local import network
from epochmq_operator.local.errors import StateError
from epochmq_operator.local.keeper import GRACE_S, CommandOf, PodKeeper, Prober, command_of
from epochmq_operator.local.pod_placements import addresses_for, render_all, running_resources
from epochmq_operator.local.process import current, is_alive, send_signal
from epochmq_operator.local.quorum_changes import QuorumChanges, QuorumChangesContext, initial_quorums
from epochmq_operator.local.readiness import Readiness, probe_pod
from epochmq_operator.local.restart_rules import ACCEPTED_KEYS, BrokerInTurn, changed_addresses, next_restarts
from epochmq_operator.local.state_directory import NetworkFile, PodRecord, PodsFile, StateDirectory, digest_of
from epochmq_operator.pods import (
    START_ORDER,
    WAITS_FOR,
    Component,
    Pod,
)
from epochmq_operator.resources import Resources
from epochmq_operator.status_model import PodPhase
from epochmq_protocol.durable_files import make_directory
from epochmq_protocol.transport import RemotingClient

log = logging.getLogger(__name__)

DEPENDENCY_WAIT_MAX_S = 15.0
"""How long a pod waits for its dependencies. Then it starts without them, because they may return while it
runs."""
LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_CHECK_S = 60.0
KILL_WAIT_S = 10.0
_POLL_S = 0.05


class Supervisor:
    """The supervisor of a state directory: call `start`, then `reconcile` whenever the resources changed,
    then `stop`."""

    def __init__(
        self,
        state: StateDirectory,
        *,
        command_of: CommandOf = command_of,
        prober: Prober | None = None,
        on_change: Callable[[PodRecord], None] | None = None,
    ) -> None:
        """`on_change` is called with every changed record of a pod. `command_of` and `prober` are for
        tests."""
        self._state = state
        self._command_of = command_of
        self._client = RemotingClient()
        self._prober = prober or self._ask
        self._on_change = on_change
        self._claim: network.NetworkClaim | None = None
        self._keepers: dict[str, tuple[PodKeeper, asyncio.Task[None]]] = {}
        self._housekeeping: asyncio.Task[None] | None = None
        self._turns: asyncio.Task[None] | None = None
        self._turns_ending = False
        self._quorum_changes = QuorumChanges(
            QuorumChangesContext(state, self._client, self._keepers_by_name, self._apply_running, self._write)
        )
        self._changing: asyncio.Task[None] | None = None
        self._applying = asyncio.Lock()
        self._phase_changed = asyncio.Event()
        self._applied = ""
        self._process = current()
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when the supervisor itself has a fault and should be stopped."""

    async def start(self) -> None:
        """Acquires the lock and a network, and ends pods that a dead supervisor left. StateError or
        NetworkError if that fails."""
        await self._state.lock.acquire()
        self._state.write_supervisor(self._process)
        await end_leftovers(self._state)
        self._state.write_member_secret()
        self._client.prove_with(self._state.members())
        known = self._state.network()
        self._claim = network.claim_network(str(self._state.absolute), known.network if known else None)
        if known is None or known.network != self._claim.network:
            self._state.write_network(NetworkFile(network=self._claim.network, addresses={}))
        self._housekeeping = asyncio.create_task(self._housekeep())

    async def reconcile(self) -> None:
        """Starts and stops pods as the resources ask for. Returns when all pods are being started, before
        they are ready."""
        await self._end_changes()
        resources = self._state.resources()
        running = {keeper.pod.group for keeper, _ in self._keepers.values()}
        self._state.write_quorums(initial_quorums(self._state, resources, running))
        self._quorum_changes.begin(resources)
        self._applied = digest_of(resources)
        wanted, in_turn = await self._apply(resources)
        for keeper, _ in self._keepers.values():
            keeper.record.awaits_restart = keeper in in_turn
        self._write()
        if in_turn:
            self._turns_ending = False
            self._turns = asyncio.create_task(self._restart_in_turn(wanted))
            self._turns.add_done_callback(self._ended)
        if self._quorum_changes.pending:
            self._changing = asyncio.create_task(self._change_quorums(resources, self._turns))
            self._changing.add_done_callback(self._ended)

    async def _apply(self, resources: Resources) -> tuple[Mapping[str, Pod], list[PodKeeper]]:
        """Starts and stops pods. Returns the desired pods, and the keepers of those that restart in turn."""
        running = running_resources(resources, self._state.quorums())
        known = self._state.network()
        assert known is not None, "start() wrote the file"
        placed = addresses_for(running, known)
        self._state.write_network(placed)
        wanted = {pod.name: pod for pod in render_all(self._state, running, placed)}
        self._replace_addresses(wanted)
        await self._quorum_changes.send_addresses(resources)
        unwanted = [k for k, _ in self._keepers.values() if wanted.get(k.pod.name) != k.pod]
        in_turn = [k for k in unwanted if _restarts_in_turn(k.pod, wanted)]
        await self._end([k for k in unwanted if k not in in_turn])
        create_raft_volumes(wanted.values())
        for pod in wanted.values():
            if pod.name not in self._keepers:
                self._keep(pod)
        self._write()
        return wanted, in_turn

    async def _apply_running(self) -> None:
        """Starts and stops members of Raft groups while their number changes."""
        async with self._applying:
            await self._apply(self._state.resources())

    def _replace_addresses(self, wanted: Mapping[str, Pod]) -> None:
        """Replaces the pods that need no restart."""
        for keeper, _ in self._keepers.values():
            after = wanted.get(keeper.pod.name)
            if after is None or after == keeper.pod:
                continue
            addresses = changed_addresses(keeper.pod, after)
            if addresses is not None:
                keeper.replace_addresses(after)
                accepted = {key: addresses[key] for key in ACCEPTED_KEYS & addresses.keys()}
                if after.component is Component.BROKER and accepted:
                    self._quorum_changes.add_addresses(after.name, accepted)

    async def _change_quorums(self, resources: Resources, turns: asyncio.Task[None] | None) -> None:
        """Changes the numbers of members of Raft groups, after the restarts one after another."""
        if turns is not None:
            await asyncio.wait({turns})
        await self._quorum_changes.run(resources)

    async def _restart_in_turn(self, wanted: Mapping[str, Pod]) -> None:
        """Restarts the changed pods of groups whose pods restart one after another, until all have been
        restarted or `_end_changes` is called. Waits for as long as a pod is not ready: the pods that run with
        their former configuration serve meanwhile."""
        while not self._turns_ending and (names := self._next_restarts()) is not None:
            if not names:
                self._phase_changed.clear()
                await self._phase_changed.wait()
                continue
            await self._end([self._keepers[name][0] for name in names])
            for name in names:
                self._keep(wanted[name])
            self._write()

    def _next_restarts(self) -> list[str] | None:
        """The pods to restart now; None if none is left to be restarted."""
        keepers = [keeper for keeper, _ in self._keepers.values()]
        groups = {keeper.pod.group for keeper in keepers if keeper.record.awaits_restart}
        if not groups:
            return None
        names: list[str] = []
        for group in sorted(groups):
            names += next_restarts(
                BrokerInTurn(
                    keeper.pod.name,
                    keeper.pod.ordinal,
                    keeper.record.awaits_restart,
                    keeper.record.phase is PodPhase.READY,
                    leads=keeper.readiness.leads_dledger,
                )
                for keeper in keepers
                if keeper.pod.group == group and keeper.pod.component is Component.BROKER
            )
        return names

    async def _end_changes(self) -> None:
        """Ends the changes that take several steps. A restart, start or stop that has begun is completed. A
        change of the number of members continues after the next reconciliation."""
        changing, self._changing = self._changing, None
        if changing is not None:
            async with self._applying:
                changing.cancel()
            await asyncio.wait({changing})
        turns, self._turns = self._turns, None
        if turns is not None:
            self._turns_ending = True
            self._phase_changed.set()
            await asyncio.wait({turns})

    async def stop(self) -> None:
        """Ends all pods, dependants first, and releases the state directory. Also forgets the resources: the
        next `up` says what runs."""
        try:
            await self._end_changes()
            await self._end([keeper for keeper, _ in self._keepers.values()], forget=False)
            self._state.clear_resources()
        except OSError as error:
            log.warning("cannot remove resources.json: %s", error)
        finally:
            if self._housekeeping is not None:
                self._housekeeping.cancel()
                await asyncio.wait({self._housekeeping})
            await self._client.close()
            if self._claim is not None:
                self._claim.release()
            self._state.lock.release()

    def kill(self) -> None:
        """During `stop`: kills the pods that have not ended."""
        for keeper, _ in self._keepers.values():
            keeper.stop(kill=True)

    def pods(self) -> list[tuple[PodRecord, Readiness]]:
        """The present record and readiness of each pod."""
        return [(keeper.record, keeper.readiness) for keeper, _ in self._keepers.values()]

    def _keepers_by_name(self) -> Mapping[str, PodKeeper]:
        return {name: keeper for name, (keeper, _) in self._keepers.items()}

    async def _ask(self, pod: Pod) -> Readiness:
        return await probe_pod(self._client, pod.probe)

    def _keep(self, pod: Pod) -> None:
        keeper = PodKeeper(
            pod,
            self._state,
            prober=self._prober,
            command_of=self._command_of,
            wait_for_dependencies=self._wait_for_dependencies,
            changed=self._changed,
        )
        task = asyncio.create_task(keeper.run())
        task.add_done_callback(self._ended)
        self._keepers[pod.name] = keeper, task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failure.done():
            self.failure.set_exception(error)

    async def _end(self, keepers: Sequence[PodKeeper], *, forget: bool = True) -> None:
        for component in reversed(START_ORDER):
            tier = [keeper for keeper in keepers if keeper.pod.component is component]
            for keeper in tier:
                keeper.stop()
            tasks = [self._keepers[keeper.pod.name][1] for keeper in tier]
            if tasks:
                await asyncio.wait(tasks)
        if forget:
            for keeper in keepers:
                del self._keepers[keeper.pod.name]

    async def _wait_for_dependencies(self, keeper: PodKeeper) -> None:
        """Returns when the dependencies of the pod are ready, or after `DEPENDENCY_WAIT_MAX_S`."""
        before = WAITS_FOR[keeper.pod.component]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEPENDENCY_WAIT_MAX_S):
                while awaited := self._awaited(keeper, before):
                    keeper.waits_for(awaited)
                    self._phase_changed.clear()
                    await self._phase_changed.wait()

    def _awaited(self, keeper: PodKeeper, before: Iterable[Component]) -> list[str]:
        return [
            other.pod.name
            for other, _ in self._keepers.values()
            if other.pod.group in (keeper.pod.group, keeper.pod.depends_on)
            and other.pod.component in before
            and other.record.phase is not PodPhase.READY
        ]

    def _changed(self, keeper: PodKeeper) -> None:
        self._phase_changed.set()
        self._write()
        if self._on_change is not None:
            self._on_change(keeper.record)

    def _write(self) -> None:
        records = [keeper.record for keeper, _ in self._keepers.values()]
        try:
            self._state.write_pods(
                PodsFile(
                    by=self._process, applied=self._applied, pods=records, changes=self._quorum_changes.lines
                )
            )
        except OSError as error:  # a full disk must not stop the pods
            log.warning("cannot write pods.json: %s", error)

    async def _housekeep(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            for name in self._keepers:
                for path in (self._state.log_path(name), self._state.admin_log_path(name)):
                    try:
                        rotate(path)
                    except OSError as error:
                        log.warning("cannot rotate %s: %s", path, error)


def _restarts_in_turn(pod: Pod, wanted: Mapping[str, Pod]) -> bool:
    """Whether the changed pod waits for its turn to restart."""
    after = wanted.get(pod.name)
    return after is not None and pod.restarts_in_turn and after.restarts_in_turn


def create_raft_volumes(pods: Iterable[Pod]) -> None:
    """Creates the volumes of all controllers, and of all brokers of DLedger groups, before the first one
    starts, so that the number of volumes on disk is the number of peers
    (`StateDirectory.controllers_with_data`, `peers_with_data`)."""
    for pod in pods:
        is_peer = pod.component is Component.CONTROLLER or any(port.name == "dledger" for port in pod.ports)
        for volume in pod.volumes if is_peer else ():
            try:
                make_directory(Path(volume.path))
            except OSError as error:  # the pod's keeper reports the same error
                log.warning("cannot create the volume %s: %s", volume.path, error)


def rotate(path: Path, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Rotates a log that is too long: copies it over the previous one and truncates it. Its writer appends,
    and so continues in the truncated file."""
    if not path.exists() or path.stat().st_size <= bytes_max:
        return
    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    with path.open("r+b") as file:
        file.truncate()


async def end_leftovers(state: StateDirectory) -> list[str]:
    """Ends pods that a dead supervisor left running, dependants first; returns their names. For the holder of
    the lock. Signals only processes that pods.json identifies and that still are the same."""
    known = state.pods()
    left = [
        record
        for record in (known.pods if known else [])
        if is_alive(record.process) or is_alive(record.sidecar)
    ]
    for component in reversed(START_ORDER):
        tier = [
            process
            for record in left
            if record.component is component
            for process in (record.process, record.sidecar)
            if process is not None
        ]
        for process in tier:
            send_signal(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S[component]
        while any(is_alive(process) for process in tier):
            late_s = time.monotonic() - deadline
            if late_s > KILL_WAIT_S:
                names = ", ".join(
                    record.pod for record in left if is_alive(record.process) or is_alive(record.sidecar)
                )
                raise StateError(f"{names} of an earlier run did not end, even after SIGKILL")
            if late_s > 0:
                for process in tier:
                    send_signal(process, signal.SIGKILL)
            await asyncio.sleep(_POLL_S)
    return [record.pod for record in left]
