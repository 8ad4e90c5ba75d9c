"""Implements `epochmq up` and `down` without a terminal: merges resources, starts a supervisor, waits, stops.

There is one supervisor per state directory. `up` becomes it (in the foreground), starts one (`--detach`), or
passes its resources to the running one. `down` ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from epochmq_operator.local.errors import NotReadyError, StateError
from epochmq_operator.local.process import is_alive, send_signal
from epochmq_operator.local.state_directory import LogKind, PodRecord, StateDirectory, digest_of
from epochmq_operator.local.supervisor import Supervisor, end_leftovers
from epochmq_operator.local.tasks import owned_task, wait_first
from epochmq_operator.pod_rendering import broker_pod_name
from epochmq_operator.resources import GroupResource, Resources, show_value
from epochmq_operator.status_model import PodPhase

READY_WAIT_S = 60.0
DOWN_WAIT_S = 90.0
"""Longer than all grace times of a supervisor together."""
FAILURES_MAX = 3
"""After this number of consecutive ends without having been ready, a start has failed."""
ONE_STOP_S = 1.0
"""Signals within this time are one wish to stop: `make`, for one, passes SIGTERM on to children that may have
got it already."""
LOG_TAIL_LINES = 15
_POLL_S = 0.05

RELOAD = signal.SIGUSR1
"""The signal that tells a supervisor that resources.json changed. SIGHUP means that the terminal is gone."""


@dataclass(frozen=True, slots=True)
class ResourceChanges:
    """The result of merging resources. `changes` has one line for each difference; empty: none."""

    merged: Resources
    changes: tuple[str, ...]


def merge_resources(running: Resources, wanted: Resources) -> ResourceChanges:
    """Merges the wanted resources into the running ones: a group replaces the running one of its name; other
    groups stay."""
    before = {(group.kind, group.name): group for group in running.documents}
    after = dict(before)
    changes: list[str] = []
    for group in wanted.documents:
        known = before.get((group.kind, group.name))
        after[group.kind, group.name] = group
        if known is None:
            changes.append(f"{group.name}: new")
        else:
            old, new = known.model_dump(by_alias=True), group.model_dump(by_alias=True)
            changes += [f"{group.name}: {line}" for line in differences(old, new)]
    return ResourceChanges(Resources.of(after.values()), tuple(changes))


PASSWORD_KEYS = frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
"""Keys of `spec.config` whose values contain passwords, which are not shown."""


def differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    """One line for every field that differs: its path, the old and the new value."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        was, now = old.get(key), new.get(key)
        where = f"{path}.{key}" if path else key
        if isinstance(was, dict) and isinstance(now, dict):
            lines += differences(was, now, where)
        elif key in PASSWORD_KEYS and was != now:
            lines.append(f"{where}: changed")
        elif key not in old:
            lines.append(f"{where}: {show_value(now)} (was not set)")
        elif key not in new:
            lines.append(f"{where}: not set (was {show_value(was)})")
        elif (type(was), was) != (type(now), now):  # 1 equals True, but differs in a configuration
            lines.append(f"{where}: {show_value(was)} → {show_value(now)}")
    return lines


def check_single_namespace(resources: Resources) -> None:
    """Checks that names are unique: the local runtime identifies pods by name alone. StateError if two groups
    of one name belong to two namespaces or are of two kinds."""
    seen: dict[str, GroupResource] = {}
    for group in resources.documents:
        other = seen.setdefault(group.name, group)
        namespaces = other.metadata.namespace, group.metadata.namespace
        if namespaces[0] != namespaces[1]:
            raise StateError(
                f"{group.name} exists in the namespaces {namespaces[0]} and {namespaces[1]}; on one machine "
                "run each namespace with a --state directory of its own"
            )
        if other.kind != group.kind:
            raise StateError(
                f"{group.name} is the name of a {other.kind} and of a {group.kind}; rename one of them"
            )


def check_controller_groups_exist(resources: Resources) -> None:
    """Checks that every ControllerGroup that a broker group names exists. StateError if not."""
    for group in resources.broker_groups:
        try:
            resources.controllers_of(group)
        except KeyError:
            raise StateError(
                f"BrokerGroup {group.name}: spec.controllerGroup: {show_value(group.spec.controller_group)}, "
                "expected the name of a ControllerGroup in these files, or of one that runs here"
            ) from None


def check_data_matches_mode(state: StateDirectory, resources: Resources) -> None:
    """Checks that data is used in the mode in which it was written. StateError if not: only the controllers,
    or the peers of a DLedger log, know which replicas have all of the data."""
    for group in resources.broker_groups:
        wanted = LogKind.CONTROLLED if group.controlled_by is not None else LogKind.PLAIN
        if group.is_dledger:
            wanted = LogKind.DLEDGER
        for kind, pod in state.brokers_with_data(group.name):
            if kind is wanted:
                continue
            field = "" if group.is_under_controllers else f"spec.mode: {group.spec.mode}: "
            if group.is_master_slave and kind is LogKind.CONTROLLED:
                field = "spec.mode: MasterSlave, expected Controller: "
            raise StateError(
                f"BrokerGroup {group.name}: {field}the data of {pod} under {state.path / 'volumes'} was "
                f"written {_misuse(kind, wanted)} (to start without "
                f"the data, run down and remove {broker_pod_name(group.name, '*')} there)"
            )


