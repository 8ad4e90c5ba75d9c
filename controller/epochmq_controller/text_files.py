"""Reads and replaces small text files so that they survive a crash (RocketMQ `MixAll.string2File`)."""

from __future__ import annotations

import contextlib
from pathlib import Path

from epochmq_protocol.durable_files import backup_of, make_directory, replace_file


def read_text(path: Path) -> str | None:
    """The text of a file or, if it is missing or empty, of its `.bak`. None without both."""
    for candidate in (path, backup_of(path)):
        with contextlib.suppress(FileNotFoundError):
            text = candidate.read_text(encoding="utf-8", errors="replace")
            if text.strip():
                return text
    return None


def write_text(path: Path, text: str) -> None:
    """Replaces the file atomically, and keeps the previous text as `.bak`. OSError if it cannot be
    written."""
    make_directory(path.parent)
    replace_file(path, text.encode("utf-8"), keep_backup=True)
