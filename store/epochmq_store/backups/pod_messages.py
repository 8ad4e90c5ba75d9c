"""What the programs in the pods of backups and restores have in common: their order from a file, their
termination message, their progress on standard error, and their end."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from epochmq_protocol.errors import EpochMQError
from epochmq_store.backups.backup_errors import BackupError

MESSAGE = Path("/dev/termination-log")
MESSAGE_LENGTH_MAX = 1000
LOOK_EVERY_S = 0.1
REPORT_EVERY_S = 5.0
TERMINATED = 128 + signal.SIGTERM


def run_task(task: Callable[[], Mapping[str, Any]], message: Path) -> int:
    """Runs the task and writes its result as the termination message. The exit code: 0, or 1 if it raises
    EpochMQError or OSError, which become the message `{"error"}`."""
    try:
        found = task()
    except (EpochMQError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        _write_message(message, {"error": str(error)[:MESSAGE_LENGTH_MAX]})
        return 1
    _write_message(message, found)
    return 0


def awaited_text(path: Path, wait_s: float, is_valid: Callable[[str], bool], name: str, expected: str) -> str:
    """The text of a file, which is missing or empty until it is known. `name` and `expected` are for errors.
    Raises BackupError for another text, and after `wait_s`."""
    until = time.monotonic() + wait_s
    while True:
        try:
            text = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            text = ""
        if is_valid(text):
            return text
        if text:
            raise BackupError(f"{path}: {text[:100]!r}, expected {expected}")
        if time.monotonic() >= until:
            raise BackupError(f"{path} had no {name} for {wait_s:.0f} s: is the operator running?")
        time.sleep(LOOK_EVERY_S)


def _write_message(path: Path, message: Mapping[str, Any]) -> None:
    """Writes the termination message. A failure is only printed."""
    try:
        path.write_text(json.dumps(message, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        print(f"cannot write the termination message: {error}", file=sys.stderr, flush=True)


def progress_reporter() -> Callable[[str], None]:
    """Prints what a long task does, now and then."""
    last = time.monotonic()

    def report(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_EVERY_S:
            last = time.monotonic()
            print(f"{text} …", file=sys.stderr, flush=True)

    return report


def exit_when_terminated() -> None:
    """SIGTERM ends the process, also as process 1, for which it has no default."""
    signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)
