"""The small state files of a broker, `config/*.json`, each with the content before it in `.bak`.

Names, content and the rule of the two files are RocketMQ's (ConfigManager, MixAll.string2File), so either
program opens what the other left. Where RocketMQ copies the old content and overwrites the file in place,
here the new content is durable under another name before it takes the place of the old: a kill or a power cut
at any moment leaves a whole file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from epochmq_protocol.durable_files import backup_of, replace_file

T = TypeVar("T")

log = structlog.get_logger(__name__)


def read_config(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """What the file holds, or its `.bak` when the file is missing, empty or broken. None when neither exists.

    `decode` turns the bytes into the caller's value; anything it raises makes the file count as broken.
    Raises what the backup's decoding raised when both are: a broker must not start as if it were new.
    """
    backup = backup_of(path)
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
    replace_file(path, data, keep_backup=True)
