"""The command `epochmq`. What the pods run (`broker`, `controller`, `nameserver`, `admin`, `operator`) is
started from here directly, before anything of the interactive verbs is imported: a broker's memory holds no
terminal toolkit."""

from __future__ import annotations

import os
import signal
import sys

PROCESSES = ("broker", "controller", "nameserver", "admin", "admin-call", "operator", "supervise")


def main() -> None:
    """The entry point; never returns."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in PROCESSES:
        exit_on_sigterm()
        from epochmq.processes import run_process

        raise SystemExit(run_process(arguments[0], arguments[1:]))
    from epochmq.app import run

    raise SystemExit(run(arguments))


def exit_on_sigterm() -> None:
    """The first process of a container gets no signal that it has no handler for. Until the process that is
    to run has one of its own, which may take many seconds on a busy machine, SIGTERM ends it here."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
