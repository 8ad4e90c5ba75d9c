"""The small state files of a broker, `config/*.json`, each with the content before it in `.bak`.

Names, content and the rule of the two files are RocketMQ's (ConfigManager, MixAll.string2File), so either
program opens what the other left. Where RocketMQ copies the old content and overwrites the file in place,
here the new content is complete under another name before it takes the place of the old: a kill at any moment
leaves a whole file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)


def read_config(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """What the file holds, or its `.bak` when the file is missing, empty or broken. None when neither exists.

    `decode` turns the bytes into the caller's value; anything it raises makes the file count as broken.
    Raises what the backup's decoding raised when both are: a broker must not start as if it were new.
    """
    backup = path.with_name(path.name + ".bak")
    try:
        data = path.read_bytes()
        if data:
            return decode(data)
    except FileNotFoundError:
        pass
    except Exception as error:
        log.warning("config file is broken, taking its backup", path=str(path), error=str(error))
        if not backup.exists():
            raise
    try:
        data = backup.read_bytes()
    except FileNotFoundError:
        return None
    return decode(data) if data else None


def write_config(path: Path, data: bytes) -> None:
    """Makes `data` the content of the file, and what it held before the content of `.bak`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    fresh.write_bytes(data)
    backup = path.with_name(path.name + ".bak")
    with contextlib.suppress(FileNotFoundError):
        path.replace(backup)
    fresh.replace(path)
