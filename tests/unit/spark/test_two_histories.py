"""Tests the audit of a master and a slave without controllers: it names every message that only one of them
has, and tells two histories apart from damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from tests.spark.damage_kit import flip_bit, overwrite, records, replace_record
from tests.spark.pairs_without_epochs import SlavePair, continue_from_master, create_pair, id_of
from tests.unit.spark import inprocess

pytestmark = pytest.mark.filterwarnings("ignore")


def ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number:05}" for number in range(count)]


def audit(pair: SlavePair) -> list[inprocess.Row]:
    return inprocess.run(inprocess.replicas_of([pair.master, pair.slave]))


def named(found: list[inprocess.Row], kind: str) -> list[tuple[str, str]]:
    rows = sorted((row for row in found if row["kind"] == kind), key=lambda row: row["start_offset"])
    return [(row["replica"], row["message_id"]) for row in rows]


def test_equal_logs_have_no_findings(tmp_path: Path) -> None:
    assert audit(create_pair(tmp_path, [], [])) == []


@pytest.mark.parametrize("ahead", ["master", "slave"])
def test_messages_beyond_the_end_of_the_other_log_are_named(ahead: str, tmp_path: Path) -> None:
    new = ids("NEW", 25)
    pair = create_pair(tmp_path, new if ahead == "master" else [], new if ahead == "slave" else [])
    found = audit(pair)
    assert named(found, "message.not-copied") == [(ahead, one) for one in new]
    assert {row["kind"] for row in inprocess.without_notes(found)} == {"message.not-copied"}


def test_messages_of_both_histories_are_named(tmp_path: Path) -> None:
    lost, new = ids("LOST", 7), ids("NEW", 60)
    pair = create_pair(tmp_path, new, lost)
    found = audit(pair)
    one_sided = named(found, "message.one-sided")
    assert [one for one in one_sided if one[0] == "slave"] == [("slave", one) for one in lost]
    of_master = [one for one in one_sided if one[0] == "master"]
    assert of_master + named(found, "message.not-copied") == [("master", one) for one in new]
    fork = records(pair.slave)[30].offset
    histories = [row for row in found if row["kind"] == "log.two-histories"]
    assert [(row["replica"], row["start_offset"]) for row in histories] == [("master", fork), ("slave", fork)]
    kinds = {row["kind"] for row in inprocess.without_notes(found)}
    assert kinds == {"message.one-sided", "message.not-copied", "log.two-histories"}


def test_a_slave_that_continued_from_the_other_history_has_only_its_old_messages_apart(
    tmp_path: Path,
) -> None:
    lost, new = ids("LOST", 7), ids("NEWER", 60)
    pair = create_pair(tmp_path, new, lost)
    equal_from = continue_from_master(pair)
    found = audit(pair)
    one_sided = named(found, "message.one-sided")
    apart = [id_of(one) for one in records(pair.master)[30:] if one.offset < equal_from]
    assert [one for _, one in one_sided if one.startswith("LOST")] == lost
    assert [one for name, one in one_sided if name == "master"] == apart
    assert named(found, "message.not-copied") == []
    broken = [row for row in found if row["kind"] == "log.broken-record"]
    assert [(row["replica"], row["end_offset"]) for row in broken] == [("slave", equal_from)]


@pytest.mark.parametrize("kind", ["body", "flag", "hole", "other body"])
def test_damage_is_not_taken_for_another_history(kind: str, tmp_path: Path) -> None:
    pair = create_pair(tmp_path, [], [])
    rng = random.Random(kind)
    record = records(pair.slave)[12]
    if kind == "body":
        flip_bit(record.path, record.at + 90, rng)
    elif kind == "flag":
        flip_bit(record.path, record.at + 17, rng)
    elif kind == "hole":
        overwrite(record.path, record.at, bytes(record.size))
    else:
        changed = record.message
        changed.body = rng.randbytes(len(changed.body))
        replace_record(record, changed)
    found = {row["kind"] for row in inprocess.without_notes(audit(pair))}
    expected = {
        "body": {"record.checksum"},
        "flag": {"log.diverged"},
        "hole": {"log.hole", "message.missing"},
        "other body": {"log.diverged"},
    }
    assert found == expected[kind]
