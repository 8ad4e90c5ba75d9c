"""`currterm` and `checkpoint`: small properties files, replaced as a whole (`MemberState.persistTerm`,
`DLedgerMmapFileStore.persistCheckPoint`). The previous content stays beside them as `.bak`."""

from __future__ import annotations

import os
from pathlib import Path

from epochmq_protocol import properties


def replace_file(path: Path, text: str) -> None:
    """Replaces a file so that a crash leaves the old content or the new, durably the new once this
    returns."""
    data = text.encode()
    if path.exists():
        path.with_name(path.name + ".bak").write_bytes(path.read_bytes())
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.rename(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Makes what was renamed in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _load(path: Path) -> dict[str, str]:
    for candidate in (path, path.with_name(path.name + ".bak")):
        if candidate.exists():
            found = properties.parse(candidate.read_text(encoding="utf-8"))
            if found:
                return found
    return {}


def _number(path: Path, found: dict[str, str], key: str, default: int) -> int:
    text = found.get(key, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"{path}: {key}={text}, expected a whole number") from None


def load_vote(folder: Path) -> tuple[int, str | None]:
    """(term, voted for) of a peer's folder; (0, None) for a new one."""
    path = folder / "currterm"
    found = _load(path)
    return _number(path, found, "currTerm", 0), found.get("voteLeader", "").strip() or None


def save_vote(folder: Path, term: int, voted_for: str | None) -> None:
    """Makes term and vote durable."""
    replace_file(folder / "currterm", f"currTerm={term}\nvoteLeader={voted_for or ''}\n")


def load_committed(folder: Path) -> int:
    """The committed index of the last checkpoint, -1 where there is none."""
    path = folder / "checkpoint"
    return _number(path, _load(path), "committedIndex", -1)


def save_checkpoint(folder: Path, end_index: int, committed_index: int) -> None:
    """Writes the checkpoint."""
    replace_file(folder / "checkpoint", f"endIndex={end_index}\ncommittedIndex={committed_index}\n")
