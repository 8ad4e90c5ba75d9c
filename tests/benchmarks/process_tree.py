"""Measures the peak memory of the descendants of this process."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from tests.benchmarks.machine import memory

PERIOD_S: Final = 0.2


def spark_role(pid: int) -> str | None:
    """The role of a process of Spark: `driver` or `executor`, and `JVM` or `Python`; None for others.
    Executors have processes of their own, as in `local-cluster`. The driver's Python is one that
    `multiprocessing` has spawned. Raises OSError."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    if "org.apache.spark" in command:
        return "executor JVM" if "CoarseGrainedExecutorBackend" in command else "driver JVM"
    if "pyspark.daemon" in command or "pyspark.worker" in command:
        return "executor Python"
    return "driver Python" if "multiprocessing.spawn" in command else None


class ProcessTreeMemory:
    """A context manager that samples all descendants of this process five times a second. `peaks_mb` is the
    peak memory of all processes of one role together, without page cache."""

    def __init__(self, role: Callable[[int], str | None] = spark_role) -> None:
        self._role = role
        self.peaks_mb: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(PERIOD_S):
            sums: dict[str, float] = defaultdict(float)
            for pid in descendants(os.getpid()):
                try:
                    if (role := self._role(pid)) is not None:
                        sums[role] += memory(pid).anonymous_mb
                except (OSError, KeyError):
                    continue  # the process has ended
            for role, value in sums.items():
                self.peaks_mb[role] = round(max(self.peaks_mb.get(role, 0.0), value), 1)


def descendants(pid: int) -> list[int]:
    """The ids of all descendants of a process."""
    found: list[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(one) for one in path.read_text().split()]
            except OSError:
                continue
            found += children
            todo += children
    return found
