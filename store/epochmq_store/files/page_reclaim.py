"""Tells whether the kernel may have removed pages of files from memory, by its counters of reclaims."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from epochmq_protocol.memory_limit import limiting_folders, memory_bytes, physical_bytes

_VMSTAT: Final = Path("/proc/vmstat")
_COUNTERS: Final = (b"pgsteal_", b"drop_pagecache ")
_GROUP_COUNTERS: Final = (b"pgsteal ",)


class PageReclaim:
    """Compares the counters of the machine and of this process's control group with those of the last call.
    Pages that a program removes by posix_fadvise are not counted."""

    def __init__(
        self, vmstat: Path = _VMSTAT, group: Path | None = None, *, is_limited: bool = False
    ) -> None:
        """`group`: the memory.stat of the control group. A group that `is_limited` reclaims pages of its own,
        so its counters are needed."""
        self._vmstat = vmstat
        self._group = group
        self._is_limited = is_limited
        self._last: tuple[bytes, bytes] | None = None

    def has_run(self) -> bool:
        """Whether pages may have been reclaimed since the last call; also true if that is unknown."""
        machine = _counters(self._vmstat, _COUNTERS)
        group = b"" if self._group is None else _counters(self._group, _GROUP_COUNTERS)
        last, self._last = self._last, (machine, group)
        return not machine or (self._is_limited and not group) or self._last != last


def _counters(path: Path, names: tuple[bytes, ...]) -> bytes:
    """The lines of these counters; nothing if the file cannot be read or has none."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return b""
    return b"\n".join(line for line in lines if line.startswith(names))


def own_page_reclaim() -> PageReclaim:
    """The counters that concern this process."""
    stats = (folder / "memory.stat" for folder in limiting_folders())
    group = next((path for path in stats if path.exists()), None)
    return PageReclaim(_VMSTAT, group, is_limited=memory_bytes() < physical_bytes())
