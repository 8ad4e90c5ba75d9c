"""What the programs in the pods of backups and restores have in common: their termination message, their
progress on standard error, and their end."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

MESSAGE = Path("/dev/termination-log")
REPORT_EVERY_S = 5.0
TERMINATED = 128 + signal.SIGTERM


def write_message(path: Path, message: Mapping[str, Any]) -> None:
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
