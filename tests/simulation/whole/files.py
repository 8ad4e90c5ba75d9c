"""The disk of a host: a directory in memory, and what of it a power loss leaves.

The files are real ones, in a file system in memory, so that stores map them as ever. The disk follows every
`fsync`: it keeps the content of a file, and the entries of a directory, as they were then. After a power
loss a file has its synced content, and of the bytes written since then a drawn part; a directory has its
synced entries, and of later changes a drawn part.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
KEEP_CHANCES = (0.0, 0.5, 1.0)
"""The chances with which an unsynced page or entry has reached the disk. A power loss draws one of them."""


class Disk:
    """One disk. `root` is the directory that stands for it."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.root = root
        self._dice = dice
        root.mkdir(parents=True, exist_ok=True)
        self._content: dict[int, Content] = {}  # of a file, by its inode, when it was synced last
        self._entries: dict[
            int, dict[str, int]
        ] = {}  # of a directory: name to inode, when it was synced last
        self._entries[root.stat().st_ino] = {}
        self.counts = {"pages lost": 0, "pages kept": 0, "entries lost": 0}

    def synced(self, fd: int) -> None:
        """Remembers what a descriptor's file or directory holds."""
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._entries[status.st_ino] = self._present(Path(f"/proc/self/fd/{fd}").readlink())
        else:
            # Opened again: the descriptor may be one for writes only.
            self._content[status.st_ino] = read_content(Path(f"/proc/self/fd/{fd}"))

    def sync_all(self) -> None:
        """Remembers everything, as after an orderly halt of the machine."""
        self._content.clear()
        self._entries.clear()
        for path in [self.root, *self.root.rglob("*")]:
            if path.is_dir():
                self._entries[path.stat().st_ino] = self._present(path)
            elif path.is_file():
                self._content[path.stat().st_ino] = read_content(path)

    def lose_power(self) -> None:
        """Puts the directory into a state that a power loss may leave."""
        chance = self._dice.choice(KEEP_CHANCES)
        self._restore(self.root, chance)

    def empty(self) -> None:
        """Replaces the disk by an empty one."""
        for child in sorted(self.root.iterdir()):
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        self.sync_all()

    def image(self, target: Path) -> None:
        """Copies the disk, for `restore_image`."""
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.root, target)

    def restore_image(self, source: Path) -> None:
        """Replaces the disk by a copy of another disk, or of this one at another time."""
        for child in sorted(self.root.iterdir()):
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        shutil.copytree(source, self.root, dirs_exist_ok=True)
        self.sync_all()

    # inside

    @staticmethod
    def _present(folder: Path) -> dict[str, int]:
        with os.scandir(folder) as entries:
            return {entry.name: entry.inode() for entry in entries}

    def _kept(self, chance: float) -> bool:
        return self._dice.random() < chance

    def _restore(self, folder: Path, chance: float) -> None:
        present = self._present(folder)
        synced = self._entries.get(folder.stat().st_ino, {})
        for name in sorted(present.keys() | synced.keys()):
            path = folder / name
            now, then = present.get(name), synced.get(name)
            if now == then:
                self._restore_content(path, chance)
            elif now is not None and self._kept(chance):
                self._restore_content(path, chance)  # the new entry has reached the disk
            else:
                self._restore_entry(path, then, chance)
        self._entries[folder.stat().st_ino] = self._present(folder)

    def _restore_entry(self, path: Path, then: int | None, chance: float) -> None:
        """Puts a removed or replaced entry back; a new one vanishes."""
        self.counts["entries lost"] += 1
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if then is not None and then in self._content:
            write_content(path, self._content[then])
            self._content[path.stat().st_ino] = self._content[then]

    def _restore_content(self, path: Path, chance: float) -> None:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            self._restore(path, chance)
            return
        if not stat.S_ISREG(status.st_mode):
            return
        now = read_content(path)
        then = self._content.get(status.st_ino, Content(now.size, {}))
        if now != then:
            self._write_mixed(path, now, then, chance)
        self._content[status.st_ino] = read_content(path)

    def _write_mixed(self, path: Path, now: Content, then: Content, chance: float) -> None:
        """Writes a content of which each page is the synced or the present one. The size of an unsynced file
        has reached the disk: files of a store are never resized."""
        zeros = bytes(PAGE_BYTES)
        with path.open("r+b") as file:
            for number in sorted(now.pages.keys() | then.pages.keys()):
                page = then.pages.get(number, zeros)
                if page == now.pages.get(number, zeros):
                    continue
                if self._kept(chance):
                    self.counts["pages kept"] += 1
                    continue
                self.counts["pages lost"] += 1
                file.seek(number * PAGE_BYTES)
                file.write(page[: max(now.size - number * PAGE_BYTES, 0)])


@dataclass(frozen=True)
class Content:
    """The content of a file. Pages that are missing are zero, and the last page is as long as the others."""

    size: int
    pages: dict[int, bytes]


def read_content(path: Path) -> Content:
    """Reads a file, but not its holes."""
    pages: dict[int, bytes] = {}
    zeros = bytes(PAGE_BYTES)
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        at = 0
        while at < size:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA) // PAGE_BYTES * PAGE_BYTES
            except OSError:
                break  # the rest is a hole
            end = os.lseek(fd, at, os.SEEK_HOLE)
            data = os.pread(fd, end - at, at)
            for begin in range(0, len(data), PAGE_BYTES):
                page = data[begin : begin + PAGE_BYTES].ljust(PAGE_BYTES, b"\0")
                if page != zeros:
                    pages[(at + begin) // PAGE_BYTES] = page
            at = end
    return Content(size, pages)


def write_content(path: Path, content: Content) -> None:
    """Writes a file, with holes where it has zeros."""
    with path.open("wb") as file:
        file.truncate(content.size)
        for number, page in content.pages.items():
            file.seek(number * PAGE_BYTES)
            file.write(page[: content.size - number * PAGE_BYTES])
