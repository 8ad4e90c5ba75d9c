"""Records which new directories a power loss could take away."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class DirectorySyncs:
    """The directories that this process has created, and has not yet synced into their parents."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unsynced: set[Path] = set()
        self.created: set[Path] = set()
        self._opened: dict[int, Path] = {}
        for name, observe in (("mkdir", self._mkdir), ("open", self._open), ("fsync", self._fsync)):
            monkeypatch.setattr(os, name, _observed(getattr(os, name), observe))

    def _mkdir(self, _result: None, path: str | Path, *_: object) -> None:
        directory = Path(path).resolve()
        self.created.add(directory)
        self.unsynced.add(directory)

    def _open(self, fd: int, path: str | Path, *_: object) -> None:
        self._opened[fd] = Path(path).resolve()

    def _fsync(self, _result: None, fd: int) -> None:
        synced = self._opened.get(fd)
        self.unsynced = {directory for directory in self.unsynced if directory.parent != synced}


def _observed(real: Callable[..., Any], observe: Callable[..., None]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        observe(result, *args)
        return result

    return call
