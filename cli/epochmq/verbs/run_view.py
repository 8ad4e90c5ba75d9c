"""Shows the pods while `epochmq up` runs: a live table in a terminal, otherwise a line for each change."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from epochmq.verbs.next_steps import nameservers_in, next_steps
from epochmq.verbs.pod_tables import pod_table, remoting_address, row_of_record
from epochmq_operator.local.readiness import Readiness
from epochmq_operator.local.state_directory import PodRecord, StateDirectory
from epochmq_operator.resources import Resources
from epochmq_operator.status_model import PodPhase

REDRAW_S = 0.25

Pods = Sequence[tuple[PodRecord, Readiness]]


class RunView(Protocol):
    """Shows a run. It is open for as long as the run lasts."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def changed(self, record: PodRecord) -> None:
        """Called after a change of a pod's record."""

    def draw(self, pods: Pods) -> None:
        """Called often, with the present records and readiness."""

    def ready(self) -> None:
        """Called once, when all pods are ready."""


def view_for(state: StateDirectory, wanted: Resources) -> RunView:
    """A live table if the output is a terminal, else a line printer."""
    console = Console()
    return LiveTable(console, state, wanted) if console.is_terminal else LinePrinter(state, wanted)


class LinePrinter:
    """Prints a line for each change of a pod's phase."""

    def __init__(self, state: StateDirectory, wanted: Resources) -> None:
        self._state = state
        self._wanted = wanted
        self._phases: dict[str, PodPhase] = {}
        self._pods: Pods = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def changed(self, record: PodRecord) -> None:
        """Prints the pod's new phase."""
        if self._phases.get(record.pod) is record.phase:
            return
        self._phases[record.pod] = record.phase
        pid = f", pid {record.process.pid}" if record.process else ""
        reason = f" ({record.reason})" if record.reason else ""
        self._print(f"{record.pod}: {record.phase}{reason}, {remoting_address(record)}{pid}")

    def draw(self, pods: Pods) -> None:
        """Stores the pods for `ready`."""
        self._pods = pods

    def ready(self) -> None:
        """Prints the next commands."""
        self._print(_steps(self._state, self._wanted, self._pods))

    def _print(self, text: str) -> None:
        # Pods continue to run if the reader of the output is gone.
        with contextlib.suppress(OSError):
            print(text, flush=True)


class LiveTable:
    """A table that is redrawn in place, with the next commands below it when all pods are ready."""

    def __init__(self, console: Console, state: StateDirectory, wanted: Resources) -> None:
        self._state = state
        self._wanted = wanted
        self._pods: Pods = ()
        self._steps = ""
        self._drawn_at = 0.0
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps = ""
        self._redraw()
        with contextlib.suppress(OSError):
            self._live.__exit__(kind, error, trace)

    def changed(self, record: PodRecord) -> None:
        """Redraws at once, because some phases are short."""
        self._drawn_at = time.monotonic()
        self._redraw()

    def draw(self, pods: Pods) -> None:
        """Redraws at most every 0.25 s."""
        self._pods = pods
        if time.monotonic() - self._drawn_at >= REDRAW_S:
            self._drawn_at = time.monotonic()
            self._redraw()

    def ready(self) -> None:
        """Adds the next commands below the table."""
        self._steps = _steps(self._state, self._wanted, self._pods)
        self._drawn_at = 0.0

    def _redraw(self) -> None:
        rows = [row_of_record(record, readiness) for record, readiness in self._pods]
        below = [Text(""), Text(self._steps)] if self._steps else []
        # If the terminal is gone, the pods must still be stopped in order.
        with contextlib.suppress(OSError):
            self._live.update(Group(pod_table(rows, self._live.console.width), *below), refresh=True)


def _steps(state: StateDirectory, wanted: Resources, pods: Pods) -> str:
    """The next commands, for the pods that run."""
    nameservers = nameservers_in([record for record, _ in pods], wanted)
    return next_steps(state.path, wanted, nameservers, detached=False)
