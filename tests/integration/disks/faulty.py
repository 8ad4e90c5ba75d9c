"""File systems that fail on command: `faulty.c`, a FUSE file system that passes every call through to a
directory."""

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
_FORGET_AT, _FELT_AT = _NUMBERS.size - 8, _NUMBERS.size - 4
_PROGRAMS = {
    "gcc": "gcc",
    "pkg-config": "pkg-config",
    "mount": "util-linux",
    "setpriv": "util-linux",
    "fusermount3": "fuse3",
}
WITHOUT_LIMIT = -1
END = (1 << 63) - 1


class Call(enum.IntFlag):
    """The calls that can fail."""

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
    """What this machine lacks for a file system of FUSE, or None."""
    found = missing_programs(_PROGRAMS)
    if found is not None:
        return found
    if not Path("/dev/fuse").exists():
        return "/dev/fuse"
    library = subprocess.run(["pkg-config", "--exists", "fuse3"], check=False).returncode == 0
    return None if library else "libfuse3's headers (libfuse3-dev)"


def compile_program(folder: Path) -> Path:
    """The program that serves such a file system."""
    program = folder / "faulty"
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "fuse3"))
    run("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(SOURCE), *flags)
    return program


class FaultyVolume:
    """`directory` as seen through `mount_point`, where calls can be made to fail. `run_directory` holds what
    belongs to the mount, and its name is that of the mount in the mount table."""

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
        """Unmounts; nobody uses the file system."""
        self._process.signal(signal.SIGTERM)
        self._process.wait()
        self._control.close()

    # Faults -------------------------------------------------------------------------------------------------

    def fail(
        self,
        calls: Call = Call.NONE,
        *,
        error: int = errno.EIO,
        match: str = "",
        sync_s: float = 0.0,
        write_max: int = 0,
        room: int = WITHOUT_LIMIT,
        read: tuple[int, int] = (0, END),
    ) -> None:
        """From now on, and until the next `fail` or `heal`, for paths (from the mount point on) that contain
        `match`: these calls fail with this error; each sync takes `sync_s` seconds longer; a write takes
        `write_max` bytes at most, unless the kernel writes back pages; files may grow by `room` bytes
        together, then ENOSPC; reads fail only where they touch these bytes of a file."""
        _MATCH.pack_into(self._control, _NUMBERS.size, os.fsencode(match))
        numbers = (int(sync_s * 1e6), write_max, room, *read, 0)
        _FAULTS.pack_into(self._control, 0, 0, error, *numbers)
        # Last, so that no call fails before the rest is there.
        struct.pack_into("=I", self._control, 0, calls)

    def heal(self) -> None:
        """No call fails any more."""
        self.fail()

    @property
    def felt(self) -> int:
        """How many calls have failed, were cut short or delayed so far."""
        found: int = struct.unpack_from("=I", self._control, _FELT_AT)[0]
        return found

    def forget(self, path: Path) -> None:
        """Drops the pages of this file, given by its path below the mount point, from the page cache, also
        those that a process has mapped."""
        struct.pack_into("=I", self._control, _FORGET_AT, 1)
        try:
            with (self.mount_point / path).open("rb"):
                pass
        finally:
            struct.pack_into("=I", self._control, _FORGET_AT, 0)
