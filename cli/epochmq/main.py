"""Starts the command `epochmq` with its arguments. The verbs in `PROCESSES` start without an import of the
other verbs, so that a broker does not load typer and rich, which print on terminals."""

from __future__ import annotations

import os
import signal
import sys

from epochmq.exits import open_standard_files

PROCESSES = ("broker", "controller", "nameserver", "admin", "admin-call", "operator", "supervise")
SHOWN = (["broker", "list"], ["broker", "describe"], ["controller", "list"])


def main() -> None:
    """The entry point; never returns."""
    open_standard_files()
    arguments = sys.argv[1:]
    if is_process(arguments):
        exit_on_sigterm()
        from epochmq.processes import run_process

        raise SystemExit(run_process(arguments[0], arguments[1:]))
    from epochmq.app import run

    raise SystemExit(run(arguments))


def is_process(arguments: list[str]) -> bool:
    """Whether the arguments start a process, or a call that a probe makes. `broker list`, `broker
    describe` and `controller list` do not."""
    return arguments[:1] != [] and arguments[0] in PROCESSES and arguments[:2] not in SHOWN


def exit_on_sigterm() -> None:
    """Exits on SIGTERM if this is process 1. The kernel does not deliver signals without a handler to process
    1 of a container, and on a busy machine it may take many seconds until the started program sets its own
    handler."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
