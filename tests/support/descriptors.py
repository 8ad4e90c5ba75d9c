"""The files that this process has open."""

from __future__ import annotations

from pathlib import Path


def open_files_in(folder: Path) -> list[Path]:
    """The open files of this folder and of those in it."""
    files = (link.resolve() for link in Path("/proc/self/fd").iterdir())
    return [file for file in files if file.is_relative_to(folder.resolve())]
