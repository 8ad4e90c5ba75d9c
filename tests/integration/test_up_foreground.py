"""`epochmq up` in the foreground: what it prints, the live table of a terminal, and its end by Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_operator.local.keeper import GRACE_S
from tests.integration.up_run import COMMAND, OneBrokerRun, alive, spoil, wait_healed
from tests.support.process import wait_until


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OneBrokerRun]:
    made = OneBrokerRun(tmp_path)
    yield made
    made.here("down")


@contextlib.contextmanager
def foreground(run: OneBrokerRun, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*COMMAND, "up", "-f", str(run.file), "--state", str(run.state)], **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(120)


@contextlib.contextmanager
def ready(run: OneBrokerRun) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A group in the foreground, and the file of what it prints."""
    path = run.directory / "output"
    with path.open("wb") as output, foreground(run, stdin=subprocess.DEVNULL, stdout=output) as process:
        wait_until(lambda: "Now type" in path.read_text(), what="what to type next")
        yield process, path


def test_ctrl_c_stops_brokers_first_and_then_the_nameserver(run: OneBrokerRun) -> None:
    with ready(run) as (process, path):
        assert process.poll() is None
        pids = run.pids()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert not any(alive(pid) for pid in pids)
    lines = path.read_text().splitlines()

    def line(start: str) -> int:
        return next(number for number, text in enumerate(lines) if text.startswith(start))

    assert line("orders-nameserver-0: Ready") < line("orders-broker-0: Starting")
    assert line("orders-broker-0: Stopped (exit status 0)") < line("orders-nameserver-0: Stopping")
    assert lines[-1] == f"stopped; the data stays under {run.state / 'volumes'}"


def test_two_signals_at_once_kill_no_pod(run: OneBrokerRun) -> None:
    with ready(run) as (process, path):
        for number in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        assert process.wait(120) == 0
    assert path.read_text().count("Stopped (exit status 0)") == 2


def test_a_repeated_signal_kills_pods_that_do_not_stop(run: OneBrokerRun) -> None:
    with ready(run) as (process, path):
        for pid in run.pids():
            os.kill(pid, signal.SIGSTOP)

        def ended() -> bool:
            process.send_signal(signal.SIGINT)
            return process.poll() is not None

        wait_until(ended, timeout_s=sum(GRACE_S.values()) / 2, what="the end of a group that is killed")
    assert path.read_text().count("Stopped (ended by SIGKILL)") == 2


class Terminal:
    """The other end of a pseudo terminal, and what was written to it."""

    def __init__(self) -> None:
        self.end, self.inner = pty.openpty()
        self.written = ""

    def read_until(self, condition: Callable[[str], bool], what: str, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition(self.written):
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}\n{self.written[-2000:]}"
            if select.select([self.end], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.written += os.read(self.end, 65536).decode(errors="replace")

    def type(self, text: bytes) -> None:
        os.write(self.end, text)

    def close(self) -> None:
        os.close(self.end)
        os.close(self.inner)


def test_a_terminal_shows_a_live_table_until_ctrl_c(run: OneBrokerRun) -> None:
    terminal = Terminal()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    try:
        inner = terminal.inner
        with foreground(
            run,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(inner, termios.TIOCSCTTY, 0),
        ) as process:
            terminal.read_until(lambda text: "Now type in a second terminal:" in text, "what to type next")
            pids = run.pids()
            for pid in pids:
                assert str(pid) in terminal.written
            os.kill(pids[1], signal.SIGKILL)
            terminal.read_until(lambda text: "BackOff" in text, "the death in the table")
            wait_healed(run, pids[1])
            terminal.type(b"\x03")
            terminal.read_until(lambda text: "stopped; the data stays" in text, "the end")
            assert process.wait(120) == 0
    finally:
        terminal.close()


def test_a_second_up_of_a_run_in_the_foreground_changes_nothing(run: OneBrokerRun) -> None:
    path = run.directory / "output"
    with path.open("wb") as output, foreground(run, stdin=subprocess.DEVNULL, stdout=output):
        wait_until(lambda: "Now type" in path.read_text(), what="what to type next")
        before = run.pids()
        assert "nothing changed" in run.up()
        assert run.pids() == before


def test_a_failed_start_in_the_foreground_ends_with_the_reason(run: OneBrokerRun) -> None:
    spoil(run)
    done = run.here("up", "-f", str(run.file))
    assert done.returncode == 1
    assert "orders-broker-0" in done.stderr
    assert "does not come up" in done.stderr
    assert run.here("status").returncode == 3
