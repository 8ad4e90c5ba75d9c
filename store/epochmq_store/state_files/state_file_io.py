"""Reads and writes the small state files of a broker, `config/*.json`, each with its previous content in
`.bak`.

Names and contents, and the `.bak` file, are RocketMQ's (ConfigManager, MixAll.string2File), so either program
opens the other's files. RocketMQ copies the old content and overwrites the file in place. This module makes
the new content durable under another name before it replaces the old file, so a kill or a power cut at any
moment leaves a complete file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from epochmq_protocol.durable_files import PRIVATE_MODE, backup_of, make_directory, replace_file
from epochmq_protocol.errors import EpochMQError
from epochmq_store.state_files.pending_file import pending_path, read_pending

T = TypeVar("T")

log = logging.getLogger(__name__)

PRIVATE_FILE = "auth.json"
"""The state file that holds passwords. Only its owner can read it."""


class StateFileDamagedError(EpochMQError):
    """A state file and its backup are damaged. A person has to restore or remove them."""


def read_state_file(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """The decoded content of the first readable one of three files: the pending file, if it counts
    (`pending_file`), the file, and its `.bak`. None if neither the file nor its `.bak` exists.

    A file counts as damaged if it is empty or `decode` raises. Raises StateFileDamagedError if the file or
    its `.bak` exists and none can be read, because a broker must not start as if it were new.
    """
    damage: list[str] = []
    pending = read_pending(path)
    if pending is not None:
        try:
            return decode(pending)
        except Exception as error:
            damage.append(f"{pending_path(path).name}: {error}")
            log.warning(
                "pending content of a state file is damaged",
                extra={"path": str(path), "error": str(error)},
            )
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
            log.warning("state file is damaged", extra={"path": str(candidate), "error": str(error)})
    if damage and (path.exists() or backup_of(path).exists()):
        raise StateFileDamagedError(
            f"{path} and its backup cannot be read ({'; '.join(damage)}). Restore one of them, or "
            "remove both to start with an empty table"
        )
    return None


def write_state_file(path: Path, data: bytes) -> None:
    """Replaces the content of a state file, or of `broker.conf`, durably, and keeps the previous content in
    `.bak`. Raises OSError."""
    make_directory(path.parent)
    replace_file(path, data, keep_backup=True, mode=file_mode(path))


def file_mode(path: Path) -> int | None:
    """The permissions of a state file; None: those that it has."""
    return PRIVATE_MODE if path.name == PRIVATE_FILE else None
