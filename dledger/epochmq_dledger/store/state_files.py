"""`currterm` and `checkpoint`: small properties files, replaced as a whole (`MemberState.persistTerm`,
`DLedgerMmapFileStore.persistCheckPoint`). The previous content stays beside them as `.bak`."""

from __future__ import annotations

from pathlib import Path

from epochmq_protocol import properties
from epochmq_protocol.durable_files import backup_of, replace_file


def _load(path: Path) -> dict[str, str]:
    for candidate in (path, backup_of(path)):
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
    text = f"currTerm={term}\nvoteLeader={voted_for or ''}\n"
    replace_file(folder / "currterm", text.encode(), keep_backup=True)


def load_committed(folder: Path) -> int:
    """The committed index of the last checkpoint, -1 where there is none."""
    path = folder / "checkpoint"
    return _number(path, _load(path), "committedIndex", -1)


def save_checkpoint(folder: Path, end_index: int, committed_index: int) -> None:
    """Writes the checkpoint."""
    text = f"endIndex={end_index}\ncommittedIndex={committed_index}\n"
    replace_file(folder / "checkpoint", text.encode(), keep_backup=True)
