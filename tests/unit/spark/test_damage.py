"""Tests the audit without Spark, on groups with real histories: it finds each kind of damage at its replica
and offset and nothing else, and nothing in healthy groups."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from tests.spark import damage, dledger_groups, expectations, group_copies, seeded_groups
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")


def check(source: list[Path], root: Path, kind: str, seed: int) -> None:
    name, paths, damage_done = group_copies.damaged(source, root, kind, seed)
    view = [damage_done.metadata | {"brokerName": name}] if damage_done.metadata else None
    found = inprocess.run(group_copies.replicas(name, paths), view)
    assert expectations.mismatches(damage_done, found) == []


@pytest.mark.parametrize("kind", sorted(damage.KINDS))
def test_damage_is_found_where_it_was_done(kind: str, group: Group, tmp_path: Path) -> None:
    check(group(1000), tmp_path, kind, 1000)


@pytest.mark.parametrize("kind", sorted(damage.DLEDGER_KINDS))
def test_damage_to_a_dledger_log_is_found_where_it_was_done(
    kind: str, dledger_group: Group, tmp_path: Path
) -> None:
    check(dledger_group(1), tmp_path, kind, 1)


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_a_healthy_group_has_no_findings(seed: int, group: Group) -> None:
    replicas = inprocess.replicas_of(group(seed))
    assert inprocess.run(replicas) == []
    assert inprocess.run(replicas, partition_bytes=20_011) == []
    assert [row["kind"] for row in inprocess.run(replicas[:1])] == ["group.one-replica"]


def test_the_audit_of_one_replica_finds_damage_that_contradicts_its_own_files(
    group: Group, tmp_path: Path
) -> None:
    for kind in ("bit_in_body", "hole", "unit_missing", "epochs_overlapping", "queue_offset_skipped"):
        name, paths, damage_done = group_copies.damaged(group(1001), tmp_path, kind, 7)
        hit = [path for path in paths if damage_done.replica in ("*", path.name)][:1]
        found = inprocess.run(group_copies.replicas(name, hit))
        expected = damage_done.expected - {"message.missing"}
        assert {row["kind"] for row in found if row["severity"] != "note"} >= expected


def test_a_message_sent_again_after_a_change_of_master_is_a_note(tmp_path: Path) -> None:
    import asyncio

    async def write_history() -> None:
        group = seeded_groups.SeededGroup(tmp_path, 1)
        for node in group.nodes:
            await node.open()
        try:
            await group.elect(group.nodes[0])
            group.write(group.master, 20)
            again = seeded_groups.random_message(group.rng, group.numbers)
            seeded_groups.put(group.master.store, again)
            await group.wait_in_sync()
            # A later store time: copies with the same store time count as messages of one batch.
            await asyncio.sleep(0.005)
            await group.elect(group.nodes[1])
            seeded_groups.put(group.master.store, again)
            group.write(group.master, 5)
            await group.wait_in_sync()
        finally:
            for node in group.nodes:
                await node.close()

    asyncio.run(write_history())
    found = inprocess.run(inprocess.replicas_of(sorted(tmp_path.iterdir())))
    assert [(row["kind"], row["epoch"]) for row in found] == [("message.duplicate", 2)]


def test_a_replica_that_lags_is_a_note_only(tmp_path: Path) -> None:
    import asyncio

    async def write_history() -> None:
        group = seeded_groups.SeededGroup(tmp_path, 2)
        for node in group.nodes:
            await node.open()
        try:
            await group.elect(group.nodes[0])
            group.write(group.master, 50)
            await group.wait_in_sync()
            await group.nodes[2].follow(None, group.epoch)
            group.write(group.master, 40)
            await seeded_groups.until(
                lambda: group.nodes[1].end == group.master.end, "one replica has caught up"
            )
            await seeded_groups.until(
                lambda: group.nodes[1].offsets() == group.master.offsets(), "its queues have caught up"
            )
        finally:
            for node in group.nodes:
                await node.close()

    asyncio.run(write_history())
    found = inprocess.run(inprocess.replicas_of(sorted(tmp_path.iterdir())))
    assert inprocess.without_notes(found) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(250))
def test_the_history_of_a_seed_is_healthy_and_damage_to_it_is_found(seed: int, tmp_path: Path) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", seed)
    assert inprocess.run(inprocess.replicas_of(source)) == []
    rng = random.Random(seed)
    for kind in rng.sample(sorted(damage.KINDS), 10):
        check(source, tmp_path / "groups", kind, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_the_dledger_history_of_a_seed_is_healthy_and_damage_to_it_is_found(
    seed: int, tmp_path: Path
) -> None:
    source = dledger_groups.create_healthy_group(tmp_path / "healthy", seed)
    assert inprocess.run(inprocess.replicas_of(source)) == []
    rng = random.Random(seed)
    for kind in rng.sample(sorted(damage.DLEDGER_KINDS), 10):
        check(source, tmp_path / "groups", kind, seed)
