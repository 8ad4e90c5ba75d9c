"""Makes disks full or slow, without special support in the kernel.

A full disk is a small file system in memory that is shrunk to what is on it, as if another program's file
filled the rest. A slow disk is a library under one process (`slow_disk.c`, LD_PRELOAD) that sleeps before
every call that changes or syncs a file: it needs no device, no FUSE daemon and no control group, slows that
process alone, and is switched by a store to a mapped file.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

SIZE_MB = 1024
_SHRINKS_MAX = 100
_SHIM = Path(__file__).with_name("slow_disk.c")


def missing() -> str | None:
    """What this machine lacks, or None."""
    if os.geteuid() != 0:
        return "root, to mount a small file system"
    return None if shutil.which("gcc") else "gcc, to compile what makes a disk slow"


class SmallDisk:
    """A file system of its own at `path`, for as long as it is mounted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "epochmq-chaos", str(path))

    def fill(self) -> None:
        """Leaves no free block, until `free`."""
        for _ in range(_SHRINKS_MAX):
            found = os.statvfs(self.path)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            try:
                self._resize(str(used))
            except OSError:
                continue  # a block was taken meanwhile
            return
        raise AssertionError(f"{self.path} grew whenever it was looked at")

    def free(self) -> None:
        """Gives the space back."""
        self._resize(f"{SIZE_MB}m")

    def _resize(self, size: str) -> None:
        _run("mount", "-o", f"remount,size={size}", str(self.path))

    def unmount(self) -> None:
        """Unmounts it; no process may use it any more."""
        _run("umount", str(self.path))


def compile_shim(folder: Path) -> Path:
    """Compiles the library that slows disks."""
    library = folder / "slow_disk.so"
    _run("gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(_SHIM), "-ldl")
    return library


class SlowDisk:
    """Controls the speed of one process's disk; `env` is the environment for the process."""

    def __init__(self, library: Path, control: Path) -> None:
        self._control = control
        control.parent.mkdir(parents=True, exist_ok=True)
        control.write_bytes(bytes(4))
        self.env = {"LD_PRELOAD": str(library), "SLOW_DISK": str(control)}

    def delay(self, ms: int) -> None:
        """Makes every change and every sync take so much longer; 0: full speed."""
        with self._control.open("r+b") as file:
            file.write(struct.pack("=I", ms * 1000))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
