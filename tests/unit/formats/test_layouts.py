"""Each format has the bytes that RocketMQ's classes write. The bytes are spelled out on purpose: a change of
a layout changes them."""

from __future__ import annotations

import zlib

import pytest

from epochmq_formats import (
    abort_file,
    batch_unit,
    dledger_log,
    dledger_peer_files,
    extension_unit,
    index_file,
    pending_file,
    queue_unit,
    store_checkpoint,
    timer_checkpoint,
    timer_log,
    timer_wheel,
)
from epochmq_protocol import message, record_layout
from epochmq_protocol import message_const as const
from epochmq_protocol.dledger import DLedgerEntry
from epochmq_protocol.epoch_entries import EpochEntry, decode_epoch_entries, encode_epoch_entries
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.topics import DataVersion
from epochmq_store import record

V6_HOST = bytes(range(16)) + b"\0\0\x2a\x9f"
RECORD = bytes.fromhex(
    "0000006a" "daa320a7" "3610a686" "00000003" "00000007" "0000000000000009" "0000000000001000"
    "00000000" "0000000000000064" "0a00000100002a9f" "00000000000000c8" "0a00000200002a9f"
    "00000002" "0000000000000000" "00000005" "68656c6c6f" "03" "746f70" "0007" "54414753017402"
)  # fmt: skip
"""The message `hello` of topic `top` with TAGS=t."""


def test_a_unit_of_a_consume_queue() -> None:
    unit = queue_unit.UNIT.pack(0x0102030405060708, 0x11121314, -2)
    assert unit.hex() == "010203040506070811121314fffffffffffffffe"
    assert queue_unit.UNIT.unpack(unit) == (0x0102030405060708, 0x11121314, -2)
    assert (queue_unit.PHYSICAL_AT, queue_unit.SIZE_AT, queue_unit.TAGS_AT) == (0, 8, 12)
    assert queue_unit.UNIT.size == queue_unit.UNIT_BYTES == 20
    assert queue_unit.POSITION_AND_SIZE.unpack_from(unit) == (0x0102030405060708, 0x11121314)
    assert queue_unit.positions_and_sizes(2).unpack(unit * 2) == (0x0102030405060708, 0x11121314) * 2
    assert queue_unit.PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"


def test_a_unit_of_a_batch_consume_queue() -> None:
    unit = batch_unit.BatchUnit(1, 2, 3, 4, 5, 6)
    data = batch_unit.UNIT.pack(*unit)
    assert data.hex() == (
        "0000000000000001" "00000002" "0000000000000003" "0000000000000004" "0000000000000005"
        "0006" "ffffffff" "00000000"
    )  # fmt: skip
    assert batch_unit.BatchUnit._make(batch_unit.UNIT.unpack(data)) == unit
    assert batch_unit.UNIT.size == batch_unit.UNIT_BYTES == 46
    assert batch_unit.END_UNIT.hex() == "f" * 16 + "0" * 60 + "f" * 8 + "0" * 8
    assert unit.follows(None)
    assert not batch_unit.BatchUnit._make(batch_unit.UNIT.unpack(batch_unit.END_UNIT)).follows(None)


def test_a_unit_of_an_extension() -> None:
    unit = extension_unit.ExtensionUnit(3, 4, b"\xaa\xbb")
    data = extension_unit.encode_unit(unit)
    assert data.hex() == "0016000000000000000300000000000000040002aabb"
    assert extension_unit.decode_unit(data + b"more") == unit
    assert extension_unit.decode_unit(bytes(20)) is None
    assert extension_unit.END_MARK.hex() == "ffff"
    for torn in (data[:10], data[:21], b"\0\x15" + data[2:]):
        with pytest.raises(ValueError, match="bytes"):
            extension_unit.decode_unit(torn)
    assert extension_unit.is_address(extension_unit.ADDRESS_ZERO)
    assert not extension_unit.is_address(-(1 << 31))


