"""Shows how far the pass over all files is: share, rate and remaining time, from the tasks that Spark has
completed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S: Final = 1.0
LINE_EVERY_S: Final = 30.0  # if the output is no terminal
JOIN_MAX_S: Final = 10.0


def progress_line(done: int, total: int, total_bytes: int, seconds: float) -> str:
    """The line for `done` of `total` tasks, which read `total_bytes` in about equal shares, after so many
    seconds."""
    share = done / total if total else 0.0
    rate = share * total_bytes / seconds if seconds > 0 else 0.0
    text = f"audit: {share:4.0%} of {_size(total_bytes)}, {done} of {total} tasks, {_size(rate)}/s"
    return text if rate <= 0 else text + f", {_duration((1 - share) * total_bytes / rate)} remain"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "KB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


class ProgressWriter:
    """Writes progress lines: on a terminal one that is overwritten, else one every 30 s."""

    def __init__(self, output: TextIO, total_bytes: int, started: float) -> None:
        self._output, self._total_bytes = output, total_bytes
        self._started = self._written = started
        self._on_terminal = output.isatty()
        self._is_open = False

    def update(self, done: int, total: int, now: float) -> None:
        """Takes the number of completed tasks at the time `now`, in seconds."""
        if not total or (not self._on_terminal and now - self._written < LINE_EVERY_S):
            return
        self._written = now
        line = progress_line(done, total, self._total_bytes, now - self._started)
        self._output.write(f"\r\x1b[K{line}" if self._on_terminal else f"{line}\n")
        self._output.flush()
        self._is_open = self._on_terminal

    def close(self) -> None:
        """Ends a line on a terminal."""
        if self._is_open:
            self._output.write("\n")
            self._output.flush()


@contextmanager
def scan_progress(spark: SparkSession, total_bytes: int, output: TextIO | None = None) -> Iterator[None]:
    """Shows the progress of the jobs that run inside the block. Nothing is shown if Spark shows its own
    progress bar."""
    if spark.conf.get("spark.ui.showConsoleProgress", "false") == "true":
        yield
        return
    writer = ProgressWriter(output or sys.stderr, total_bytes, time.monotonic())
    stop = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def poll() -> None:
        while not stop.wait(POLL_S):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            # The pass is the stage with the most tasks; stages that combine its rows follow it.
            largest = max((one for one in stages if one), key=lambda one: one.numTasks, default=None)
            if largest is not None:
                writer.update(largest.numCompletedTasks, largest.numTasks, time.monotonic())

    thread = threading.Thread(target=poll, name="audit progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(JOIN_MAX_S)
        writer.close()
