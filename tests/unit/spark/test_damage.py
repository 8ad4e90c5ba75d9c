"""The audits' parts without Spark, over groups with real histories: each kind of damage is found, at its
replica and place and nothing else; healthy groups have no finding."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from tests.spark import damage, expectations, group_copies, seeded_groups
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")


def check(source: list[Path], root: Path, kind: str, seed: int) -> None:
    name, paths, done = group_copies.damaged(source, root, kind, seed)
    view = [done.metadata | {"brokerName": name}] if done.metadata else None
    found = inprocess.run(group_copies.replicas(name, paths), view)
    assert expectations.faults(done, found) == []


@pytest.mark.parametrize("kind", sorted(damage.KINDS))
def test_damage_is_found_where_it_was_done(kind: str, group: Group, tmp_path: Path) -> None:
    check(group(1000), tmp_path, kind, 1000)


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_a_healthy_group_has_no_findings(seed: int, group: Group) -> None:
    replicas = inprocess.replicas_of(group(seed))
    assert inprocess.run(replicas) == []
    assert inprocess.run(replicas, partition_bytes=20_011) == []
    assert inprocess.run(replicas[:1]) == []


def test_one_replica_alone_shows_what_is_wrong_in_itself(group: Group, tmp_path: Path) -> None:
    for kind in ("bit_in_body", "hole", "unit_missing", "epochs_overlapping", "queue_offset_skipped"):
        name, paths, done = group_copies.damaged(group(1001), tmp_path, kind, 7)
        hit = [path for path in paths if done.replica in ("*", path.name)][:1]
        found = inprocess.run(group_copies.replicas(name, hit))
        expected = done.expected - {"message.missing"}
        assert {row["kind"] for row in found if row["severity"] != "note"} >= expected


def test_a_message_sent_again_after_a_switch_is_noted(tmp_path: Path) -> None:
    import asyncio

    async def tell() -> None:
        story = seeded_groups.SeededGroup(tmp_path, 1)
        for node in story.nodes:
            await node.open()
        try:
            await story.elect(story.nodes[0])
            story.write(story.master, 20)
            again = seeded_groups.some(story.rng, story.numbers)
            seeded_groups.put(story.master.store, again)
            await story.in_step()
            # Another time of storage than the first copy's, which batches are told apart by.
            await asyncio.sleep(0.005)
            await story.elect(story.nodes[1])
            seeded_groups.put(story.master.store, again)
            story.write(story.master, 5)
            await story.in_step()
        finally:
            for node in story.nodes:
                await node.close()

    asyncio.run(tell())
    found = inprocess.run(inprocess.replicas_of(sorted(tmp_path.iterdir())))
    assert [(row["kind"], row["epoch"]) for row in found] == [("message.duplicate", 2)]


def test_a_replica_that_lags_is_no_finding(tmp_path: Path) -> None:
    import asyncio

    async def tell() -> None:
        story = seeded_groups.SeededGroup(tmp_path, 2)
        for node in story.nodes:
            await node.open()
        try:
            await story.elect(story.nodes[0])
            story.write(story.master, 50)
            await story.in_step()
            await story.nodes[2].follow(None, story.epoch)
            story.write(story.master, 40)
            await seeded_groups.until(lambda: story.nodes[1].end == story.master.end, "one in step")
            await seeded_groups.until(
                lambda: story.nodes[1].offsets() == story.master.offsets(), "its queues"
            )
        finally:
            for node in story.nodes:
                await node.close()

    asyncio.run(tell())
    found = inprocess.run(inprocess.replicas_of(sorted(tmp_path.iterdir())))
    assert inprocess.serious(found) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_a_seed_s_history_and_damages(seed: int, tmp_path: Path) -> None:
    source = seeded_groups.healthy(tmp_path / "healthy", seed)
    assert inprocess.run(inprocess.replicas_of(source)) == []
    rng = random.Random(seed)
    for kind in rng.sample(sorted(damage.KINDS), 10):
        check(source, tmp_path / "groups", kind, seed)
