"""Implements `epochmq down`: stops what `up` started in a state directory."""

from __future__ import annotations

from pathlib import Path

from epochmq.exits import ExitCode


def run(state: Path) -> int:
    """Stops all pods of the run. It is no error if none runs."""
    from epochmq_operator.local.runtime import down
    from epochmq_operator.local.state_directory import StateDirectory

    if down(StateDirectory(state), lambda text: print(text, flush=True)):
        print(f"stopped; the data stays under {state / 'volumes'}")
    else:
        print(f"nothing runs in {state}")
    return ExitCode.OK
