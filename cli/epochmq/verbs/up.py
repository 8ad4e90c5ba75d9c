"""Implements `epochmq up` and `down`: runs resources on this machine, by its own supervisor or the one that
runs, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path

from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.config_check import check_config
from epochmq.verbs.next_steps import nameservers_in, next_steps
from epochmq.verbs.pod_tables import remoting_address
from epochmq.verbs.run_view import RunView, view_for
from epochmq_operator.local import runtime
from epochmq_operator.local.state_directory import PodRecord, RunOptions, StateDirectory
from epochmq_operator.local.supervisor import Supervisor
from epochmq_operator.local.tasks import owned_task
from epochmq_operator.resources import ResourceError, Resources, load_resources

WATCH_S = 0.1
FILE_BYTES_MAX = 16 * 1024 * 1024


def run(files: list[Path], state: Path, *, detach: bool, timeout_s: float, admin: bool = False) -> int:
    """Runs the resources, or passes them to the supervisor that already runs."""
    resources = _load(files)
    runtime.check_single_namespace(resources)
    check_config(resources)
    directory = StateDirectory(state)
    directory.create()
    with contextlib.ExitStack() as applying:
        applying.enter_context(directory.applying())
        changes = runtime.merge_resources(directory.resources(), resources)
        runtime.check_single_namespace(changes.merged)
        runtime.check_controller_groups_exist(changes.merged)
        runtime.check_data_matches_mode(directory, changes.merged)
        if directory.supervisor() is not None:
            if admin and not directory.options().admin:
                raise UsageError(f"the run in {state} was started without --admin; run down first")
            return _apply_to_supervisor(directory, changes, applying, timeout_s)
        directory.write_options(RunOptions(admin=admin))
        directory.write_resources(changes.merged)
        if not detach:
            return _run_in_foreground(directory, resources, applying, timeout_s)
        return _run_detached(directory, resources, applying, timeout_s)


def validate(files: list[Path]) -> int:
    """Implements `epochmq validate`: checks resources as `up` does, and runs nothing."""
    resources = _load(files)
    runtime.check_single_namespace(resources)
    check_config(resources)
    for group in resources.documents:
        print(f"{group.kind} {group.name}: valid")
    return ExitCode.OK


def plan(files: list[Path], state: Path) -> int:
    """Implements `epochmq up --dry-run`: prints what `up` would change, and changes nothing."""
    resources = _load(files)
    runtime.check_single_namespace(resources)
    check_config(resources)
    directory = StateDirectory(state)
    running = directory.resources() if directory.exists() else Resources()
    changes = runtime.merge_resources(running, resources)
    runtime.check_single_namespace(changes.merged)
    runtime.check_controller_groups_exist(changes.merged)
    if directory.exists():
        runtime.check_data_matches_mode(directory, changes.merged)
    print("\n".join(changes.changes) or "nothing would change")
    return ExitCode.OK


def stop(state: Path) -> int:
    """Implements `epochmq down`: stops all pods of the run. It is no error if none runs."""
    if runtime.down(StateDirectory(state), lambda text: print(text, flush=True)):
        print(f"stopped; the data stays under {state / 'volumes'}")
    else:
        print(f"nothing runs in {state}")
    return ExitCode.OK


def stop_group(state: Path, name: str) -> int:
    """Implements `epochmq down GROUP`: stops the pods of one group."""
    directory = StateDirectory(state)
    if not directory.exists() or directory.supervisor() is None:
        raise UsageError(f"nothing runs in {state}; start something with: epochmq up -f FILE")
    for pod in runtime.down_group(directory, name):
        print(f"{pod}: stopped")
    print(f"stopped {name}; the other groups run, and its data stays under {state / 'volumes'}")
    return ExitCode.OK


def _read(path: Path) -> str:
    """A file, or the standard input. Raises UsageError for one that has no end."""
    if str(path) == "-":
        content = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
    else:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise UsageError(f"{path}: more than {FILE_BYTES_MAX} bytes, expected a file with resources")
    return content.decode()


def _load(files: list[Path]) -> Resources:
    texts: list[tuple[str, str]] = []
    for path in files:
        try:
            text = _read(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UsageError(f"{path} cannot be read: {reason}") from None
        texts.append(("the input" if str(path) == "-" else str(path), text))
    try:
        found = load_resources(texts)
    except ResourceError as error:
        raise UsageError("these resources cannot be run:\n" + str(error)) from None
    _reject_restores(found)
    return found


def _reject_restores(resources: Resources) -> None:
    """Only the operator restores groups; a group that starts empty instead would be taken for a restored
    one."""
    for group in resources.broker_groups:
        if group.spec.restore_from is None:
            continue
        raise UsageError(
            f"BrokerGroup {group.name}: spec.restoreFrom: it is for Kubernetes; remove it, and restore the "
            "stores before the first start: epochmq restore URL --to DIR/volumes/"
            f"{group.name}-broker-0/store --to …"
        )


def _apply_to_supervisor(
    directory: StateDirectory,
    changes: runtime.ResourceChanges,
    applying: contextlib.ExitStack,
    timeout_s: float,
) -> int:
    if changes.changes:
        print("\n".join(changes.changes))
        directory.write_resources(changes.merged)
        runtime.reload(directory)
    else:
        print("nothing changed")
    applying.close()
    records = runtime.wait_ready(directory, timeout_s)
    _print_ready(directory, records)
    return ExitCode.OK


def _run_detached(
    directory: StateDirectory, wanted: Resources, applying: contextlib.ExitStack, timeout_s: float
) -> int:
    try:
        runtime.detach(directory)
        applying.close()
        records = runtime.wait_ready(directory, timeout_s)
    except BaseException:
        applying.close()
        runtime.down(directory, lambda text: None)
        raise
    _print_ready(directory, records)
    print(next_steps(directory.path, wanted, nameservers_in(records, wanted), detached=True))
    return ExitCode.OK


def _print_ready(directory: StateDirectory, records: list[PodRecord]) -> None:
    for record in records:
        pid = record.process.pid if record.process else "-"
        print(f"{record.pod}: {record.phase} at {remoting_address(record)}, pid {pid}")


def _run_in_foreground(
    directory: StateDirectory, wanted: Resources, applying: contextlib.ExitStack, timeout_s: float
) -> int:
    view = view_for(directory, wanted)
    try:
        failure = asyncio.run(_supervise(directory, view, applying, timeout_s))
    except BaseException:
        directory.write_resources(Resources())
        raise
    if failure:
        print_error(failure)
        return ExitCode.FAILED
    print(f"stopped; the data stays under {directory.path / 'volumes'}")
    return ExitCode.OK


async def _supervise(
    directory: StateDirectory, view: RunView, applying: contextlib.ExitStack, timeout_s: float
) -> str:
    """Supervises until SIGTERM, Ctrl-C or a failed start. Returns the reason of a failed start, else an empty
    string."""
    supervisor = Supervisor(directory, on_change=view.changed)
    stopping = asyncio.Event()
    failure = ""
    deadline = time.monotonic() + timeout_s

    async def watch() -> None:
        """Redraws the view, and ends a start that fails."""
        nonlocal failure
        started = False
        while True:
            view.draw(supervisor.pods())
            records = [record for record, _ in supervisor.pods()]
            left = runtime.unready(records)
            if not started and not stopping.is_set() and records:
                if not left:
                    started = True
                    view.ready()
                elif runtime.has_failed(records):
                    failure = runtime.explain(directory, left, "does not come up")
                elif time.monotonic() > deadline:
                    failure = runtime.explain(directory, left, f"not ready after {timeout_s:.0f} s")
                if failure:
                    stopping.set()
            await asyncio.sleep(WATCH_S)

    with view:
        async with owned_task(watch()) as watching:
            await runtime.supervise(supervisor, on_pass=applying.close, until=stopping)
            if watching.done():
                watching.result()
        view.draw(supervisor.pods())
    return failure