def test_header_slot_and_entry_of_an_index_file() -> None:
    header = index_file.HEADER.pack(1, 2, 3, 4, 5, 6)
    assert header.hex() == (
        "0000000000000001" "0000000000000002" "0000000000000003" "0000000000000004" "00000005" "00000006"
    )  # fmt: skip
    positions = index_file.BEGIN_PHYSICAL_AT, index_file.END_PHYSICAL_AT, index_file.COUNT_AT
    assert positions == (16, 24, 36)
    assert (index_file.HEADER.size, index_file.SLOT.size, index_file.ENTRY.size) == (40, 4, 20)
    assert (index_file.HEADER_BYTES, index_file.SLOT_BYTES, index_file.ENTRY_BYTES) == (40, 4, 20)
    entry = index_file.ENTRY.pack(7, 8, 9, 10)
    assert entry.hex() == "000000070000000000000008000000090000000a"
    assert index_file.ENTRY_WITH_PACKED_NUMBER.pack(7, 8, 9, b"\0\0\0\x0a") == entry
    fields = index_file.HASH_AT, index_file.PHYSICAL_AT, index_file.SECONDS_AT, index_file.PREVIOUS_AT
    assert fields == (0, 4, 12, 16)


def test_the_checkpoint_of_a_store() -> None:
    data = store_checkpoint.FIELDS.pack(1, 2, 3, 4, 5)
    assert data.hex() == "".join(f"{number:016x}" for number in (1, 2, 3, 4, 5))
    assert store_checkpoint.FIELD.unpack_from(data, store_checkpoint.CONFIRM_PHY_OFFSET_AT) == (5,)
    assert store_checkpoint.FIELD.unpack_from(data, store_checkpoint.PHYSIC_MSG_TIMESTAMP_AT) == (1,)


def test_a_unit_and_the_blank_of_a_timer_log() -> None:
    fields = (52, -1, timer_log.MAGIC_DELETE, 1000, 50, 4096, 111, -3, 0)
    data = timer_log.UNIT.pack(*fields)
    assert data.hex() == (
        "00000034" "ffffffffffffffff" "00000004" "00000000000003e8" "00000032" "0000000000001000"
        "0000006f" "fffffffd" "0000000000000000"
    )  # fmt: skip
    assert timer_log.UNIT.unpack(data) == fields
    assert timer_log.UNIT.size == timer_log.UNIT_BYTES == 52
    assert timer_log.is_unit(fields)
    assert not timer_log.is_unit((0,) * 9)
    blank = timer_log.encode_blank(100)
    assert blank.hex() == "000000640000000000000000cbd43194"
    assert timer_log.is_blank(timer_log.UNIT.unpack(blank.ljust(52, b"\0")))
    assert timer_log.units_end(2 * 52 + 16) == 104
    assert timer_log.units_end(2 * 52 + 15) == 52
    assert timer_log.units_end(3) == 0


def test_a_slot_of_a_timer_wheel() -> None:
    data = timer_wheel.SLOT.pack(1, 2, 3, 4, 5)
    assert data.hex() == "0000000000000001000000000000000200000000000000030000000400000005"
    assert timer_wheel.SLOT_TIME.unpack_from(data) == (1,)
    assert timer_wheel.WHEEL_BYTES == 2 * 7 * 86_400 * 32


def test_the_checkpoint_of_the_timer() -> None:
    version = DataVersion(counter=7, state_version=5, timestamp=6)
    checkpoint = timer_checkpoint.TimerCheckpoint(
        read_time_ms=1, log_flushed=2, queue_offset=3, master_queue_offset=4, data_version=version
    )
    data = checkpoint.encode()
    assert data.hex() == "".join(f"{number:016x}" for number in range(1, 8))
    assert timer_checkpoint.TimerCheckpoint.decode(data) == checkpoint
    assert timer_checkpoint.TimerCheckpoint.decode(data[:32]).data_version == DataVersion()
    with pytest.raises(ValueError, match="56 bytes"):
        timer_checkpoint.TimerCheckpoint.decode(data[:31])


