"""Names the directories of a broker's log, and of the peer that keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_store.files.mapped_file import NAME_DIGITS


def peer_folder(config: BrokerConfig) -> Path:
    """The directory of the peer's index and small files."""
    return config.root_dir / f"dledger-{config.dledger_self_id}"


def data_folder(config: BrokerConfig) -> Path:
    """The directory of the data files."""
    if config.store_path_dledger_commit_log:
        return Path(config.store_path_dledger_commit_log).expanduser()
    return peer_folder(config) / "data"


def log_files(folders: Iterable[Path]) -> list[tuple[int, Path]]:
    """The files of a log, plain or DLedger's, and the offsets at which they begin, in order. Empty files,
    which a crash leaves, do not count. Raises OSError."""
    return sorted(_log_files(folders))


def _log_files(folders: Iterable[Path]) -> Iterator[tuple[int, Path]]:
    for folder in folders:
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name.isdecimal() and len(path.name) == NAME_DIGITS and path.stat().st_size:
                yield int(path.name), path


def end_of_files(folders: Iterable[Path], file_size: int) -> int:
    """The offset after the last file, 0 without files. Raises OSError."""
    files = log_files(folders)
    return files[-1][0] + file_size if files else 0
