"""The audit finds the log of a broker that has several directories for it, also in a copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")
from epochmq_spark.store_layout import scan_store
from tests.unit.store.support import LOG_FILE, Message, open_store, put_all

FILES = 5


def fill(root: Path, *directories: Path) -> None:
    """A store whose log has `FILES` files in these directories."""
    store = open_store(root, store_path_commit_log=",".join(map(str, directories)))
    while len(store.log.files.files) < FILES:
        put_all(store, [Message(body=bytes(1000))])
    store.stop()


def test_the_segments_of_all_directories_are_one_log(tmp_path: Path) -> None:
    root, beside = tmp_path / "store", tmp_path / "disk2"
    fill(root, root / "a", beside)
    contents = scan_store(str(root))
    assert contents.faults == []
    assert [file.start for file in contents.log] == [number * LOG_FILE for number in range(FILES)]
    assert {Path(file.location).parent for file in contents.log} == {root / "a", beside}


def test_a_copy_has_its_own_log(tmp_path: Path) -> None:
    root, copy = tmp_path / "store", tmp_path / "copy"
    fill(root, root / "a", root / "b")
    shutil.copytree(root, copy)
    shutil.rmtree(root)
    contents = scan_store(str(copy))
    assert contents.faults == []
    assert {Path(file.location).parent for file in contents.log} == {copy / "a", copy / "b"}
    assert len(contents.log) == FILES


def test_a_missing_directory_and_a_damaged_list_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, root / "a", root / "b")
    shutil.rmtree(root / "b")
    assert "directory.missing" in [fault.kind for fault in scan_store(str(root)).faults]
    (root / "logPaths.json").write_text(json.dumps({"not": "a list"}))
    assert "directory.unreadable" in [fault.kind for fault in scan_store(str(root)).faults]
