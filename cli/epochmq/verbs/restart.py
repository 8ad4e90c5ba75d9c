"""Implements `epochmq restart`: restarts the brokers of a run on this machine, one at a time.

Before a broker restarts, all brokers of its group are ready and in sync. The master restarts last, after
another replica has become the master, so that no send fails. The supervisor starts the process again, with
its configuration as it is now."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from epochmq.exits import ExitCode, print_error
from epochmq.verbs.promote_fence_drain import running_directory
from epochmq_operator.local import replica_requests, status
from epochmq_operator.local.errors import NotReadyError, StateError
from epochmq_operator.local.process import ProcessIdentity, send_signal
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.named_replica import find_group, find_replica
from epochmq_operator.resources import GroupMode
from epochmq_operator.status_model import BrokerGroupStatus, ReplicaStatus, StatusReport

POLL_S: Final = 0.2


def run(state: Path, name: str | None, timeout_s: float) -> int:
    """Restarts the brokers that GROUP or GROUP/REPLICA names, None: of all groups. `timeout_s` limits each
    wait for one broker. StateError, NotReadyError or ReplicaControlError: the other brokers are left as they
    are."""
    directory = running_directory(state)
    if directory.supervisor() is None:
        raise StateError(f"the supervisor of {state} is gone, and starts nothing again: run up again first")
    asyncio.run(_Restarts(directory, timeout_s).run(name))
    return ExitCode.OK


def restart_order(replicas: Sequence[ReplicaStatus]) -> list[ReplicaStatus]:
    """The slaves, the highest ordinal first, then the master."""
    return sorted(replicas, key=lambda one: (one.role == "master", -int(one.pod.rpartition("-")[2])))


def successor_of(group: BrokerGroupStatus, pod: str) -> ReplicaStatus | None:
    """The replica that takes the mastership over while the master restarts; None if there is none."""
    if group.mode is GroupMode.MASTER_SLAVE:
        return None
    return next(
        (one for one in group.replicas if one.pod != pod and one.in_sync and one.ready and not one.drained),
        None,
    )


class _Restarts:
    def __init__(self, state: StateDirectory, timeout_s: float) -> None:
        self._state = state
        self._timeout_s = timeout_s

    async def run(self, name: str | None) -> None:
        """Restarts the brokers, one at a time."""
        report = await self._report()
        for group, chosen in _chosen(report, name):
            await self._whole(group)
            now = self._group(await self._report(), group)
            pods = {one.pod for one in chosen}
            for replica in restart_order([one for one in now.replicas if one.pod in pods]):
                await self._restart(group, replica.pod)

    async def _restart(self, group: str, pod: str) -> None:
        await self._whole(group)
        now = self._group(await self._report(), group)
        replica = next(one for one in now.replicas if one.pod == pod)
        if replica.role == "master":
            successor = successor_of(now, pod)
            if successor is not None:
                await replica_requests.promote(self._state, f"{group}/{successor.pod}", self._timeout_s)
            else:
                print_error(f"{pod}: sends fail until it is back, because no other replica can be the master")
        process = self._process(pod)
        if process is None or not send_signal(process, signal.SIGTERM):
            raise NotReadyError(f"{pod} has no process; see epochmq status")
        await self._until(lambda: self._process(pod) not in (None, process), f"{pod} starts again")
        await self._whole(group)
        again = self._process(pod)
        print(f"{pod}: restarted, pid {again.pid if again is not None else '-'}", flush=True)

    async def _whole(self, name: str) -> None:
        """Waits until every replica of the group is ready and in sync. NotReadyError after the timeout."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            group = self._group(await self._report(), name)
            left = [one for one in group.replicas if not one.ready or not (one.in_sync or one.drained)]
            if not left and any(one.role == "master" for one in group.replicas):
                return
            if time.monotonic() > deadline:
                why = "; ".join(f"{one.pod}: {one.reason or 'not in sync'}" for one in left) or "no master"
                raise NotReadyError(
                    f"{name} is not whole after {self._timeout_s:.0f} s ({why}); nothing more was restarted"
                )
            await asyncio.sleep(POLL_S)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise NotReadyError(f"not within {self._timeout_s:.0f} s: {what}; see epochmq status")
            await asyncio.sleep(POLL_S)

    async def _report(self) -> StatusReport:
        return status.report(self._state, await status.observe(self._state))

    def _group(self, report: StatusReport, name: str) -> BrokerGroupStatus:
        found = next((group for group in report.broker_groups if group.name == name), None)
        if found is None:
            raise StateError(f"broker group {name} does not run any more")
        return found

    def _process(self, pod: str) -> ProcessIdentity | None:
        known = self._state.pods()
        return next((one.process for one in known.pods if one.pod == pod), None) if known else None


def _chosen(report: StatusReport, name: str | None) -> list[tuple[str, list[ReplicaStatus]]]:
    """(group, its brokers to restart)."""
    if name is not None and "/" in name:
        group, replica = find_replica(report, name)
        return [(group.name, [replica])]
    groups = report.broker_groups if name is None else [find_group(report, name)]
    if not groups:
        raise StateError(f"no broker group runs in {report.state}")
    return [(group.name, group.replicas) for group in groups]
