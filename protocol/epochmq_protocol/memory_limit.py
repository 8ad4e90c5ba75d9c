"""Reads how much memory this process may use: the limit of its control groups (v1 or v2), or the machine's
memory."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path
from typing import Final

_MOUNT: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


@cache
def memory_bytes() -> int:
    """The memory in bytes that this process may use, its page cache included. Read once per process."""
    return read_memory_bytes(_MEMBERSHIP, _MOUNT, physical_bytes())


def physical_bytes() -> int:
    """The physical memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_memory_bytes(membership: Path, mount: Path, physical: int) -> int:
    """Returns the smallest limit of the control group named in `membership` (/proc/self/cgroup) and of its
    ancestors visible below `mount`; `physical` if no limit is smaller. In a container the group's path may be
    the host's; then the files at `mount` itself are those of the container's group."""
    limits = [physical]
    for folder, file in _limit_files(membership, mount):
        limits += _limits(mount, folder, file)
    return min(limits)


def limiting_folders() -> list[Path]:
    """The folders of the control groups that limit this process's memory. In a container the first ones may
    be missing."""
    return [folder for folder, _ in _limit_files(_MEMBERSHIP, _MOUNT)] + [_MOUNT]


def _limit_files(membership: Path, mount: Path) -> list[tuple[Path, str]]:
    """The folders of the control groups that limit memory, and the name of the file with the limit."""
    files = []
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                files.append((mount / path.lstrip("/"), "memory.max"))
            elif "memory" in controllers.split(","):
                files.append((mount / "memory" / path.lstrip("/"), "memory.limit_in_bytes"))
    return files or [(mount, "memory.max"), (mount / "memory", "memory.limit_in_bytes")]


def _limits(mount: Path, folder: Path, file: str) -> list[int]:
    limits = []
    for group in (folder, *folder.parents):
        if mount not in (group, *group.parents):
            break
        with contextlib.suppress(OSError, ValueError):
            limits.append(int((group / file).read_text()))  # "max" means no limit
    return [limit for limit in limits if limit > 0]
