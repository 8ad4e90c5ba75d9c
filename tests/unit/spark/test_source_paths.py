"""Tests the paths of the data sources: several, patterns, and those that do not exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import files
from epochmq_spark.sources.file_ranges import replicas_of_options


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    for name in ("orders-0", "orders-1", "payments-0", "percent%RETRY"):
        (tmp_path / name / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    return tmp_path


def names(root: Path, options: dict[str, str]) -> list[str]:
    found = replicas_of_options(options)
    assert all(one.name == one.location for one in found)
    return [str(Path(one.location).relative_to(root)) for one in found]


def test_a_path_a_list_of_paths_and_a_pattern_name_stores(volumes: Path) -> None:
    one, two = str(volumes / "orders-0" / "store"), str(volumes / "percent%RETRY")
    assert names(volumes, {"path": one}) == ["orders-0/store"]
    assert names(volumes, {"path": str(volumes / "orders-0")}) == ["orders-0/store"]
    assert names(volumes, {"paths": json.dumps([one, two])}) == ["orders-0/store", "percent%RETRY/store"]
    assert names(volumes, {"path": f"{volumes}/orders-*"}) == ["orders-0/store", "orders-1/store"]
    assert names(volumes, {"path": f"{volumes}/*/store"}) == [
        f"{name}/store" for name in ("orders-0", "orders-1", "payments-0", "percent%RETRY")
    ]
    assert names(volumes, {"path": f"{volumes}/orders-[1-9]"}) == ["orders-1/store"]


@pytest.mark.parametrize("path", ["typo", "typo-*", "orders-*/typo/*", "typo/store"])
def test_a_path_that_matches_nothing_is_an_error(path: str, volumes: Path) -> None:
    with pytest.raises(
        ValueError, match=r"\[PATH_NOT_FOUND\] Path does not exist: .*" + path.replace("*", r"\*")
    ):
        replicas_of_options({"path": f"{volumes}/{path}"})


def test_a_directory_that_is_not_a_store_is_an_error_that_names_it(volumes: Path) -> None:
    with pytest.raises(
        ValueError, match="photos is not a broker's store: no directory commitlog, but nothing"
    ):
        replicas_of_options({"path": str(volumes / "photos")})


def test_one_name_for_several_directories_is_an_error(volumes: Path) -> None:
    assert replicas_of_options({"path": str(volumes / "orders-0"), "replica": "a"})[0].name == "a"
    with pytest.raises(ValueError, match="there are 2"):
        replicas_of_options({"path": f"{volumes}/orders-*", "replica": "a"})


@pytest.mark.parametrize("paths", ["/mnt/a", "{}", "[1]"])
def test_paths_that_are_no_list_are_an_error(paths: str) -> None:
    with pytest.raises(ValueError, match=r"option paths: .* expected a JSON list"):
        replicas_of_options({"paths": paths})


def test_a_pattern_may_match_a_bounded_number_of_directories(
    volumes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MATCHES_MAX", 1)
    with pytest.raises(ValueError, match="matches more than 1 directories"):
        replicas_of_options({"path": f"{volumes}/orders-*"})


def test_a_file_that_a_running_broker_removes_meanwhile_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker replaces its tables all the time. An audit that met a name that was just gone took the whole
    directory for missing, and the log in it for empty."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "abort").write_text("1")
    found = [tmp_path / "abort", tmp_path / "topics.json.pending", tmp_path / "commitlog"]
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(found))
    assert files.entries(str(tmp_path)) == [
        files.DirectoryEntry("abort", True, 1),
        files.DirectoryEntry("commitlog", False, (tmp_path / "commitlog").stat().st_size),
    ]
    found[1].symlink_to(tmp_path / "nowhere")
    gone = files.DirectoryEntry("topics.json.pending", False, 0)
    assert gone in files.entries(str(tmp_path)), "a link that leads nowhere is there, and is no file"
