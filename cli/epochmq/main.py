"""The command `epochmq`. What the pods run (`broker`, `controller`, `nameserver`, `admin`, `operator`) is
started from here directly, before anything of the interactive verbs is imported: a broker's memory holds no
terminal toolkit."""

from __future__ import annotations

import sys

PROCESSES = ("broker", "controller", "nameserver", "admin", "admin-call", "operator", "supervise")


def main() -> None:
    """The entry point; never returns."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in PROCESSES:
        from epochmq.processes import run_process

        raise SystemExit(run_process(arguments[0], arguments[1:]))
    from epochmq.app import run

    raise SystemExit(run(arguments))
