"""Where clusters lie on this machine, and what a cluster that is gone leaves there: its folder and its
control groups. A running cluster holds a lock on its folder, which ends with its last process; so whoever
gets the lock may remove the rest, and nobody else's."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

CLUSTERS = Path("/var/lib/epochmq-testbed")
"""Short, because paths of Unix sockets begin with it, and on a disk, because images lie in it."""
LOCK = "lock"
CGROUPS = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """The roots of this machine's control groups: one for each controller, or one for all."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [
        path
        for path in sorted(CGROUPS.iterdir())
        if (path / "cgroup.procs").exists() and not path.is_symlink()
    ]


def remove_cgroups(name: str) -> None:
    """Removes this control group and those in it, in every hierarchy; no process may be left in them."""
    for hierarchy in hierarchies():
        top = hierarchy / name.strip("/")
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def remove_folder(folder: Path) -> None:
    """Removes a cluster's folder."""
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[int]:
    """The lock of a cluster's folder as a file descriptor, to be handed to the processes that shall hold it.
    BlockingIOError when a running cluster has it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    finally:
        os.close(lock)


def runs(folder: Path) -> bool:
    """Whether the cluster of this folder runs, or is just being started or removed."""
    if not (folder / LOCK).exists():
        return False
    try:
        with claimed(folder):
            return False
    except BlockingIOError:
        return True


def remove_dead() -> list[str]:
    """Removes what clusters that were killed have left; their names."""
    removed = []
    for folder in sorted(CLUSTERS.glob("*")):
        with contextlib.suppress(BlockingIOError), claimed(folder):
            remove_cgroups(f"/epochmq-{folder.name}")
            remove_folder(folder)
            removed.append(folder.name)
    return removed