def test_a_record_and_its_head() -> None:
    hosts = bytes.fromhex("0a00000100002a9f"), bytes.fromhex("0a00000200002a9f")
    written = message.MessageExt(
        "top", b"hello", b"TAGS\x01t\x02", queue_id=3, flag=7, queue_offset=9, physical_offset=4096,
        born_timestamp=100, born_host=hosts[0], store_timestamp=200, store_host=hosts[1], reconsume_times=2,
    )  # fmt: skip
    assert message.encode_record(written) == RECORD
    read = message.decode_record(RECORD)
    assert (read.topic, read.body, read.properties) == ("top", b"hello", b"TAGS\x01t\x02")
    parsed = record.parse(RECORD, 0, len(RECORD), 4096, (), check_crc=True)
    assert isinstance(parsed, record.DispatchRequest)
    assert (parsed.topic, parsed.queue_id, parsed.queue_offset, parsed.size) == ("top", 3, 9, len(RECORD))
    fields = record_layout.HEAD_V4.unpack_from(RECORD)
    numbers = [
        record_layout.SIZE, record_layout.QUEUE_ID, record_layout.FLAG, record_layout.QUEUE_OFFSET,
        record_layout.PHYSICAL_OFFSET, record_layout.SYS_FLAG, record_layout.BORN_TIMESTAMP,
        record_layout.STORE_TIMESTAMP, record_layout.RECONSUME_TIMES, record_layout.BODY_SIZE,
    ]  # fmt: skip
    assert [fields[number] for number in numbers] == [106, 3, 7, 9, 4096, 0, 100, 200, 2, 5]
    assert (fields[record_layout.BORN_HOST], fields[record_layout.STORE_HOST]) == hosts


def test_the_positions_of_the_fields_of_a_head() -> None:
    positions = [
        record_layout.MAGIC_AT, record_layout.BODY_CRC_AT, record_layout.QUEUE_ID_AT, record_layout.FLAG_AT,
        record_layout.QUEUE_OFFSET_AT, record_layout.PHYSICAL_OFFSET_AT, record_layout.SYS_FLAG_AT,
        record_layout.BORN_TIMESTAMP_AT, record_layout.BORN_HOST_AT, record_layout.STORE_TIMESTAMP_AT,
        record_layout.STORE_HOST_AT, record_layout.BODY_SIZE_AT, record_layout.HEAD_BYTES,
    ]  # fmt: skip
    assert positions == [4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 84, 88]
    assert record_layout.RECORD_OVERHEAD == 91
    some = record_layout.fields_of_head(
        record_layout.MAGIC, record_layout.STORE_TIMESTAMP, record_layout.BODY_SIZE
    )
    assert some.unpack_from(RECORD) == (const.MAGIC_V1, 200, 5)


@pytest.mark.parametrize("born", [8, 20])
@pytest.mark.parametrize("store", [8, 20])
def test_a_head_with_hosts_of_both_sizes(born: int, store: int) -> None:
    written = message.MessageExt("t", b"b", born_host=V6_HOST[-born:], store_host=V6_HOST[-store:])
    data = message.encode_record(written)
    head = record_layout.HEADS[born, store]
    flags = data[39]
    assert head is record_layout.HEADS_BY_FLAG[flags]
    assert head.size == 72 + born + store
    assert flags == (0x10 if born == 20 else 0) | (0x20 if store == 20 else 0)
    assert data[48 : 48 + born] == written.born_host
    assert data[56 + born : 56 + born + store] == written.store_host
    assert record.body_at(data, 0) == b"b"
    assert record.body_size_at(data, 0) == 1


def test_a_blank_record() -> None:
    blank = record_layout.SIZE_AND_MAGIC.pack(100, const.BLANK_MAGIC)
    assert blank.hex() == "00000064cbd43194"
    assert len(blank) == record_layout.BLANK_BYTES
    assert record.parse(blank, 0, 8, 0, (), check_crc=True) == record.BLANK


def test_the_name_of_a_stored_property() -> None:
    assert const.stored_name("TAGS") == b"TAGS\x01"


