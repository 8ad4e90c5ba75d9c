"""Starts operators by forking a process that has imported the operator, so that a test can start a hundred of
them: the imports take three seconds of a core, which other processes use, too."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

MODULE = "epochmq_operator.kube.main"
FAILED = 70


class ForkedOperator:
    """An operator that was forked. It has the methods of `subprocess.Popen` that tests of operators use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd: int | None = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kills it by SIGKILL."""
        if self._fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def poll(self) -> int | None:
        """None while it runs, else 0: its exit code is not known."""
        return 0 if self._fd is None or select.select([self._fd], [], [], 0)[0] else None

    def wait(self, timeout: float) -> int:
        """Waits for its end, for this time in seconds."""
        if self._fd is not None:
            if not select.select([self._fd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"operator {self.pid}", timeout)
            os.close(self._fd)
            self._fd = None
        return 0


class OperatorForks:
    """The process that forks operators. An operator that ended is a zombie until this process ends, so no
    other process gets its number meanwhile."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def start(self, config: Path, log: Path) -> ForkedOperator:
        """Starts an operator with this configuration file, which logs to this file."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(config), str(log)]) + "\n")
        self._server.stdin.flush()
        return ForkedOperator(int(self._server.stdout.readline()))

    def close(self) -> None:
        """Ends the process that forks. Operators that run are left alone."""
        with self._server:
            self._server.kill()


@contextlib.contextmanager
def operator_forks() -> Iterator[OperatorForks]:
    """A process that forks operators, for the length of a block."""
    forks = OperatorForks()
    try:
        yield forks
    finally:
        forks.close()


def _operate(config: str, log: str) -> int:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for fd, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    return int(importlib.import_module(MODULE).run(config, {}))


def main() -> None:
    """Forks an operator for each line of standard input, and prints its process id."""
    importlib.import_module(MODULE)
    for line in sys.stdin:
        config, log = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = FAILED
            try:
                code = _operate(config, log)
            except BaseException:  # for the log; the copy of this process must not go on
                traceback.print_exc()
            finally:
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
