"""What the numbers depend on: facts of the machine, memory and CPU time of processes, a quiet disk."""

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
    """Resident memory of a process in MB: all of it, and without pages of mapped files (which are the page
    cache's, shared and given back when memory is short)."""

    rss_mb: float
    anonymous_mb: float


def facts() -> dict[str, str | int | float]:
    """The machine as a table for the report."""
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
    """A value of /proc/meminfo in kB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise KeyError(key)


def memory(pid: int) -> ProcessMemory:
    """Resident memory of a process now."""
    values = {
        line.partition(":")[0]: line.split()[1]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith(("VmRSS", "RssAnon"))
    }
    return ProcessMemory(round(int(values["VmRSS"]) / 1024, 1), round(int(values["RssAnon"]) / 1024, 1))


def memory_dict(pid: int) -> dict[str, float]:
    """`memory` as plain data."""
    return asdict(memory(pid))


def busy_s() -> float:
    """CPU time the whole machine has spent on anything but idling, in seconds."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = (int(f) for f in fields[:7])
    return (user + nice + system + irq + softirq) / TICKS_PER_S


class OccupiedMemory:
    """Keeps free memory filled with the page cache of a file of zeros, so that every page a broker gets
    is one that was used before, as on a machine that has run for a while. A virtual machine's host
    backs untouched memory only at its first use, which may cost ten times what zeroing a page does;
    without this the first gigabytes of a run are slow and the later ones are not."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "zeros"
        self._position = 0

    def occupy(self) -> None:
        """Reads until hardly anything is free, or memory that is in use does not allow more."""
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
            self._position = 0  # from here on what was read first is gone again

    def release(self) -> None:
        """Gives the memory back."""
        self._path.unlink(missing_ok=True)


def settle() -> None:
    """Writes dirty pages out, so that no measurement pays for the one before."""
    os.sync()
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while _meminfo("Dirty") + _meminfo("Writeback") > DIRTY_MAX_KB and time.monotonic() < deadline:
        time.sleep(0.1)
