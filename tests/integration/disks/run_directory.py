"""Creates a directory for the disk images and mount points of one test run, and removes those of ended runs.

Each run locks a file in its directory while its process lives. The next run takes the lock of an ended run,
unmounts its file systems, detaches its loop devices and removes its directory. Processes that a run starts on
these file systems end with it (`command`), so that no mount point stays busy.
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
    """A command of the system failed; the message contains its error output."""


def run(*command: str) -> str:
    """Runs a command of the system and returns its output. Raises CommandFailedError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise CommandFailedError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def missing_programs(programs: dict[str, str]) -> str | None:
    """What is missing of root's rights and these programs (name -> package), or None."""
    if os.geteuid() != 0:
        return "root, to mount file systems"
    lacking = [f"{name} ({package})" for name, package in programs.items() if shutil.which(name) is None]
    return ", ".join(lacking) or None


def command(arguments: Sequence[str]) -> list[str]:
    """The command, extended so that it is killed when the process that started it ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *arguments]


class RunDirectory:
    """A directory below `PARENT`: `with RunDirectory() as directory:` removes it at the end, with all its
    mounts and loop devices."""

    def __init__(self) -> None:
        PARENT.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_ended_runs()
        self.path = Path(tempfile.mkdtemp(prefix="run-", dir=PARENT))
        self._lock = _lock(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmounts, detaches and removes all resources of this run."""
        try:
            clear(self.path)
        finally:
            os.close(self._lock)


def _lock(directory: Path) -> int:
    """Locks a run's directory. Raises BlockingIOError while its process lives."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove_ended_runs(parent: Path = PARENT) -> list[Path]:
    """Removes the directories of runs whose process has ended, and returns their paths."""
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
    """Unmounts all file systems whose source is in the directory, detaches its loop devices, and removes the
    directory."""
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


def unmount(mount_point: Path, device: str) -> None:
    """Unmounts the file system of a loop device in all mount namespaces, so that nothing uses the device any
    more. A program that made a namespace while it was mounted, such as one that builds an image, has a copy
    of the mount. Raises CommandFailedError."""
    run("umount", str(mount_point))
    for _ in range(_UNMOUNT_ROUNDS):
        copies = list(_copies(device))
        if not copies:
            return
        for namespace, copy in copies:
            command = ["nsenter", f"--mount={namespace}", "umount", copy]
            subprocess.run(command, capture_output=True, check=False)  # it may have ended meanwhile
    raise CommandFailedError(f"{device} is still mounted in {copies}")


def _copies(device: str) -> Iterator[tuple[Path, str]]:
    """(namespace, mount point) of each mount of the device in a namespace other than that of this process."""
    seen = {Path("/proc/self/ns/mnt").readlink()}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            namespace = (process / "ns" / "mnt").readlink()
            if namespace in seen:
                continue
            seen.add(namespace)
            for line in (process / "mountinfo").read_text().splitlines():
                before, _, after = line.partition(" - ")
                if after.split()[1] == device:
                    yield process / "ns" / "mnt", _unescaped(before.split()[4])


def _loop_devices(directory: Path) -> Iterator[str]:
    """The loop devices whose files are in this directory."""
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
    """Decodes a field of mountinfo, in which spaces and some other characters are octal numbers."""
    for escaped, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escaped, character)
    return text
