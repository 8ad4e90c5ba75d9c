"""The audit reads the files of transactions, timers, POP, filters, request modes, static topics and access
control: it finds each kind of damage to them and nothing else, and nothing in a healthy store."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

import msgspec
import numpy as np

from epochmq_formats.timer_wheel import SLOTS, WHEEL_BYTES
from epochmq_protocol import fastjson
from epochmq_spark.decode import timer_files
from epochmq_spark.decode.state_tables import STATE_FILES
from epochmq_spark.features import replica_reader
from epochmq_spark.sources.extension import QueueExtensionReader
from epochmq_spark.sources.state import StateReader
from epochmq_spark.sources.timer import TimerLogReader, TimerWheelReader
from epochmq_spark.store_layout import AuditedReplica
from tests.spark.damage_kit import Record, overwrite, records, replace_record
from tests.unit.spark import feature_store, inprocess

pytestmark = pytest.mark.filterwarnings("ignore")
UNIT_BYTES, SLOT_BYTES = 52, 32
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("healthy") / "store"
    asyncio.run(feature_store.create(directory))
    return directory


@pytest.fixture
def copy(healthy: Path, tmp_path: Path) -> Path:
    target = tmp_path / "store"
    # shutil would write all 38 MB of the wheel, which is nearly empty.
    subprocess.run(["cp", "-a", "--sparse=always", str(healthy), str(target)], check=True)
    return target


def audited(directory: Path) -> list[AuditedReplica]:
    return [AuditedReplica("broker-a", "a", str(directory))]


def found_in(directory: Path) -> list[dict[str, Any]]:
    return inprocess.of_one_replica(inprocess.run(audited(directory)))


# The timer


def timer_units(directory: Path) -> list[tuple[Path, int, tuple[int, ...]]]:
    """(file, position in it, fields) of all units of the timer log."""
    found = []
    for path in sorted((directory / "timerlog").iterdir()):
        data = path.read_bytes()
        for at in range(0, feature_store.TIMER_LOG_UNITS * UNIT_BYTES, UNIT_BYTES):
            fields = struct.unpack_from(">iqiqiqiiq", data, at)
            if fields[0] == UNIT_BYTES:
                found.append((path, at, fields))
    return found


def pending_slot(directory: Path) -> tuple[Path, int, tuple[int, ...]]:
    """(file, position, fields) of the slot with several pending messages."""
    delivered_ms = struct.unpack_from(">q", (directory / "config/timercheck").read_bytes())[0]
    path = directory / "timerwheel"
    for number, fields in enumerate(struct.iter_unpack(">qqqii", path.read_bytes())):
        if fields[3] == feature_store.SAME_TIME and fields[0] * 100 > delivered_ms + 60_000:
            return path, number * SLOT_BYTES, fields
    raise AssertionError("no slot")


def wheel_cut(directory: Path) -> None:
    with (directory / "timerwheel").open("r+b") as file:
        file.truncate(1000)


def slot_at_another_place(directory: Path) -> None:
    path, at, fields = pending_slot(directory)
    overwrite(path, at, bytes(SLOT_BYTES))
    overwrite(path, (at + 640) % WHEEL_BYTES, struct.pack(">qqqii", *fields))


def slot_of_another_unit(directory: Path) -> None:
    path, at, fields = pending_slot(directory)
    overwrite(path, at + 16, struct.pack(">q", fields[1]))


def wheel_emptied(directory: Path) -> None:
    with (directory / "timerwheel").open("r+b") as file:
        file.truncate(0)
        file.truncate(WHEEL_BYTES)


def timer_log_lost(directory: Path) -> None:
    shutil.rmtree(directory / "timerlog")


def slot_emptied(directory: Path) -> None:
    path, at, _ = pending_slot(directory)
    overwrite(path, at, bytes(SLOT_BYTES))


def chain_broken(directory: Path) -> None:
    last = pending_slot(directory)[2][2]
    path, at, _ = next(one for one in timer_units(directory) if int(one[0].name) + one[1] == last)
    overwrite(path, at + 4, struct.pack(">q", 0))


def unit_emptied(directory: Path) -> None:
    path, at, _ = timer_units(directory)[5]
    overwrite(path, at, bytes(UNIT_BYTES))


def timer_file_missing(directory: Path) -> None:
    sorted((directory / "timerlog").iterdir())[1].unlink()


def unit_of_no_record(directory: Path) -> None:
    path, at, fields = timer_units(directory)[-1]
    overwrite(path, at + 28, struct.pack(">q", fields[5] + 1))


def unit_missing(directory: Path) -> None:
    """The unit of a pending message names the record of another message."""
    every = timer_units(directory)
    path, at, _ = max(every, key=lambda unit: unit[2][3] + unit[2][4])
    overwrite(path, at + 28, struct.pack(">qi", every[0][2][5], every[0][2][6]))


def checkpoint_beyond_log(directory: Path) -> None:
    overwrite(directory / "config/timercheck", 8, struct.pack(">q", 1 << 40))


def checkpoint_beyond_queue(directory: Path) -> None:
    overwrite(directory / "config/timercheck", 16, struct.pack(">q", 1 << 40))


def checkpoint_cut(directory: Path) -> None:
    with (directory / "config/timercheck").open("r+b") as file:
        file.truncate(10)


# Transactions and POP


def records_of(directory: Path, topic: str) -> list[Record]:
    found = [one for one in records(directory) if one.message.topic.startswith(topic)]
    assert found
    return found


def replace_bytes(record: Record, field: str, old: bytes, new: bytes) -> None:
    content = getattr(record.message, field)
    assert old in content
    replace_record(record, msgspec.structs.replace(record.message, **{field: content.replace(old, new, 1)}))


def op_without_numbers(directory: Path) -> None:
    replace_bytes(records_of(directory, "RMQ_SYS_TRANS_OP")[0], "body", b"0", b"x")


def op_with_another_tag(directory: Path) -> None:
    replace_bytes(records_of(directory, "RMQ_SYS_TRANS_OP")[0], "properties", b"TAGS\x01d", b"TAGS\x01e")


def op_of_a_later_half(directory: Path) -> None:
    replace_bytes(records_of(directory, "RMQ_SYS_TRANS_OP")[0], "body", b"0", b"9")


def half_without_a_topic(directory: Path) -> None:
    half = records_of(directory, "RMQ_SYS_TRANS_HALF")[2]
    replace_bytes(half, "properties", b"REAL_TOPIC", b"REAL_TOPIX")


def half_without_a_queue(directory: Path) -> None:
    replace_bytes(
        records_of(directory, "RMQ_SYS_TRANS_HALF")[2], "properties", b"REAL_QID\x011", b"REAL_QID\x01x"
    )


def half_passed_by_the_check(directory: Path) -> None:
    def change(parsed: dict[str, Any]) -> None:
        parsed["offsetTable"]["RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"] = {"0": 3}

    edit(directory, "consumerOffset.json", change)


def revive_record(directory: Path, tag: bytes) -> Record:
    return next(
        one
        for one in records_of(directory, "rmq_sys_REVIVE_LOG_")
        if b"TAGS\x01" + tag in one.message.properties
    )


def checkpoint_without_start(directory: Path) -> None:
    replace_bytes(revive_record(directory, b"ck"), "body", b'"so"', b'"xx"')


def checkpoint_of_no_kind(directory: Path) -> None:
    replace_bytes(revive_record(directory, b"ck"), "properties", b"TAGS\x01ck", b"TAGS\x01xx")


def checkpoint_beyond_its_queue(directory: Path) -> None:
    replace_bytes(revive_record(directory, b"ck"), "body", b'"so":0', b'"so":8')


def acknowledgement_beyond_its_queue(directory: Path) -> None:
    replace_bytes(revive_record(directory, b"ack"), "body", b'"ao":0', b'"ao":8')


# State files


def edit(directory: Path, name: str, change: Callable[[Any], None]) -> None:
    path = directory / "config" / name
    parsed = fastjson.loads(path.read_bytes())
    change(parsed)
    path.write_text(json.dumps(parsed))


def order_beyond_its_queue(directory: Path) -> None:
    edit(directory, "consumerOrderInfo.json", lambda parsed: entry(parsed["table"]).update(o=[1000]))


def order_not_rising(directory: Path) -> None:
    edit(directory, "consumerOrderInfo.json", lambda parsed: entry(parsed["table"]).update(o=[0, 2, 1]))


def order_acknowledges_too_much(directory: Path) -> None:
    edit(directory, "consumerOrderInfo.json", lambda parsed: entry(parsed["table"]).update(cm=1 << 40))


def entry(table: dict[str, Any]) -> dict[str, Any]:
    """The only entry of a table with two levels of keys."""
    inner: dict[str, Any] = next(iter(next(iter(table.values())).values()))
    return inner


def filter_of(parsed: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = parsed["filterDataByTopic"]["T"]["groupFilterData"]["readers"]
    return found


def filter_without_expression(directory: Path) -> None:
    edit(directory, "consumerFilter.json", lambda parsed: filter_of(parsed).pop("expression"))


def filter_of_another_group(directory: Path) -> None:
    edit(directory, "consumerFilter.json", lambda parsed: filter_of(parsed).update(consumerGroup="other"))


def filter_beyond_its_bit_map(directory: Path) -> None:
    def change(parsed: dict[str, Any]) -> None:
        filter_of(parsed)["bloomFilterData"]["bitPos"][0] = 1 << 30

    edit(directory, "consumerFilter.json", change)


def mode_of_another_group(directory: Path) -> None:
    def change(parsed: dict[str, Any]) -> None:
        entry(parsed["messageRequestModeMap"])["consumerGroup"] = "other"

    edit(directory, "messageRequestMode.json", change)


def mapping_items(parsed: dict[str, Any]) -> list[dict[str, Any]]:
    hosted = parsed["topicQueueMappingInfoMap"]["static"]["hostedQueues"]
    found: list[dict[str, Any]] = next(iter(hosted.values()))
    return found


def mapping_with_equal_generations(directory: Path) -> None:
    edit(directory, "topicQueueMapping.json", lambda parsed: mapping_items(parsed)[1].update(gen=0))


def mapping_that_overlaps(directory: Path) -> None:
    edit(directory, "topicQueueMapping.json", lambda parsed: mapping_items(parsed)[1].update(logicOffset=5))


def mapping_of_too_many_queues(directory: Path) -> None:
    def change(parsed: dict[str, Any]) -> None:
        parsed["topicQueueMappingInfoMap"]["static"]["totalQueues"] = 0

    edit(directory, "topicQueueMapping.json", change)


def user_of_unknown_type(directory: Path) -> None:
    edit(directory, "auth.json", lambda parsed: parsed["users"][0].update(userType="King"))


def acl_with_unknown_action(directory: Path) -> None:
    def change(parsed: dict[str, Any]) -> None:
        parsed["acls"][0]["policies"][0]["entries"][0]["actions"] = ["Dance"]

    edit(directory, "auth.json", change)


def acl_without_user(directory: Path) -> None:
    edit(directory, "auth.json", lambda parsed: parsed["users"].clear())


# Extensions


def extension_file(directory: Path) -> Path:
    return next((directory / "consumequeue_ext/T/0").iterdir())


def extension_unit_size(directory: Path) -> None:
    overwrite(extension_file(directory), 0, struct.pack(">h", 5))


def extension_unit_tag(directory: Path) -> None:
    overwrite(extension_file(directory), 2, struct.pack(">q", 4711))


def extension_unit_time(directory: Path) -> None:
    overwrite(extension_file(directory), 10, struct.pack(">q", 4711))


DAMAGES: dict[str, tuple[Damage, ...]] = {
    "timer.broken-wheel": (wheel_cut, slot_at_another_place),
    "timer.wrong-slot": (slot_of_another_unit, slot_emptied, wheel_emptied, timer_log_lost),
    "timer.broken-chain": (chain_broken,),
    "timer.broken-unit": (unit_emptied,),
    "timer.missing-file": (timer_file_missing,),
    "timer.no-record": (unit_of_no_record,),
    "timer.missing-unit": (unit_missing,),
    "timer.checkpoint-ahead": (checkpoint_beyond_log, checkpoint_beyond_queue),
    "state.unreadable": (checkpoint_cut,),
    "transaction.broken-op": (op_without_numbers, op_with_another_tag),
    "transaction.op-without-half": (op_of_a_later_half,),
    "transaction.broken-half": (half_without_a_topic, half_without_a_queue),
    "transaction.unended": (half_passed_by_the_check,),
    "pop.broken-record": (checkpoint_without_start, checkpoint_of_no_kind),
    "pop.record-ahead": (checkpoint_beyond_its_queue, acknowledgement_beyond_its_queue),
    "pop.order-ahead": (order_beyond_its_queue,),
    "pop.broken-order": (order_not_rising, order_acknowledges_too_much),
    "filter.broken-entry": (
        filter_without_expression,
        filter_of_another_group,
        filter_beyond_its_bit_map,
    ),
    "request-mode.broken-entry": (mode_of_another_group,),
    "static-topic.broken-mapping": (
        mapping_with_equal_generations,
        mapping_that_overlaps,
        mapping_of_too_many_queues,
    ),
    "auth.broken-entry": (user_of_unknown_type, acl_with_unknown_action),
    "auth.unknown-user": (acl_without_user,),
    "extension.broken-unit": (extension_unit_size,),
    "extension.wrong-unit": (extension_unit_tag, extension_unit_time),
}
ALSO = {
    slot_at_another_place: {"timer.wrong-slot"},
    unit_of_no_record: {"timer.missing-unit"},
    timer_log_lost: {"timer.missing-unit", "timer.checkpoint-ahead"},
    op_with_another_tag: {"extension.wrong-unit"},
    checkpoint_of_no_kind: {"extension.wrong-unit"},
}
"""Kinds that follow from the same damage."""


def test_a_healthy_store_has_no_findings_but_a_note_of_its_pending_transaction(healthy: Path) -> None:
    assert [(row["kind"], row["detail"]) for row in found_in(healthy)] == [
        ("transaction.pending", "1 transactions wait for their end or for a check")
    ]


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        pytest.param(kind, damage, id=damage.__name__)
        for kind, damages in DAMAGES.items()
        for damage in damages
    ],
)
def test_damage_is_named(kind: str, damage: Damage, copy: Path) -> None:
    damage(copy)
    kinds = {row["kind"] for row in inprocess.without_notes(found_in(copy))}
    assert kind in kinds
    assert kinds <= {kind} | ALSO.get(damage, set())


@pytest.mark.parametrize("name", sorted(STATE_FILES))
def test_a_state_file_that_cannot_be_read_is_named(name: str, copy: Path) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:-3])
    found = inprocess.without_notes(found_in(copy))
    assert [(row["kind"], row["file"]) for row in found] == [("state.unreadable", str(path))]


def test_an_extension_that_lost_units_is_a_note(copy: Path) -> None:
    extension_file(copy).unlink()
    found = [row for row in found_in(copy) if row["kind"] == "extension.missing-unit"]
    assert [(row["severity"], row["topic"], row["detail"]) for row in found] == [("note", "T", "4 units")]


def test_a_running_broker_is_not_accused_of_what_it_is_about_to_write(copy: Path) -> None:
    """Its wheel, checkpoint and offsets change while they are read."""
    (copy / "abort").touch()
    for damage in (slot_emptied, unit_of_no_record, checkpoint_beyond_log, half_passed_by_the_check):
        damage(copy)
    (copy / "timerwheel").write_bytes(b"")
    assert inprocess.without_notes(found_in(copy)) == []


def test_findings_of_one_kind_are_bounded(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_reader, "LISTED_MAX", 1)
    for path, at, fields in timer_units(copy)[-3:]:
        overwrite(path, at + 28, struct.pack(">q", fields[5] + 1))
    found = inprocess.without_notes(found_in(copy))
    assert [row["kind"] for row in found].count("timer.no-record") == 1
    assert "2 of timer.no-record" in [row["detail"] for row in found if row["kind"] == "more"]


def test_the_data_sources_return_what_the_files_contain(healthy: Path) -> None:
    replicas = audited(healthy)
    units = inprocess.rows(TimerLogReader(replicas, {}))
    expected = timer_units(healthy)
    assert [(row["position"], row["physical_offset"]) for row in units] == [
        (int(path.name) + at, fields[5]) for path, at, fields in expected
    ]
    slots = inprocess.rows(TimerWheelReader(replicas, {}))
    assert sum(row["num"] for row in slots) == len(expected)
    assert {row["last"] for row in slots} <= {row["position"] for row in units}
    extension = [row for row in inprocess.rows(QueueExtensionReader(replicas, {})) if row["topic"] == "T"]
    assert len(extension) == 5
    assert all(row["bit_map"] and row["fault"] is None for row in extension)
    state = inprocess.rows(StateReader(replicas, {}))
    assert {row["file"] for row in state} == set(STATE_FILES)
    assert not any(row["fault"] for row in state)
    assert "secret" not in str(state)


def test_units_that_share_a_slot_are_linked_in_their_order() -> None:
    chains = timer_files.SlotChains(1000)

    def units(*changes: tuple[int, int]) -> Any:
        rows = [
            struct.pack(">iqiqiqiiq", 52, previous, 1, 10_000, delay, 0, 1, 0, 0)
            for previous, delay in changes
        ]
        return timer_files.decode_units(np.frombuffer(b"".join(rows), np.uint8))

    wrong, _ = chains.add(np.arange(4) * 52, units((-1, 0), (0, 0), (-1, 5000), (52, 500)))
    assert wrong.tolist() == []
    one_turn = SLOTS * 1000
    wrong, expected = chains.add(np.arange(4, 7) * 52, units((156, 0), (0, 5000), (-1, one_turn)))
    assert (wrong.tolist(), expected.tolist()) == ([1], [104])
