"""Runs `epochmq` as people type it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.process import PATIENCE_S

_PATIENT_VERBS = frozenset(
    (
        "acl", "bench", "broker", "cluster", "config", "controller", "dlq", "drain", "group", "message",
        "produce", "promote", "replica", "topic", "user",
    )
)  # fmt: skip
"""Verbs that have 5 s for a response unless the caller says otherwise: too few on a busy machine."""


def patience(arguments: Sequence[str]) -> list[str]:
    """The options for a verb that must not fail on a busy machine: a longer timeout, if it has none yet."""
    is_patient = bool(arguments) and arguments[0] in _PATIENT_VERBS and "--timeout" not in arguments
    return ["--timeout", "60"] if is_patient else []


class CommandFailedError(AssertionError):
    """The command ended with an exit code that was not expected; the message carries its output."""


class EpochmqCommand:
    """The command against one cluster. `home` is the home directory, so that no profile of the person who
    runs the tests counts."""

    def __init__(self, nameserver: str, home: Path, **environment: str) -> None:
        self.home = home
        self.environment = {**os.environ, "HOME": str(home), "EPOCHMQ_NAMESERVER": nameserver, "TZ": "UTC"}
        self.environment |= environment
        for name in ("XDG_CONFIG_HOME", "EPOCHMQ_CONFIG", "EPOCHMQ_PROFILE"):
            if name not in environment:
                self.environment.pop(name, None)

    def run(
        self, *arguments: str, stdin: bytes = b"", expected: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs the command to its end."""
        command = [sys.executable, "-m", "epochmq", *arguments]
        if expected == 0:
            command += patience(arguments)
        done = subprocess.run(
            command,
            check=False,
            input=stdin,
            capture_output=True,
            env=self.environment,
            cwd=self.home,
            timeout=2 * PATIENCE_S,
        )
        if done.returncode != expected or b"Traceback" in done.stderr:
            raise CommandFailedError(
                f"epochmq {' '.join(arguments)} ended with {done.returncode}, expected {expected}\n"
                f"{done.stdout.decode(errors='replace')}\n{done.stderr.decode(errors='replace')}"
            )
        return done

    def text(self, *arguments: str, stdin: bytes = b"") -> str:
        """The standard output."""
        return self.run(*arguments, stdin=stdin).stdout.decode()

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """The standard output in the format `json`."""
        return json.loads(self.text(*arguments, "-o", "json", "--timeout", "60", stdin=stdin))

    def failure(self, *arguments: str, expected: int = 1, stdin: bytes = b"") -> str:
        """What a command that fails prints: one message, on the standard error only."""
        done = self.run(*arguments, expected=expected, stdin=stdin)
        assert done.stdout == b"", "an error has no data"
        return done.stderr.decode()
