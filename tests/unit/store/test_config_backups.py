"""State files are whole after a kill at any moment, and the content before is kept beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epochmq_broker.store.config_files import ConfigDamagedError, read_config, write_config


def test_what_is_written_is_read_and_what_was_there_before_is_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    assert read_config(path, json.loads) is None
    write_config(path, b"1")
    write_config(path, b"2")
    assert read_config(path, json.loads) == 2
    assert path.with_name("topics.json.bak").read_bytes() == b"1"
    assert sorted(file.name for file in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("damage", [b"", b"{broken", None])
def test_a_file_that_is_empty_broken_or_gone_is_replaced_by_its_backup(
    tmp_path: Path, damage: bytes | None
) -> None:
    path = tmp_path / "topics.json"
    write_config(path, b"1")
    write_config(path, b"2")
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    assert read_config(path, json.loads) == 1


def test_a_broken_file_without_backup_is_an_error_and_not_an_empty_broker(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{broken")
    with pytest.raises(ConfigDamagedError, match=r"topics.json and its backup cannot be read .*Expecting"):
        read_config(path, json.loads)


def test_a_write_that_was_cut_short_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    write_config(path, b"1")
    path.with_name("topics.json.tmp").write_bytes(b"{half")
    assert read_config(path, json.loads) == 1
    write_config(path, b"2")
    assert read_config(path, json.loads) == 2
