"""A directory of one test run for disk images and mount points, and the removal of those of dead runs.

Each run holds a lock on a file in its directory for as long as its process lives. The next run takes the lock
of a dead one, unmounts what that one left mounted, detaches its loop devices and removes its directory.
Processes that a run starts on these file systems end with it (`command`), so nothing keeps a mount point
busy.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PARENT = Path(tempfile.gettempdir()) / "epochmq-disks"
_UNMOUNT_ROUNDS = 10


class CommandFailedError(OSError):
    """A command of the system ended badly; the message carries what it wrote."""


def run(*command: str) -> str:
    """Runs a command of the system and returns its output; raises CommandFailedError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise CommandFailedError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def missing_programs(programs: dict[str, str]) -> str | None:
    """What this machine lacks of root's rights and these programs (name -> package), or None."""
    if os.geteuid() != 0:
        return "root, to mount file systems"
    lacking = [f"{name} ({package})" for name, package in programs.items() if shutil.which(name) is None]
    return ", ".join(lacking) or None


def command(arguments: Sequence[str]) -> list[str]:
    """The command, run so that it is killed when the process that started it ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *arguments]


class RunDirectory:
    """`with RunDirectory() as directory:` a directory below `PARENT`, removed at the end with all that is
    mounted from it or attached to it."""

    def __init__(self) -> None:
        PARENT.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_dead_runs()
        self.path = Path(tempfile.mkdtemp(prefix="run-", dir=PARENT))
        self._lock = _lock(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmounts, detaches and removes everything of this run."""
        try:
            clear(self.path)
        finally:
            os.close(self._lock)


def _lock(directory: Path) -> int:
    """Locks a run's directory. Raises BlockingIOError while its run lives."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove_dead_runs(parent: Path = PARENT) -> list[Path]:
    """Clears the directories of runs whose process has ended; which."""
    removed = []
    for directory in sorted(parent.glob("run-*")):
        try:
            fd = _lock(directory)
        except (BlockingIOError, FileNotFoundError):
            continue
        try:
            if (directory / "lock").stat().st_ino == os.fstat(fd).st_ino:
                clear(directory)
                removed.append(directory)
        except FileNotFoundError:
            continue  # another run was faster
        finally:
            os.close(fd)
    return removed


def clear(directory: Path) -> None:
    """Unmounts everything that lies on an image of the directory, or has it as its source; detaches the
    images; removes the directory."""
    for _ in range(_UNMOUNT_ROUNDS):
        mounts = list(_mounts(directory))
        devices = list(_loop_devices(directory))
        if not mounts and not devices:
            break
        for mount_point in reversed(mounts):
            if subprocess.run(["umount", mount_point], capture_output=True, check=False).returncode != 0:
                subprocess.run(["umount", "-l", mount_point], capture_output=True, check=False)
        for device in reversed(devices):
            subprocess.run(["losetup", "-d", device], capture_output=True, check=False)
    shutil.rmtree(directory, ignore_errors=True)


def _loop_devices(directory: Path) -> Iterator[str]:
    """The loop devices whose files lie in this directory."""
    for entry in sorted(Path("/sys/block").glob("loop*")):
        with contextlib.suppress(OSError):
            backing = (entry / "loop" / "backing_file").read_text().strip()
            if backing.startswith(f"{directory}/"):
                yield f"/dev/{entry.name}"


def _mounts(directory: Path) -> Iterator[str]:
    """Mount points whose source is one of the directory's loop devices or a path in it, in the order of
    mounting."""
    devices = set(_loop_devices(directory))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        source = _unescaped(after.split()[1])
        if source in devices or source.startswith(f"{directory}/"):
            yield _unescaped(before.split()[4])


def _unescaped(text: str) -> str:
    """A field of mountinfo, which writes spaces and the like as octal numbers."""
    for escaped, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escaped, character)
    return text
