"""Replicas that share files prove nothing about each other, and are never healthy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.store_layout import AuditedReplica
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")
KIND = "directory.same-files"


def shared(paths: list[Path]) -> list[tuple[str, str]]:
    """(replica, detail) of the findings about shared files."""
    replicas = [AuditedReplica("group-a", f"replica-{at}", str(path)) for at, path in enumerate(paths)]
    return [(row["replica"], row["detail"]) for row in inprocess.run(replicas) if row["kind"] == KIND]


def test_a_directory_given_twice(group: Group, tmp_path: Path) -> None:
    one, other, *_ = group(1001)
    link = tmp_path / "link"
    link.symlink_to(one)
    assert shared([one, other]) == []
    assert shared([one, one]) == [("replica-1", "this directory is also that of replica-0")]
    assert shared([one, link, other]) == [("replica-1", "this directory is also that of replica-0")]


@pytest.mark.parametrize("is_hard", [True, False])
def test_a_segment_linked_to_another_replicas(group: Group, is_hard: bool, tmp_path: Path) -> None:
    one, other = (Path(shutil.copytree(path, tmp_path / path.name)) for path in group(1001)[:2])
    source = min((one / "commitlog").iterdir())
    target = other / "commitlog" / source.name
    target.unlink()
    if is_hard:
        os.link(source, target)
    else:
        target.symlink_to(source)
    assert shared([one, other]) == [("replica-1", "this file of the log is also that of replica-0")]


def test_a_copied_dledger_peer(dledger_group: Group, tmp_path: Path) -> None:
    one, other, *_ = dledger_group(1)
    copied = tmp_path / "copied"
    shutil.copytree(one, copied)
    assert shared([one, other]) == []
    (found,) = shared([one, copied])
    assert found[1].startswith("the DLedger peer dledger-")
