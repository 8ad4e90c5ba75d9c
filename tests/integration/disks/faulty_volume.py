"""Mounts file systems that fail on command, by `faulty.c`, a FUSE file system that passes every call through
to a directory."""

from __future__ import annotations

import enum
import errno
import mmap
import os
import shlex
import signal
import struct
import subprocess
from pathlib import Path

from tests.integration.disks.run_directory import command, missing_programs, run
from tests.support.process import ManagedProcess

SOURCE = Path(__file__).with_name("faulty.c")
_NUMBERS = struct.Struct("=IIIIqqqII")
_FAULTS = struct.Struct("=IIIIqqqI")
_MATCH = struct.Struct("256s")
_FORGET_AT, _AFFECTED_AT = _NUMBERS.size - 8, _NUMBERS.size - 4
_PROGRAMS = {
    "gcc": "gcc",
    "pkg-config": "pkg-config",
    "mount": "util-linux",
    "setpriv": "util-linux",
    "fusermount3": "fuse3",
}
WITHOUT_LIMIT = -1
END = (1 << 63) - 1


class FaultyCall(enum.IntFlag):
    """The calls of a file system that can fail."""

    NONE = 0
    READ = 1
    WRITE = 2
    SYNC = 4
    ALLOCATE = 8
    """fallocate and truncate"""
    OPEN = 16
    """open and create"""
    NAMES = 32
    """rename, unlink, mkdir and link"""


def missing() -> str | None:
    """The missing requirement of a FUSE file system on this machine, or None."""
    found = missing_programs(_PROGRAMS)
    if found is not None:
        return found
    if not Path("/dev/fuse").exists():
        return "/dev/fuse"
    library = subprocess.run(["pkg-config", "--exists", "fuse3"], check=False).returncode == 0
    return None if library else "libfuse3's headers (libfuse3-dev)"


def compile_program(folder: Path) -> Path:
    """Compiles the program that serves such a file system, and returns its path."""
    program = folder / "faulty"
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "fuse3"))
    run("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(SOURCE), *flags)
    return program


class FaultyVolume:
    """A file system at `mount_point` that shows `directory`, and whose calls can be made to fail. Its files
    are in `run_directory`, whose path is the source of the mount in the mount table."""

    def __init__(self, program: Path, run_directory: Path, directory: Path, mount_point: Path) -> None:
        name = directory.name
        directory.mkdir(parents=True, exist_ok=True)
        mount_point.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.mount_point = mount_point
        control = run_directory / f"{name}.control"
        control.write_bytes(bytes(_NUMBERS.size + _MATCH.size))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _NUMBERS.size + _MATCH.size)
        self.heal()
        arguments = [str(program), str(directory), str(control), str(run_directory / name), str(mount_point)]
        self._process = ManagedProcess(
            command(arguments), name=f"faulty {name}", directory=run_directory / f"{name}.daemon"
        )
        self._process.start()
        self._process.wait_until(mount_point.is_mount, what="mounted")

    def close(self) -> None:
        """Unmounts the file system, which no process uses."""
        self._process.signal(signal.SIGTERM)
        self._process.wait()
        self._control.close()

    # Faults -------------------------------------------------------------------------------------------------

    def fail(
        self,
        calls: FaultyCall = FaultyCall.NONE,
        *,
        error: int = errno.EIO,
        match: str = "",
        sync_s: float = 0.0,
        write_max: int = 0,
        room: int = WITHOUT_LIMIT,
        read: tuple[int, int] = (0, END),
    ) -> None:
        """Sets the faults, until the next `fail` or `heal`, of all paths below the mount point that contain
        `match`. The `calls` fail with `error`. Each sync takes `sync_s` seconds longer. A write takes at most
        `write_max` bytes, except when the kernel writes back pages. Files may grow by `room` bytes in total,
        then calls fail with ENOSPC. Reads fail only if they touch the bytes of `read`."""
        _MATCH.pack_into(self._control, _NUMBERS.size, os.fsencode(match))
        numbers = (int(sync_s * 1e6), write_max, room, *read, 0)
        _FAULTS.pack_into(self._control, 0, 0, error, *numbers)
        # Last, so that no call fails before the other values are set.
        struct.pack_into("=I", self._control, 0, calls)

    def heal(self) -> None:
        """Ends all faults."""
        self.fail()

    @property
    def affected_calls(self) -> int:
        """The number of calls that have failed, were shortened or delayed so far."""
        found: int = struct.unpack_from("=I", self._control, _AFFECTED_AT)[0]
        return found

    def forget(self, path: Path) -> None:
        """Drops the pages of a file from the page cache, also mapped ones. `path` is relative to the mount
        point."""
        struct.pack_into("=I", self._control, _FORGET_AT, 1)
        try:
            with (self.mount_point / path).open("rb"):
                pass
        finally:
            struct.pack_into("=I", self._control, _FORGET_AT, 0)
