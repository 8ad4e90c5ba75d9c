"""Finds and removes what dead clusters left on this machine: folders and control groups. A running cluster
holds a lock on its folder until its last process ends. Whoever acquires the lock may remove the rest."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

CLUSTERS = Path("/var/lib/epochmq-testbed")
"""A short path, because paths of Unix sockets begin with it; on a disk, because it holds images."""
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
    """Removes this control group and those below it in every hierarchy. No process may be left in them."""
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
    """The lock of a cluster's folder as a file descriptor, which the cluster's processes inherit.
    BlockingIOError if a running cluster holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    finally:
        os.close(lock)


def runs(folder: Path) -> bool:
    """Whether the cluster of this folder runs, or is being started or removed."""
    if not (folder / LOCK).exists():
        return False
    try:
        with claimed(folder):
            return False
    except BlockingIOError:
        return True


def remove_dead() -> list[str]:
    """Removes what killed clusters left; returns their names."""
    removed = []
    for folder in sorted(CLUSTERS.glob("*")):
        with contextlib.suppress(BlockingIOError), claimed(folder):
            remove_cgroups(f"/epochmq-{folder.name}")
            remove_folder(folder)
            removed.append(folder.name)
    return removed
