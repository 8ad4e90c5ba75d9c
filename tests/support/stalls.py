"""Repeats tests that fail while the machine stalls. On a busy machine, or one with a slow disk, every process
may pause. A test of what must happen without a pause is therefore repeated, a few times at most, if the
machine stalled while it failed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

STALL_S = 0.1
LOOK_S = 0.02
ATTEMPTS = 4


class Stalls:
    """Measures how long a short sleep and a small synced write take; `longest_s` is the longest excess."""

    def __init__(self, folder: Path) -> None:
        self.longest_s = 0.0
        self._path = folder / "stalls"
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, name="stalls")

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _look(self) -> None:
        with self._path.open("wb") as file:
            while not self._ending.is_set():
                began = time.monotonic()
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())
                time.sleep(LOOK_S)
                self.longest_s = max(self.longest_s, time.monotonic() - began - LOOK_S)


def unless_stalled(folder: Path, attempt: Callable[[int], None]) -> None:
    """Calls it with 0, and with the next number again when it failed while the machine stalled."""
    for number in range(ATTEMPTS):
        with Stalls(folder) as stalls:
            try:
                attempt(number)
                return
            except AssertionError as error:
                if stalls.longest_s < STALL_S or number == ATTEMPTS - 1:
                    error.add_note(f"attempt {number + 1}; the longest stall took {stalls.longest_s:.3f} s")
                    raise