def test_an_entry_its_index_unit_and_a_filler() -> None:
    entry = DLedgerEntry(7, 8, 9, b"body", 52, channel=3, chain_crc=4, body_crc=-5)
    data = dledger_log.encode_entry(entry)
    assert data.hex() == (
        "00000001" "00000034" "0000000000000007" "0000000000000008" "0000000000000009" "00000003" "00000004"
        "fffffffb" "00000004" "626f6479"
    )  # fmt: skip
    assert dledger_log.decode_entry(data) == entry
    assert dledger_log.ENTRY_HEADER.size == dledger_log.ENTRY_HEADER_SIZE == 48
    assert dledger_log.ENTRY_HEADER_UNSIGNED.unpack_from(data)[7] == (1 << 32) - 5
    assert dledger_log.ENTRY_HEADER_START.unpack_from(data) == (1, 52, 7, 8, 9)
    positions = [
        dledger_log.ENTRY_SIZE_AT, dledger_log.ENTRY_INDEX_AT, dledger_log.ENTRY_TERM_AT,
        dledger_log.ENTRY_POSITION_AT, dledger_log.CHAIN_CRC_AT, dledger_log.BODY_SIZE_AT,
    ]  # fmt: skip
    assert positions == [4, 8, 16, 24, 36, 44]
    unit = dledger_log.encode_index_unit(entry)
    assert unit.hex() == "0000000100000000000000090000003400000000000000070000000000000008"
    assert dledger_log.decode_index_unit(unit) == (1, 9, 52, 7, 8)
    assert dledger_log.INDEX_UNIT.size == dledger_log.INDEX_UNIT_SIZE == 32
    assert dledger_log.FILLER.pack(dledger_log.FILLER_MAGIC, 60).hex() == "ffffffff0000003c"
    for torn in (data[:47], data[:51], b"\2" + data[1:]):
        with pytest.raises(RemoteProtocolError):
            dledger_log.decode_entry(torn)


def test_the_mark_and_the_snapshot_of_a_peer() -> None:
    mark = dledger_peer_files.encode_mark(258)
    assert mark.hex() == f"0000000000000102{zlib.crc32(bytes.fromhex('0000000000000102')):08x}"
    assert dledger_peer_files.decode_mark(mark) == 258
    assert dledger_peer_files.decode_mark(dledger_peer_files.NO_MARK) is None
    assert dledger_peer_files.decode_mark(mark[:7] + b"\3" + mark[8:]) is None
    start = dledger_peer_files.encode_snapshot_header(b"{}")
    assert start == b"epochmq snapshot 1\n\0\0\0\2" + zlib.crc32(b"{}").to_bytes(4, "big") + b"{}"
    assert dledger_peer_files.decode_snapshot_start(start) == (2, zlib.crc32(b"{}"))
    assert dledger_peer_files.decode_snapshot_start(start[:-3]) is None
    assert dledger_peer_files.decode_snapshot_start(b"E" + start[1:]) is None


def test_a_slot_of_a_pending_file() -> None:
    boot = pending_file.boot_field("b")
    slot = pending_file.encode_slot(boot, 2, b"{}")
    covered = b"b" + b" " * 35 + bytes.fromhex("000000000000000200000002")
    crc = zlib.crc32(covered + b"{}")
    assert slot == b"epmqpend" + covered + crc.to_bytes(4, "big") + b"{}"
    assert pending_file.decode_header(slot, boot) == (2, 2, crc)
    assert pending_file.decode_header(slot, pending_file.boot_field("c")) is None
    assert pending_file.decode_header(slot[:59], boot) is None
    assert pending_file.is_content(b"{}", boot, 2, 2, crc)
    assert not pending_file.is_content(b"{", boot, 2, 2, crc)


def test_the_abort_file() -> None:
    identity = abort_file.FileIdentity(1, 2, 3)
    left = abort_file.AbortRecord(
        boot_id="boot", identity=identity, acknowledged_unflushed=True, flush_failed=True,
        inherited=abort_file.TailState.UNKNOWN, recovering=True, dispatched_until=4096,
    )  # fmt: skip
    data = abort_file.encode(17, left)
    assert data == (
        b"17\nboot\nfile=1:2:3\nacknowledged=before-flush\nflush=failed\ntail=UNKNOWN\n"
        b"recovery=unfinished\ndispatched=4096\n"
    )
    assert abort_file.decode(data) == left
    of_rocketmq = abort_file.decode(b"17")
    assert (of_rocketmq.boot_id, of_rocketmq.identity) == ("", None)
    assert of_rocketmq.acknowledged_unflushed


def test_epoch_entries() -> None:
    entries = [EpochEntry(1, 0), EpochEntry(2, 4096)]
    data = encode_epoch_entries(entries)
    assert data.hex() == "000000010000000000000000000000020000000000001000"
    assert decode_epoch_entries(data) == entries
