"""Audits groups whose commit logs are DLedger logs, without Spark: histories that are healthy although the
replicas' files differ, and the data source of their entries."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_dledger.store import state_files
from epochmq_spark import store_layout
from epochmq_spark.sources.commitlog import CommitLogReader
from tests.spark import damage
from tests.spark.damage_entries import index_of, term_of
from tests.spark.damage_kit import segments
from tests.spark.dledger_groups import DLedgerNode, SeededDLedgerGroup
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")


def started(root: Path, seed: int) -> SeededDLedgerGroup:
    """A group with a leader and some messages that all replicas have."""
    group = SeededDLedgerGroup(root, seed)
    for node in group.nodes:
        node.open()
    group.elect(group.nodes[0])
    group.write(60)
    group.replicate()
    return group


def stopped(root: Path, group: SeededDLedgerGroup) -> list[Path]:
    """The directories of the group, after it was stopped."""
    for node in group.nodes:
        node.close()
    return sorted(root.iterdir())


def kinds(paths: list[Path], **options: int) -> dict[str, str]:
    """The replica of each kind of finding."""
    return {row["kind"]: row["replica"] for row in inprocess.run(inprocess.replicas_of(paths), **options)}


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_group_has_no_findings(seed: int, dledger_group: Group) -> None:
    paths = dledger_group(seed)
    assert kinds(paths) == {}
    assert kinds(paths, partition_bytes=20_011) == {}
    assert kinds(paths[:1]) == {"group.one-replica": ""}


def test_what_a_former_leader_has_not_committed_is_a_note(tmp_path: Path) -> None:
    group = started(tmp_path, 1)
    group.write(7)
    former, *others = group.nodes
    group.elect(others[0])
    group.write(20)
    others[1].follow(others[0])
    for node in others:
        node.commit(others[0].log.end_index)
    assert set(kinds(stopped(tmp_path, group))) <= {
        "log.unacknowledged-tail",
        "log.behind",
        "queue.behind",
    }
    assert "log.unacknowledged-tail" in kinds(sorted(tmp_path.iterdir()))
    assert former.log.end_term < others[0].log.end_term


def test_a_peer_that_lags_or_has_not_committed_the_end_is_a_note(tmp_path: Path) -> None:
    group = started(tmp_path, 2)
    group.write(30)
    group.nodes[1].follow(group.master)
    for node in group.nodes[:2]:
        node.commit(group.master.log.end_index - 5)
    assert set(kinds(stopped(tmp_path, group))) == {"log.behind", "queue.behind"}


def test_killed_peers_are_healthy(tmp_path: Path) -> None:
    """Their queues and checkpoints are behind their logs, and one has entries without units."""
    group = started(tmp_path / "running", 3)
    for node in group.nodes:
        node.save_checkpoint()
    group.write(40)
    for node in group.nodes[1:]:
        node.follow(group.master)
    group.nodes[0].commit(group.master.log.end_index)
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "running", killed)
    stopped(tmp_path / "running", group)
    found = inprocess.run(inprocess.replicas_of(sorted(killed.iterdir())))
    assert inprocess.without_notes(found) == []


def test_entries_that_a_truncation_of_dledger_left_in_the_file_are_no_findings(tmp_path: Path) -> None:
    """DLedger's peers do not erase what they truncate. The old entries follow the new ones without a gap, or
    begin somewhere behind them."""
    for seed in range(3):
        root = tmp_path / str(seed)
        group = started(root, seed)
        former, leader, other = group.nodes
        group.write(12)
        data = {path: path.read_bytes() for path in segments(former.directory)}
        units = {path: path.read_bytes() for path in (former.folder / "index").iterdir()}
        group.elect(leader)
        group.write(4)
        group.replicate()
        end, unit_end = former.log.end_pos, (former.log.end_index + 1) * 32
        paths = stopped(root, group)
        for old, kept_to in ((data, end), (units, unit_end)):
            for path, before in old.items():
                at = max(kept_to - int(path.name), 0)
                path.write_bytes(path.read_bytes()[:at] + before[at:])
        found = inprocess.run(inprocess.replicas_of(paths))
        assert inprocess.without_notes(found) == []
        assert other.log.end_pos == end


def test_a_log_whose_first_files_have_expired_on_one_peer_is_healthy(tmp_path: Path) -> None:
    group = started(tmp_path, 5)
    group.write(600)
    group.replicate()
    first = group.nodes[0]
    first.log.mark_synced(first.log.end_index, first.log.end_term)
    first.log.expire_files(first.log.end_pos, first.committed)
    for job in first.log.take_removals():
        job()
    paths = stopped(tmp_path, group)
    assert int(segments(paths[0])[0].name) > 0
    assert kinds(paths) == {}


def test_data_files_in_another_directory_are_found(tmp_path: Path) -> None:
    node = DLedgerNode(tmp_path / "store", 1, tmp_path / "elsewhere")
    node.open()
    node.lead(1)
    node.commit(0)
    node.close()
    contents = store_layout.scan_store(str(tmp_path / "store"))
    assert [Path(file.location).parent for file in contents.log] == [tmp_path / "elsewhere"]
    assert contents.faults == []
    (tmp_path / "store" / store_layout.DATA_PATHS_FILE).unlink()  # RocketMQ's broker writes none
    fault = store_layout.scan_store(str(tmp_path / "store")).faults[0]
    assert (fault.kind, "link data" in fault.detail) == ("directory.incomplete", True)


def test_the_log_source_has_index_and_term_of_each_entry(dledger_group: Group) -> None:
    paths = dledger_group(0)
    rows = inprocess.rows(CommitLogReader(inprocess.replicas_of(paths[:1]), {}))
    found = [
        (row["physical_offset"], row["entry_index"], row["term"]) for row in rows if row["kind"] == "message"
    ]
    assert found == [(one.offset, index_of(one), term_of(one)) for one in damage.records(paths[0])]
    assert {row["crc_ok"] for row in rows} == {True}


def test_a_lost_file_of_the_saved_term_is_found(tmp_path: Path) -> None:
    group = started(tmp_path, 6)
    group.elect(group.nodes[1])
    group.replicate()
    paths = stopped(tmp_path, group)
    (group.nodes[0].folder / state_files.CURRTERM).write_text("currTerm=1\n")
    assert set(kinds(paths)) <= {"dledger.term-behind"}