def _misuse(kind: LogKind, wanted: LogKind) -> str:
    """How data was written, and how it cannot be used."""
    if kind is LogKind.DLEDGER:
        return "in the mode DLedger and cannot be used in another mode"
    was, to_be = ("with", "without") if kind is LogKind.CONTROLLED else ("without", "with")
    if wanted is LogKind.DLEDGER:
        return f"{was} controllers and cannot be used as a DLedger log"
    return f"{was} controllers and cannot be used {to_be} them"


def detach(state: StateDirectory) -> None:
    """Starts a supervisor in a session of its own; returns when it runs the pods of resources.json. For `up`,
    while `applying`. StateError with the end of its log if it does not start."""
    command = [sys.executable, "-P", "-m", "epochmq", "supervise", "--state", str(state.absolute)]
    log = os.open(state.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    logged_before = os.fstat(log).st_size
    try:
        pid = os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(log)
    deadline = time.monotonic() + READY_WAIT_S
    while True:
        pods = state.pods()
        if pods is not None and pods.by.pid == pid and pods.applied == digest_of(state.resources()):
            return
        ended, _ = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            tail = _tail(state.supervisor_log, logged_before) or "its log is empty"
            raise StateError(f"the supervisor did not start: {tail}")
        time.sleep(_POLL_S)


def reload(state: StateDirectory) -> None:
    """Makes the running supervisor read resources.json; returns when it has. For `up`, while `applying`.
    StateError if it ends or does not react."""
    wanted = digest_of(state.resources())
    supervisor = state.supervisor()
    deadline = time.monotonic() + DOWN_WAIT_S
    if supervisor is None or not send_signal(supervisor, RELOAD):
        raise StateError("the supervisor has ended; run up again")
    while (pods := state.pods()) is None or (pods.by, pods.applied) != (supervisor, wanted):
        if not is_alive(supervisor):
            raise StateError(f"the supervisor ended; see {state.supervisor_log}")
        if time.monotonic() > deadline:
            raise StateError(f"the supervisor did not react within {DOWN_WAIT_S:.0f} s")
        time.sleep(_POLL_S)


def unready(records: Iterable[PodRecord]) -> list[PodRecord]:
    """The pods that are not ready, or still run with a former configuration; dependencies first."""
    return sorted(
        (record for record in records if record.phase is not PodPhase.READY or record.awaits_restart),
        key=lambda record: record.phase is PodPhase.WAITING,
    )


def has_failed(records: Iterable[PodRecord]) -> bool:
    """Whether a start has failed: a pod ends again and again before it is ready."""
    return any(record.failures >= FAILURES_MAX for record in records)


def wait_ready(state: StateDirectory, timeout_s: float = READY_WAIT_S) -> list[PodRecord]:
    """Waits until every pod is ready; returns their records. NotReadyError if a pod keeps failing, or after
    the timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        pods, supervisor = state.pods(), state.supervisor()
        records = pods.pods if pods and pods.by == supervisor else []
        changes = pods.changes if pods and pods.by == supervisor else []
        left = unready(records)
        if records and not left and not changes:
            return records
        if supervisor is None:
            raise NotReadyError(f"the supervisor ended; see {state.supervisor_log}")
        if has_failed(records):
            raise NotReadyError(explain(state, left, "does not come up"))
        if time.monotonic() > deadline:
            reason = explain(state, left, f"not ready after {timeout_s:.0f} s") if left else ""
            raise NotReadyError("\n".join([*changes, *([reason] if reason or not changes else [])]))
        time.sleep(_POLL_S)


def explain(state: StateDirectory, left: Sequence[PodRecord], what: str) -> str:
    """Explains why these pods are not ready: the phase, the reason, and the end of the log of each."""
    lines: list[str] = []
    for record in left:
        if record.awaits_restart and record.phase is PodPhase.READY:
            lines.append(
                f"{record.pod} ({record.address}) runs with its former configuration, until the other "
                "replicas are ready"
            )
            continue
        lines.append(
            f"{record.pod} ({record.address}) {what}: {record.phase}: {record.reason or 'no reason known'}"
        )
        path = state.log_path(record.pod)
        tail = _tail(path, record.log_offset) if record.phase is not PodPhase.WAITING else ""
        if tail:
            lines.append(f"  the end of {path}:")
            lines += [f"    {_readable(line)}" for line in tail.splitlines()]
    return "\n".join(lines) or f"{what}: there is no record of any pod; see {state.supervisor_log}"


def down(state: StateDirectory, say: Callable[[str], None]) -> bool:
    """Ends everything that runs in this state directory, dependants first. Returns False if nothing did.
    StateError if something does not end. Volumes stay."""
    if not state.exists():
        return False
    with state.applying():
        supervisor = state.supervisor()
        found = supervisor is not None
        if supervisor is not None:
            send_signal(supervisor, signal.SIGTERM)
            deadline = time.monotonic() + DOWN_WAIT_S
            while is_alive(supervisor) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if is_alive(supervisor):
                say("the supervisor did not end in time; killing it")
                send_signal(supervisor, signal.SIGKILL)
        pods = state.pods()
        for record in reversed(pods.pods if pods and pods.by == supervisor else []):
            if record.phase is PodPhase.STOPPED:
                say(f"{record.pod}: {record.phase} ({record.reason})")
        asyncio.run(_finish(state, say))
    return found


def down_group(state: StateDirectory, name: str) -> list[str]:
    """Ends the pods of one group and forgets the group; the other groups continue. Returns the names of the
    pods that ended; volumes stay. StateError if the group does not run, if other groups need it, or if it is
    the only one."""
    with state.applying():
        resources = state.resources()
        _check_may_end(resources, name)
        before = state.pods()
        ended = [record.pod for record in before.pods if record.group == name] if before else []
        state.write_resources(Resources.of(one for one in resources.documents if one.name != name))
        try:
            reload(state)
        except StateError:
            if state.supervisor() is not None:
                state.write_resources(resources)
            raise
        _wait_until_gone(state, name)
        return ended


def _wait_until_gone(state: StateDirectory, name: str) -> None:
    """Waits until the supervisor has ended the pods of this group. StateError if that takes too long."""
    deadline = time.monotonic() + DOWN_WAIT_S
    while (pods := state.pods()) is not None and (
        left := [record.pod for record in pods.pods if record.group == name]
    ):
        if state.supervisor() is None:
            raise StateError(f"the supervisor ended; see {state.supervisor_log}")
        if time.monotonic() > deadline:
            raise StateError(f"{', '.join(left)} did not end within {DOWN_WAIT_S:.0f} s; see epochmq status")
        time.sleep(_POLL_S)


def _check_may_end(resources: Resources, name: str) -> None:
    names = [group.name for group in resources.documents]
    if name not in names:
        raise StateError(f"group {name} does not run; running groups: {', '.join(names) or 'none'}")
    users = [group.name for group in resources.broker_groups if group.spec.controller_group == name]
    if users:
        raise StateError(
            f"{name} are the controllers of {', '.join(users)}; end these first: epochmq down {users[0]}"
        )
    if len(names) == 1:
        raise StateError(f"{name} is the only group of this run; to end the run: epochmq down")


async def _finish(state: StateDirectory, say: Callable[[str], None]) -> None:
    """Ends what a supervisor that was killed left running."""
    await state.lock.acquire()
    try:
        for name in await end_leftovers(state):
            say(f"stopped {name}, which an earlier supervisor had left running")
        state.write_resources(Resources())
    finally:
        state.lock.release()


async def supervise(
    supervisor: Supervisor, *, on_pass: Callable[[], None] | None = None, until: asyncio.Event | None = None
) -> None:
    """Runs a supervisor until SIGTERM, SIGINT or SIGHUP (or `until`), and then stops it. A signal more than
    `ONE_STOP_S` after the first one kills the pods. `on_pass` is called after each reconciliation."""
    loop = asyncio.get_running_loop()
    ending = until or asyncio.Event()
    reload_asked = asyncio.Event()
    asked_first: float | None = None

    def end() -> None:
        nonlocal asked_first
        if asked_first is None:
            asked_first = loop.time()
        elif loop.time() - asked_first > ONE_STOP_S:
            supervisor.kill()
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(RELOAD, reload_asked.set)
    await supervisor.start()
    try:
        reload_asked.set()
        while not ending.is_set():
            if reload_asked.is_set():
                reload_asked.clear()
                await supervisor.reconcile()
                if on_pass is not None:
                    on_pass()
            async with owned_task(ending.wait()) as end_asked, owned_task(reload_asked.wait()) as asked:
                await wait_first(end_asked, asked, supervisor.failure)
            if supervisor.failure.done():
                supervisor.failure.result()
    finally:
        ending.set()
        await supervisor.stop()


def _readable(line: str) -> str:
    """A line of a log. Of a line in JSON: its level, message and exception."""
    try:
        entry = msgspec.json.decode(line, type=_LogEntry)
    except msgspec.DecodeError:
        return line
    return f"{entry.level}: {entry.event}" + (f"\n{entry.exception}" if entry.exception else "")


class _LogEntry(msgspec.Struct):
    level: str
    event: str
    exception: str = ""


def _tail(path: Path, offset: int = 0) -> str:
    """The last lines of a log, not before `offset`."""
    try:
        with path.open("rb") as file:
            file.seek(max(offset, file.seek(0, os.SEEK_END) - 64 * 1024))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_TAIL_LINES:])
