"""Creates file systems on disk images, and simulates power cuts by clones of the images.

An image is a file on an XFS with reflink, so that one system call (FICLONE) clones it atomically: XFS holds
the file's lock, and each write of the loop device is in the clone completely or not at all. The loop device
uses direct I/O, so the image file has no pages in the page cache. The clone contains the writes that the
device has completed, and nothing from the page cache of the image's file system. That is the content of a
disk without a volatile cache after a power cut.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.integration.disks.run_directory import RunDirectory, missing_programs, run, unmount

POOL_BYTES = 12 << 30
"""Size of the sparse file of the pool; space that the images do not use is not allocated."""
IMAGE_BYTES = 1 << 30
XFS_BYTES_MIN = 300 << 20
_FICLONE = 0x40049409
_PROGRAMS = {
    "losetup": "util-linux",
    "mount": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mkfs.xfs": "xfsprogs",
    "mkfs.ext4": "e2fsprogs",
}
_MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K", "-s", "size=4096"],
}


_LOOP = ("--direct-io=on", "--sector-size=4096")
"""XFS accepts direct I/O to a cloned file in whole blocks only."""


def missing() -> str | None:
    """The missing requirement of file systems on images on this machine, or None."""
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


class ImagePool:
    """An XFS with reflink, on a loop device, for the images of one run."""

    def __init__(self, directory: RunDirectory) -> None:
        self.path = directory.path / "pool"
        self.path.mkdir()
        image = directory.path / "pool.img"
        with image.open("wb") as file:
            file.truncate(POOL_BYTES)
        run(*_MAKE["xfs"], "-m", "reflink=1", str(image))
        run("mount", _attach(image), str(self.path))

    def volume(
        self, name: str, mount_point: Path, kind: str = "ext4", size: int = IMAGE_BYTES
    ) -> ImageVolume:
        """Creates and mounts a file system of this kind."""
        image = self.path / f"{name}.img"
        with image.open("xb") as file:
            file.truncate(size)
        run(*_MAKE[kind], str(image))
        return ImageVolume(image, mount_point, kind)


class ImageVolume:
    """The mounted file system of an image."""

    def __init__(self, image: Path, mount_point: Path, kind: str) -> None:
        self.image = image
        self.mount_point = mount_point
        self.kind = kind
        self._device = _attach(image)
        self._clones = 0
        mount_point.mkdir(parents=True, exist_ok=True)
        self._mount()

    def _mount(self) -> None:
        # As for volumes of Kubernetes, reads do not change time stamps.
        run("mount", "-t", self.kind, "-o", "noatime", self._device, str(self.mount_point))

    def clone(self) -> Path:
        """Clones the present image, and returns the clone's path."""
        self._clones += 1
        path = self.image.with_name(f"{self.image.stem.split('+')[0]}+{self._clones}.img")
        with self.image.open("rb") as source, path.open("xb") as target:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        return path

    def replace_by_clone(self, clone: Path) -> None:
        """Replaces the image by the clone and mounts it; no process uses the file system. The loop device
        stays the same, as a disk keeps its device number over a power cut."""
        unmount(self.mount_point, self._device)
        run("losetup", "-d", self._device)
        self.image.unlink()
        self.image = clone
        self._device = _attach(clone, self._device)
        self._mount()
        change_boot_id(self.mount_point / "abort")

    def close(self) -> None:
        """Unmounts and removes the image."""
        unmount(self.mount_point, self._device)
        run("losetup", "-d", self._device)
        self.image.unlink()


def replace_all_by_clones(cuts: Iterable[tuple[ImageVolume, Path]]) -> None:
    """Calls `replace_by_clone` of several volumes in parallel."""
    pairs = list(cuts)
    with ThreadPoolExecutor(len(pairs)) as workers:
        list(workers.map(lambda pair: pair[0].replace_by_clone(pair[1]), pairs))


def change_boot_id(abort: Path) -> None:
    """Replaces the boot id in a store's abort file, if it exists, by that of another boot, because the kernel
    of this machine does not restart at a simulated power cut. The inode and the other content stay the
    same."""
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
    """Attaches the image to a loop device with direct I/O, to `device` if it is free, and returns the
    device."""
    if device is not None:
        try:
            run("losetup", *_LOOP, device, str(image))
        except OSError:
            device = None  # another process uses it
    if device is None:
        device = run("losetup", *_LOOP, "--find", "--show", str(image)).strip()
    direct = Path("/sys/block", Path(device).name, "loop", "dio").read_text().strip()
    if direct != "1":
        run("losetup", "-d", device)
        raise OSError(f"{device} cannot use direct I/O on {image}")
    return device
