"""A disk that keeps an arbitrary subset of what was not synced."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

PAGE = 512  # smaller than a real page, because the files are smaller, too


class PowerLossDisk:
    """Simulates a disk by watching fsync. The synced state of a file or directory survives; other pages and
    entries survive at random."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, bytes] = {}
        self.names: dict[str, set[str]] = {}
        monkeypatch.setattr(os, "fsync", self.sync)
        monkeypatch.setattr(os, "fdatasync", self.sync)
        remove = os.unlink

        def unlink(path: str | Path, **options: int) -> None:
            self.files.pop(str(path), None)  # a new file of this name has nothing of the old one
            remove(path, **options)

        monkeypatch.setattr(os, "unlink", unlink)

    def sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_dir():
            self.names[str(path)] = {entry.name for entry in path.iterdir()}
        elif path.exists():
            self.files[str(path)] = path.read_bytes()

    def lose_power(self, root: Path, to: Path, rng: random.Random) -> Path:
        """Copies the directory as a power loss would leave it."""
        to.mkdir(parents=True)
        synced = self.names.get(str(root), set())
        for path in root.iterdir():
            if path.name not in synced and rng.random() < 0.5:
                continue
            if path.is_dir():
                self.lose_power(path, to / path.name, rng)
            else:
                (to / path.name).write_bytes(self._survivor(path, rng))
        return to

    def adopt(self, directory: Path) -> None:
        """Marks a whole directory as synced, because a power loss left it."""
        self.names[str(directory)] = {path.name for path in directory.iterdir()}
        for path in directory.iterdir():
            if path.is_dir():
                self.adopt(path)
            else:
                self.files[str(path)] = path.read_bytes()

    def _survivor(self, path: Path, rng: random.Random) -> bytes:
        now = path.read_bytes()
        then = self.files.get(str(path))
        if then is None:
            if rng.random() < 0.3:
                return b""  # the directory entry survives, the size does not
            then = bytes(len(now))
        share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        pages = [(now if rng.random() < share else then)[at : at + PAGE] for at in range(0, len(now), PAGE)]
        return b"".join(pages)
