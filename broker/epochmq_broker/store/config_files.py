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

from epochmq_broker.store.pending_file import pending_path, read_pending
from epochmq_protocol.durable_files import backup_of, replace_file
from epochmq_protocol.errors import EpochMQError

T = TypeVar("T")

log = structlog.get_logger(__name__)


class ConfigDamagedError(EpochMQError):
    """A state file and its backup are damaged; a person has to restore or remove them."""


def read_config(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """What the file holds, or its `.bak` when the file is missing, empty or broken. None when neither exists.

    `decode` turns the bytes into the caller's value; anything it raises makes the file count as broken.
    Raises ConfigDamagedError when a file is there and none can be read: a broker must not start as if it were
    new.
    """
    damage: list[str] = []
    pending = read_pending(path)
    if pending is not None:
        try:
            return decode(pending)
        except Exception as error:
            damage.append(f"{pending_path(path).name}: {error}")
            log.warning("content that was not synced is damaged", path=str(path), error=str(error))
    for candidate in (path, backup_of(path)):
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


def write_config(path: Path, data: bytes) -> None:
    """Makes `data` the content of the file, and what it held before the content of `.bak`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, keep_backup=True)
