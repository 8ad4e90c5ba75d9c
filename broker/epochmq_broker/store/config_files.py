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
from epochmq_protocol.errors import EpochMQError

T = TypeVar("T")

log = structlog.get_logger(__name__)


PENDING_SUFFIX = ".pending"


class ConfigDamagedError(EpochMQError):
    """A state file and its backup are damaged; a person has to restore or remove them."""


def read_config(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """What the file holds, or its `.bak` when the file is missing, empty or broken. None when neither exists.

    `decode` turns the bytes into the caller's value; anything it raises makes the file count as broken.
    Raises ConfigDamagedError when a file is there and none can be read: a broker must not start as if it were
    new.
    """
    damage: list[str] = []
    for candidate in (*_pending(path), path, backup_of(path)):
        try:
            data = candidate.read_bytes()
            if data.strip():
                return decode(data)
            raise ValueError("it is empty")
        except FileNotFoundError:
            continue
        except Exception as error:
            damage.append(f"{candidate.name}: {error}")
            log.warning("config file is damaged", path=str(candidate), error=str(error))
    if damage and (path.exists() or backup_of(path).exists()):
        raise ConfigDamagedError(
            f"{path} and its backup cannot be read ({'; '.join(damage)}). Restore one of them, or "
            "remove both to start with an empty table"
        )
    return None


def _pending(path: Path) -> list[Path]:
    """The pending file (see `config_writer`) when it is newer than the file itself: another broker may have
    had the directory since."""
    pending = path.with_name(path.name + PENDING_SUFFIX)
    try:
        newer = not path.exists() or pending.stat().st_mtime_ns >= path.stat().st_mtime_ns
    except OSError:
        return []
    return [pending] if newer else []


def write_config(path: Path, data: bytes) -> None:
    """Makes `data` the content of the file, and what it held before the content of `.bak`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, keep_backup=True)
