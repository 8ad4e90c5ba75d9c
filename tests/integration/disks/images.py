"""File systems on disk images, and power cuts: an image is cloned while processes write to its file system.

An image lies on an XFS with reflink, so that one system call (FICLONE) clones it atomically: XFS holds the
file's lock, and the clone has each write of the loop device wholly or not at all. The loop device uses direct
I/O. What the file system of the image has submitted and the device has completed is in the clone; what is in
the page cache is not, because the page cache of the image file is not used. The clone is what a disk without
a volatile cache holds at a power cut.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.integration.disks.run_directory import RunDirectory, missing_programs, run

POOL_BYTES = 12 << 30
"""Of the sparse file that holds the pool; what the images do not use takes no space."""
IMAGE_BYTES = 1 << 30
XFS_BYTES_MIN = 300 << 20
_FICLONE = 0x40049409
_PROGRAMS = {
    "losetup": "util-linux",
    "mount": "util-linux",
    "setpriv": "util-linux",
    "mkfs.xfs": "xfsprogs",
    "mkfs.ext4": "e2fsprogs",
}
_MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K", "-s", "size=4096"],
}


_LOOP = ("--direct-io=on", "--sector-size=4096")
"""A cloned file of an XFS takes direct I/O in whole blocks only."""


def missing() -> str | None:
    """What this machine lacks for file systems on images, or None."""
    found = missing_programs(_PROGRAMS)
    if found is not None:
        return found
    if not Path("/dev/loop-control").exists():
        return "loop devices (/dev/loop-control)"
    lacking = [name for name in ("xfs", "ext4") if not _kernel_has(name)]
    return f"the file systems {', '.join(lacking)} in the kernel" if lacking else None


def _kernel_has(name: str) -> bool:
    return name in Path("/proc/filesystems").read_text().split() or bool(
        list(Path("/lib/modules", os.uname().release).glob(f"kernel/fs/{name}/*"))
    )


class Pool:
    """An XFS with reflink, on a loop device, for the images of one run."""

    def __init__(self, directory: RunDirectory) -> None:
        self.path = directory.path / "pool"
        self.path.mkdir()
        image = directory.path / "pool.img"
        with image.open("wb") as file:
            file.truncate(POOL_BYTES)
        run(*_MAKE["xfs"], "-m", "reflink=1", str(image))
        run("mount", _attach(image), str(self.path))

    def volume(self, name: str, mount_point: Path, kind: str = "ext4", size: int = IMAGE_BYTES) -> Volume:
        """A new file system of this kind, mounted."""
        image = self.path / f"{name}.img"
        with image.open("xb") as file:
            file.truncate(size)
        run(*_MAKE[kind], str(image))
        return Volume(image, mount_point, kind)


class Volume:
    """The file system of an image, mounted."""

    def __init__(self, image: Path, mount_point: Path, kind: str) -> None:
        self.image = image
        self.mount_point = mount_point
        self.kind = kind
        self._device = _attach(image)
        self._clones = 0
        mount_point.mkdir(parents=True, exist_ok=True)
        self._mount()

    def _mount(self) -> None:
        # As for volumes of Kubernetes, a file that is opened does not change a time stamp.
        run("mount", "-t", self.kind, "-o", "noatime", self._device, str(self.mount_point))

    def clone(self) -> Path:
        """Clones the image as it is at this moment; the clone's path."""
        self._clones += 1
        path = self.image.with_name(f"{self.image.stem.split('+')[0]}+{self._clones}.img")
        with self.image.open("rb") as source, path.open("xb") as target:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        return path

    def restart_from(self, clone: Path) -> None:
        """Mounts the clone at the place of the image, which is removed; nobody uses the file system. The loop
        device stays the same, as a disk keeps its number over a power cut."""
        run("umount", str(self.mount_point))
        run("losetup", "-d", self._device)
        self.image.unlink()
        self.image = clone
        self._device = _attach(clone, self._device)
        self._mount()
        write_other_boot(self.mount_point / "abort")

    def close(self) -> None:
        """Unmounts and removes the image."""
        run("umount", str(self.mount_point))
        run("losetup", "-d", self._device)
        self.image.unlink()


def restart_all(cuts: Iterable[tuple[Volume, Path]]) -> None:
    """`restart_from` of several volumes, side by side."""
    pairs = list(cuts)
    with ThreadPoolExecutor(len(pairs)) as workers:
        list(workers.map(lambda pair: pair[0].restart_from(pair[1]), pairs))


def write_other_boot(abort: Path) -> None:
    """Gives a store's abort file, if there is one, the id of a boot that is over: a power cut ends the boot,
    but the kernel of this machine goes on. The file stays the same inode, and nothing else of it changes."""
    if not abort.exists():
        return
    text = abort.read_bytes()
    now = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    other = str(uuid.uuid4()).encode()
    changed = text.replace(now, other)
    with abort.open("r+b") as file:
        file.write(changed)
        file.truncate()
        os.fsync(file.fileno())


def _attach(image: Path, device: str | None = None) -> str:
    """The loop device (this one, if given and free) that the image is attached to, with direct I/O."""
    if device is not None:
        try:
            run("losetup", *_LOOP, device, str(image))
        except OSError:
            device = None  # another process of the machine has it
    if device is None:
        device = run("losetup", *_LOOP, "--find", "--show", str(image)).strip()
    direct = Path("/sys/block", Path(device).name, "loop", "dio").read_text().strip()
    if direct != "1":
        run("losetup", "-d", device)
        raise OSError(f"{device} cannot use direct I/O on {image}")
    return device
