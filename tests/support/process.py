"""A child process of a test: started, waited for by a condition with a deadline, ended by its own id only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_S, POLL_MAX_S = 0.02, 0.2
"""The bounds of the pause between two evaluations of a condition, which is a tenth of the time waited. A
question to a process takes CPU time that other processes need."""
PATIENCE_S = 120
"""How long anything may take on a busy machine with a slow disk; what comes about takes far less."""


class ProcessFailedError(AssertionError):
    """A child process ended or did not become what was waited for; the message carries its last output."""


def _rest(deadline: float, timeout_s: float) -> None:
    """Pauses between two evaluations of a condition."""
    waited_s = time.monotonic() - (deadline - timeout_s)
    time.sleep(min(max(waited_s / 10, POLL_S), POLL_MAX_S))


def wait_until(condition: Callable[[], bool], *, timeout_s: float = PATIENCE_S, what: str) -> None:
    """Waits until the condition holds; after `timeout_s` the test fails and says what was waited for. An
    error of a process that does not respond counts as false: the condition is evaluated again."""
    deadline = time.monotonic() + timeout_s
    while True:
        silence: OSError | None = None
        try:
            if condition():
                return
        except OSError as error:
            silence = error
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}") from silence
        _rest(deadline, timeout_s)


def wait_holds(check: Callable[[], None], *, timeout_s: float = PATIENCE_S) -> None:
    """Waits until all that `check` asserts holds in one go; after `timeout_s` its last failure is the test's.
    For what must come about and stay, and which a busy machine may undo for a moment: a replica that was
    starved leaves the SyncStateSet, a master without its lease is not ready."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            check()
            return
        except (AssertionError, LookupError, ValueError, OSError):  # wrong, missing, or no response
            if time.monotonic() >= deadline:
                raise
        _rest(deadline, timeout_s)


_started: deque[ManagedProcess] = deque(maxlen=16)


def started() -> list[ManagedProcess]:
    """The newest processes that run or ended since the last call of `forget_ended`."""
    return list(_started)


def forget_ended() -> None:
    """Leaves the processes that ended out of `started`."""
    for process in started():
        if not process.alive:
            _started.remove(process)


class ManagedProcess:
    """One child process; what it writes goes to `directory`/stdout and is shown when something fails."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        directory: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.output_path = directory / "stdout"
        self._command = list(command)
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Id of the process started last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs; negative when a signal ended it."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Starts it in a session of its own, so that Ctrl-C reaches the tests and not it."""
        assert not self.alive, f"{self.name} runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.output_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )
        if self not in _started:
            _started.append(self)

    def wait_until(
        self, condition: Callable[[], bool], *, timeout_s: float = PATIENCE_S, what: str = "ready"
    ) -> None:
        """Waits for the condition, as the function of this name; fails early when the process ends."""

        def holds() -> bool:
            with contextlib.suppress(OSError):
                if condition():
                    return True
            if not self.alive:
                raise ProcessFailedError(f"it ended with {self.status}")
            return False

        try:
            wait_until(holds, timeout_s=timeout_s, what=f"{self.name} is {what}")
        except AssertionError as error:
            raise ProcessFailedError(f"{self.name}, to be {what}: {error}\n{self.output()}") from error

    def signal(self, number: int) -> None:
        """Sends a signal when it runs."""
        if self.alive:
            assert self._process is not None
            self._process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Waits for its end and returns the exit status."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.wait(timeout_s)

    def stop(self, *, timeout_s: float = PATIENCE_S) -> int | None:
        """Asks it to end (SIGTERM), kills it when it does not, and returns its exit status."""
        if self._process is None:
            return None
        self.signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode

    def kill(self) -> None:
        """Ends it at once (kill -9) and reaps it."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(PATIENCE_S)

    def output(self, characters: int = 4000) -> str:
        """The end of what it wrote."""
        if not self.output_path.exists():
            return ""
        return self.output_path.read_text(errors="replace").strip()[-characters:]

    def report(self, characters: int = 4000) -> str:
        """Its name, its exit status and the end of what it wrote, for the report of a failure."""
        return f"--- {self.name} (status {self.status})\n{self.output(characters)}"
