"""A broker repairs broken records from other replicas, bit for bit, and reports what it cannot repair."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_broker.replication.scrub.comparison import PARTS_MAX
from epochmq_protocol import record_layout
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.frame import Command, request
from epochmq_protocol.replica_control import (
    LogPartsHeader,
    ReplicaControlCode,
    decode_checksums,
    encode_log_parts,
)
from tests.unit.broker.replication.ha.broker_node import until
from tests.unit.broker.replication.scrub.replicas import Group, Replica, scrubbing
from tests.unit.store.support import Message, open_store, put_all

CRC_AT = record_layout.BODY_CRC_AT
QUEUE_ID_AT = record_layout.QUEUE_ID_AT


def group_in(folder: Path, **settings: bool) -> Iterator[Group]:
    """Three replicas with the same log, of three files or more."""
    first = open_store(folder / "one", **settings)
    put_all(first, [Message(body=bytes([65 + n]) * 700) for n in range(30)])
    first.stop()
    made = Group()
    stores = []
    for name in ("one", "two", "three"):
        if name != "one":
            shutil.copytree(folder / "one", folder / name)
    for name in ("one", "two", "three"):
        store = open_store(folder / name, **settings)
        stores.append(store)
        made.replicas[name] = Replica(name, store, made)
        assert len(store.log.files.files) >= 3
    yield made
    for store in stores:
        store.stop()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    yield from group_in(tmp_path)


@pytest.fixture
def summed_group(tmp_path: Path) -> Iterator[Group]:
    """Whose records have a checksum of all their bytes each."""
    yield from group_in(tmp_path, enabled_append_prop_crc=True)


@pytest.mark.parametrize("at", [CRC_AT, record_layout.PHYSICAL_OFFSET_AT, 2, record_layout.HEAD_BYTES + 5])
async def test_a_broken_record_is_repaired_bit_for_bit(group: Group, at: int) -> None:
    one = group.replicas["one"]
    one.flip(1, at)
    async with scrubbing(group, "one"):
        await until(lambda: one.scrub.metric_values()["broker_damaged_ranges_repaired_total"] == 1)
        await until(one.passed())
    assert one.files == one.original
    assert not one.store.damage
    assert one.scrub.found == 1


async def test_all_replicas_repair_themselves_from_each_other(group: Group) -> None:
    for number, replica in enumerate(group.replicas.values()):
        size, _ = record_layout.SIZE_AND_MAGIC.unpack_from(replica.original[1], 0)
        replica.flip(1, 2 * number * size + CRC_AT)
    async with scrubbing(group, *group.replicas) as replicas:
        for replica in replicas.values():
            await until(replica.passed(4))
    for replica in group.replicas.values():
        assert replica.files == replica.original
        assert not replica.store.damage


async def test_a_replica_that_is_damaged_at_the_same_place_is_no_source(group: Group) -> None:
    one, two = group.replicas["one"], group.replicas["two"]
    one.flip(1, CRC_AT)
    two.flip(1, record_layout.HEAD_BYTES + 9)
    async with scrubbing(group, "one"):
        await until(lambda: not one.store.damage and one.scrub.found == 1)
    assert one.files == one.original
    assert two.files != two.original, "only a broker itself repairs its log"


async def test_damage_without_a_whole_copy_stays_reported(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    for replica in group.replicas.values():
        replica.flip(1, CRC_AT)
    one = group.replicas["one"]
    async with scrubbing(group, "one"):
        await until(one.passed())
        assert one.scrub.metric_values()["broker_damaged_ranges_repaired_total"] == 0
        assert one.store.damage
    assert one.scrub.found == 1
    assert "have no whole records there" in caplog.text


@pytest.mark.parametrize("kind", ["silent", "java"])
async def test_without_answers_damage_is_reported_alone(group: Group, kind: str) -> None:
    getattr(group, kind).update({"two", "three"})
    one = group.replicas["one"]
    one.flip(1, CRC_AT)
    damaged = one.files
    async with scrubbing(group, "one"):
        await until(one.passed())
        assert len(one.store.damage.ranges) == 1
        assert one.files == damaged
        group.silent.clear()
        group.java.clear()
        await until(lambda: not one.store.damage)
    assert one.files == one.original


async def test_whole_records_that_differ_are_reported_by_the_minority_and_not_repaired(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    three = group.replicas["three"]
    three.flip(1, QUEUE_ID_AT + 3)
    changed = three.files
    async with scrubbing(group, *group.replicas) as replicas:
        for replica in replicas.values():
            await until(replica.passed(3))
        (found,) = three.store.damage.ranges
        assert not found.repairable
        assert found.start == three.store.log.files.files[1].start
        assert found.size < 1000
        assert not replicas["one"].store.damage
        assert not replicas["two"].store.damage
    assert three.files == changed
    assert three.scrub.found == 1
    assert "has other records than this one and a majority" in caplog.text


async def test_two_replicas_that_differ_both_report_it(group: Group) -> None:
    group.silent.add("three")
    group.replicas["two"].flip(1, QUEUE_ID_AT + 3)
    async with scrubbing(group, "one", "two") as replicas:
        await until(lambda: replicas["one"].store.damage and replicas["two"].store.damage)
        text = replicas["one"].scrub.damage_texts()[0]
        assert "the replica at two has other records there" in text
        assert "and empty its store" in text


async def test_a_failed_write_leaves_the_damage_reported(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = group.replicas["one"]
    one.flip(1, CRC_AT)

    damaged = one.files[1]

    def fails(path: Path, at: int, size: int) -> None:
        """As the kernel does: the disk keeps what it had, and the page cache is dropped."""
        one.store.log.files.files[1].write(0, memoryview(damaged))
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("epochmq_broker.replication.scrub.repair._sync_and_drop", fails)
    async with scrubbing(group, "one"):
        await until(lambda: "cannot be written" in caplog.text)
        await until(one.passed(1))
        assert one.store.damage
        assert one.scrub.metric_values()["broker_damaged_ranges_repaired_total"] == 0


# What a broker serves


async def ask(group: Group, code: ReplicaControlCode, *parts: tuple[int, int], name: str = "a") -> Command:
    command = request(code, LogPartsHeader(broker_name=name), body=encode_log_parts(parts))
    return await group.call("one", command)


async def test_a_broker_serves_checksums_and_bytes_of_what_is_confirmed(group: Group) -> None:
    one = group.replicas["one"]
    end = one.store.max_phy_offset
    async with scrubbing(group):
        crcs = await ask(group, ReplicaControlCode.SCRUB_CHECKSUMS, (0, 100), (100, 5000))
        assert len(decode_checksums(crcs.body)) == 2
        assert (await ask(group, ReplicaControlCode.SCRUB_BYTES, (10, 900))).body == one.files[0][10:900]
        for code in (ReplicaControlCode.SCRUB_CHECKSUMS, ReplicaControlCode.SCRUB_BYTES):
            rejected = await ask(group, code, (end - 10, end + 1))
            assert rejected.code == ResponseCode.SYSTEM_ERROR
            assert f"between 0 and {end}" in str(rejected.remark)
            for bad in ((5, 5), (-3, 5), (9, 7)):
                assert (await ask(group, code, bad)).code == ResponseCode.SYSTEM_ERROR
            assert (await ask(group, code)).code == ResponseCode.SYSTEM_ERROR
            many = [(0, 1)] * (PARTS_MAX + 1)
            assert (await ask(group, code, *many)).code == ResponseCode.SYSTEM_ERROR
            other = await ask(group, code, (0, 10), name="b")
            assert "brokerName=b: expected a" in str(other.remark)
        assert (await ask(group, ReplicaControlCode.SCRUB_BYTES, (0, 1), (1, 2))).code != ResponseCode.SUCCESS


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


UNCOVERED = {
    "queue id": QUEUE_ID_AT + 3,
    "flag": record_layout.FLAG_AT + 3,
    "queue offset": record_layout.QUEUE_OFFSET_AT + 7,
    "system flag": record_layout.SYS_FLAG_AT + 3,
    "born timestamp": record_layout.BORN_TIMESTAMP_AT + 7,
    "born host": record_layout.BORN_HOST_AT,
    "store timestamp": record_layout.STORE_TIMESTAMP_AT + 7,
    "store host": record_layout.STORE_HOST_AT,
    "reconsume times": record_layout.BODY_SIZE_AT - record_layout.LONG.size - 1,
    "prepared transaction offset": record_layout.BODY_SIZE_AT - 1,
}
"""Fields that the checksum of the body does not cover, from the start of a record."""


@pytest.mark.parametrize("name", UNCOVERED)
async def test_a_checksum_of_the_whole_record_says_which_replica_is_right(
    summed_group: Group, name: str
) -> None:
    """Only two replicas answer, so that there is no majority."""
    summed_group.silent.add("three")
    one, two = summed_group.replicas["one"], summed_group.replicas["two"]
    one.flip(1, UNCOVERED[name])
    async with scrubbing(summed_group, "one", "two"):
        await until(lambda: one.scrub.metric_values()["broker_damaged_ranges_repaired_total"] == 1)
        await until(one.passed())
        await until(two.passed())
        assert not one.store.damage
        assert not two.store.damage
    assert one.files == one.original
    assert two.files == two.original


async def test_a_wrong_record_is_repaired_although_a_majority_has_it(summed_group: Group) -> None:
    for name in ("one", "two"):
        summed_group.replicas[name].flip(1, UNCOVERED["queue offset"])
    async with scrubbing(summed_group, *summed_group.replicas) as replicas:
        for replica in replicas.values():
            await until(lambda one=replica: one.files == one.original and not one.store.damage)
        for replica in replicas.values():
            await until(replica.passed())
    for replica in summed_group.replicas.values():
        assert replica.files == replica.original
        assert not replica.store.damage
