"""State files are complete after a kill at any moment, and their former content is the backup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epochmq_store.state_files.state_file_io import StateFileDamagedError, read_state_file, write_state_file


def test_a_written_file_is_read_and_its_former_content_is_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    assert read_state_file(path, json.loads) is None
    write_state_file(path, b"1")
    write_state_file(path, b"2")
    assert read_state_file(path, json.loads) == 2
    assert path.with_name("topics.json.bak").read_bytes() == b"1"
    assert sorted(file.name for file in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("damage", [b"", b"{broken", None])
def test_an_empty_damaged_or_missing_file_is_replaced_by_its_backup(
    tmp_path: Path, damage: bytes | None
) -> None:
    path = tmp_path / "topics.json"
    write_state_file(path, b"1")
    write_state_file(path, b"2")
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    assert read_state_file(path, json.loads) == 1


def test_a_damaged_file_without_backup_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{broken")
    with pytest.raises(StateFileDamagedError, match=r"topics.json and its backup cannot be read .*Expecting"):
        read_state_file(path, json.loads)


def test_an_interrupted_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    write_state_file(path, b"1")
    path.with_name("topics.json.tmp").write_bytes(b"{half")
    assert read_state_file(path, json.loads) == 1
    write_state_file(path, b"2")
    assert read_state_file(path, json.loads) == 2
