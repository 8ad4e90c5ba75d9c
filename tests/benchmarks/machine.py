"""Describes the machine, measures memory and CPU time of processes, and prepares memory and disk for
measurements."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

DIRTY_MAX_KB = 64 * 1024
SETTLE_TIMEOUT_S = 60
FREE_MAX_KB = 768 * 1024
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessMemory:
    """The resident memory of a process in MB: in total, and without pages of mapped files. The latter belong
    to the page cache and are released if memory is short."""

    rss_mb: float
    anonymous_mb: float


def describe_machine() -> dict[str, str | int | float]:
    """A description of the machine for the report."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 0,
        "memory_gb": round(_meminfo("MemTotal") / 1024 / 1024, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _meminfo(key: str) -> int:
    """A value of /proc/meminfo, in kB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise KeyError(key)


def memory(pid: int) -> ProcessMemory:
    """The present resident memory of a process."""
    values = {
        line.partition(":")[0]: line.split()[1]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith(("VmRSS", "RssAnon"))
    }
    return ProcessMemory(round(int(values["VmRSS"]) / 1024, 1), round(int(values["RssAnon"]) / 1024, 1))


def memory_dict(pid: int) -> dict[str, float]:
    """`memory` as plain data."""
    return asdict(memory(pid))


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far, with that of the children that it has waited for. Raises OSError."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / TICKS_PER_S


def busy_s() -> float:
    """The CPU time of the whole machine without idle time, in seconds."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = (int(f) for f in fields[:7])
    return (user + nice + system + irq + softirq) / TICKS_PER_S


class OccupiedMemory:
    """Fills free memory with the page cache of a file of zeros, so that every page that a broker gets was
    used before, as on a machine that has run for some time. The host of a virtual machine backs a page only
    at its first use, which may cost ten times as much as zeroing it: otherwise the first gigabytes of a run
    would be slower than later ones."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "zeros"
        self._position = 0

    def occupy(self) -> None:
        """Reads until nearly no memory is free, or until the end of a file as large as the memory."""
        size = _meminfo("MemTotal") * 1024
        with self._path.open("ab") as handle:
            handle.truncate(size)
        fd = os.open(self._path, os.O_RDONLY)
        try:
            while _meminfo("MemFree") > FREE_MAX_KB and self._position < size:
                for _ in range(64):
                    self._position += len(os.pread(fd, 1 << 20, self._position))
        finally:
            os.close(fd)
        if self._position >= size:
            self._position = 0  # the pages read first have been evicted

    def release(self) -> None:
        """Releases the memory."""
        self._path.unlink(missing_ok=True)


def flush_dirty_pages() -> None:
    """Flushes dirty pages, so that a measurement does not include writes of the one before."""
    os.sync()
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while _meminfo("Dirty") + _meminfo("Writeback") > DIRTY_MAX_KB and time.monotonic() < deadline:
        time.sleep(0.1)
