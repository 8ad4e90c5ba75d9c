"""Tests `epochmq audit` on directories that are not a replica's store, or only a part of one: it names them,
and the verdict is never healthy."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq.app import run
from tests.spark import seeded_groups

pytestmark = [
    pytest.mark.timeout(2700),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("spark"),
]

Change = Callable[[Path], str]
CHANGES: dict[str, tuple[Change, str]] = {}


def change(kind: str) -> Callable[[Change], Change]:
    """Registers a change of a store and the kind of finding it must cause. The change returns a text that the
    finding must contain."""

    def register(one: Change) -> Change:
        CHANGES[one.__name__] = one, kind
        return one

    return register


def emptied(store: Path) -> None:
    shutil.rmtree(store)
    store.mkdir()


@change("directory.empty")
def empty(store: Path) -> str:
    emptied(store)
    return str(store)


@change("directory.foreign")
def foreign(store: Path) -> str:
    emptied(store)
    (store / "photos").mkdir()
    return str(store)


@change("directory.unreadable")
def a_file_instead(store: Path) -> str:
    shutil.rmtree(store)
    store.write_text("no directory")
    return str(store)


@change("directory.unreadable")
def a_link_to_itself(store: Path) -> str:
    shutil.rmtree(store)
    store.symlink_to(store)
    return str(store)


@change("directory.unreadable")
def a_segment_that_cannot_be_opened(store: Path) -> str:
    segment = min((store / "commitlog").iterdir())
    segment.unlink()
    segment.symlink_to(segment)
    return str(segment)


@change("file.foreign")
def a_directory_for_a_segment(store: Path) -> str:
    segment = max((store / "commitlog").iterdir())
    segment.unlink()
    segment.mkdir()
    return str(segment)


@change("directory.empty")
def no_segments(store: Path) -> str:
    emptied(store / "commitlog")
    return str(store / "commitlog")


@change("file.short")
def a_segment_copied_in_part(store: Path) -> str:
    segment = min((store / "commitlog").iterdir())
    os.truncate(segment, segment.stat().st_size // 2)
    return str(segment)


@change("file.short")
def a_segment_without_a_byte(store: Path) -> str:
    segment = min((store / "commitlog").iterdir())
    os.truncate(segment, 0)
    return str(segment)


@change("log.missing-segment")
def a_segment_left_out(store: Path) -> str:
    segments = sorted((store / "commitlog").iterdir())
    assert len(segments) > 2
    segments[1].unlink()
    return store.name


@change("directory.incomplete")
def no_queues(store: Path) -> str:
    shutil.rmtree(store / "consumequeue")
    return "consumequeue"


@change("directory.incomplete")
def no_index(store: Path) -> str:
    emptied(store / "index")
    return "index"


@change("file.unreadable")
def an_index_file_copied_in_part(store: Path) -> str:
    file = min((store / "index").iterdir())
    os.truncate(file, file.stat().st_size // 2 + 3)
    return str(file)


@change("epoch.file-missing")
def no_epochs(store: Path) -> str:
    for path in store.glob("epochFileCheckpoint*"):
        path.unlink()
    return store.name


@change("epoch.file-broken")
def epochs_that_are_no_text(store: Path) -> str:
    for path in store.glob("epochFileCheckpoint*"):
        path.write_bytes(b"\xff\xfe\x00garbage")
    return store.name


@change("state.unreadable")
def consumers_that_are_no_json(store: Path) -> str:
    (store / "config" / "consumerOffset.json").write_bytes(b"\xff{{{")
    return "consumerOffset.json"


@change("file.foreign")
def a_file_of_somebody_else(store: Path) -> str:
    path = store / "commitlog" / "notes.txt"
    path.write_text("remember the milk")
    return str(path)


def audited(
    paths: list[Path], state: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, object]]:
    """The exit code and the summary of the command. Its output must not contain a traceback."""
    code = run(["audit", *map(str, paths), "--state", str(state), "-o", "json"])
    output = capsys.readouterr()
    assert "Traceback" not in output.out + output.err
    return code, json.loads(output.out)


def check(name: str, source: list[Path], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_store, kind = CHANGES[name]
    shutil.copytree(source[0].parent, root, symlinks=True)
    store = root / source[1].name
    expected_text = change_store(store)
    paths = [root / path.name for path in source]
    code, summary = audited(paths, root / "state", capsys)
    found = summary["findings"]
    assert isinstance(found, list)
    assert code in (4, 5), (name, summary["verdict"])
    assert summary["verdict"] != "healthy"
    of_kind = [row for row in found if row["kind"] == kind]
    assert of_kind, (name, [(row["kind"], row["replica"]) for row in found])
    texts = [f"{row['replica']} {row.get('file', '')} {row.get('detail', '')}" for row in of_kind]
    assert any(expected_text in text for text in texts), (name, texts)
    assert {row["replica"] for row in found if row["severity"] != "note"} == {store.name}, (name, found[:3])


def test_a_directory_copied_in_part_is_not_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 8)
    check("an_index_file_copied_in_part", source, tmp_path / "damaged", capsys)


@pytest.mark.soak
def test_the_findings_name_bad_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 8)
    for name in CHANGES:
        check(name, source, tmp_path / name, capsys)


@pytest.mark.soak
def test_bad_directories_alone_have_no_healthy_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 8)
    for name in ("empty", "a_file_instead", "no_segments", "a_segment_without_a_byte"):
        store = tmp_path / name / "store"
        shutil.copytree(source[0], store)
        CHANGES[name][0](store)
        code, summary = audited([store], tmp_path / name / "state", capsys)
        assert (code != 0, summary["verdict"] != "healthy") == (True, True), name


def test_a_directory_without_anything_of_a_store_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    assert run(["audit", str(tmp_path), "--state", str(tmp_path / "state")]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}: no broker's store, expected a directory with commitlog" in error
    assert "Spark" not in error
