"""Tests the append path: records, rolling to the next file, limits, batches, and the equality of files that
are written by appending and by parsing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochmq_protocol import javahash
from epochmq_protocol import message as records
from epochmq_store.appending.appender import BatchMessage
from epochmq_store.statuses import PutStatus
from tests.unit.store.support import (
    DELAYS_MS,
    HOST,
    HOST_V6,
    LOG_FILE,
    Message,
    file_contents,
    index_contents,
    open_store,
    put,
    put_all,
    random_messages,
    read_log,
    receive,
    small_config,
)

TAG_A = javahash.tags_code("TagA")


def test_a_record_contains_all_given_fields(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    message = Message(
        body=b"body", properties={"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "U" * 32}, flag=-7, sys_flag=1
    )
    before = store.append(
        store.queue("orders", 3),
        body=message.body,
        properties=records.format_properties(message.properties),
        born_timestamp=123,
        born_host=HOST,
        flag=-7,
        sys_flag=1,
        reconsume_times=5,
        prepared_offset=99,
        tags_code=TAG_A,
    )
    assert before[:3] == (PutStatus.PUT_OK, 0, 0)
    found = records.decode_record(store.read(0) or b"")
    assert (found.topic, found.queue_id, found.body, found.flag) == ("orders", 3, b"body", -7)
    assert records.parse_properties(found.properties) == message.properties
    assert (found.born_timestamp, found.born_host, found.store_host) == (123, HOST, store.appender.store_host)
    assert (found.reconsume_times, found.prepared_transaction_offset, found.sys_flag) == (5, 99, 1)
    assert (found.store_size, found.queue_offset, found.physical_offset) == (before[3], 0, 0)
    assert store.queue("orders", 3).unit(0) == (0, before[3], TAG_A)
    store.stop()


def test_store_times_never_decrease(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    times = iter([1000.0, 999.0, 1001.5])
    store.appender._clock = lambda: next(times)
    put_all(store, [Message()] * 3)
    assert [found.store_timestamp for found in read_log(tmp_path)] == [1_000_000, 1_000_000, 1_001_500]
    store.stop()


def test_a_record_that_does_not_fit_goes_to_the_next_file_after_a_blank_record(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    size = put(store, Message(body=bytes(1000)))[3]
    per_file = (LOG_FILE - 8) // size
    put_all(store, [Message(body=bytes(1000))] * per_file)
    first, second = sorted((tmp_path / "commitlog").iterdir())[:2]
    assert (first.name, second.name) == ("0" * 20, f"{LOG_FILE:020d}")
    rest = LOG_FILE - per_file * size
    blank = first.read_bytes()[per_file * size :]
    assert blank == rest.to_bytes(4, "big") + b"\xcb\xd4\x31\x94" + bytes(rest - 8)
    assert store.max_phy_offset == LOG_FILE + size
    assert store.queue("orders", 0).unit(per_file) == (LOG_FILE, size, 0)
    store.stop()


def test_a_record_may_leave_exactly_eight_bytes(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_message_size=LOG_FILE)
    overhead = 91 + len("orders")
    put_all(store, [Message(body=bytes(LOG_FILE - 8 - overhead))])
    assert store.max_phy_offset == LOG_FILE - 8
    assert put(store, Message(body=bytes(LOG_FILE - 7 - overhead)))[0] is PutStatus.MESSAGE_ILLEGAL
    put_all(store, [Message()])
    assert store.queue("orders", 0).unit(1) == (LOG_FILE, overhead + 5, 0)
    store.stop()


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (Message(body=bytes(2049)), PutStatus.MESSAGE_ILLEGAL),
        (Message(body=bytes(2048)), PutStatus.PUT_OK),
        (Message(properties={"a": "b" * 32768}), PutStatus.PROPERTIES_SIZE_EXCEEDED),
        (Message(topic="é" * 100), PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_messages_beyond_the_size_limits_are_rejected(
    tmp_path: Path, message: Message, status: PutStatus
) -> None:
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 20)
    assert put(store, message)[0] is status
    assert store.max_phy_offset > 0 if status is PutStatus.PUT_OK else store.max_phy_offset == 0
    store.stop()


def test_long_topics_make_v2_records(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(topic="%RETRY%" + "g" * 130)])
    (found,) = read_log(tmp_path)
    assert found.magic == records.MAGIC_V2
    assert found.topic == "%RETRY%" + "g" * 130
    store.stop()


def test_ipv6_hosts_set_their_bits_and_ipv4_hosts_clear_them(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(born_host=HOST_V6), Message(sys_flag=0x30)])
    store.appender.store_host = HOST_V6
    put_all(store, [Message(), Message(born_host=HOST_V6)])
    assert [found.sys_flag for found in read_log(tmp_path)] == [0x10, 0, 0x20, 0x30]
    assert [len(found.store_host) for found in read_log(tmp_path)] == [8, 8, 20, 20]
    store.stop()


def test_half_and_rolled_back_messages_get_no_unit(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    key = {"UNIQ_KEY": "U" * 32}
    done = put_all(store, [Message(sys_flag=flag, properties=key) for flag in (0, 4, 12, 8)])
    assert [offset for _, _, offset, _ in done] == [0, 0, 0, 1]
    assert store.queue("orders", 0).max_offset == 2
    # The index has all messages except the rolled back one.
    assert store.reader.query("orders", "U" * 32, 10, 0, 1 << 60).count == 3
    store.stop()


def test_the_tag_code_of_a_delayed_message_is_its_delivery_time(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.appender._clock = lambda: 5000.0
    for level in ("1", "2", "3", "17", "0", "-1", "x"):
        put_all(store, [Message(topic="SCHEDULE_TOPIC_XXXX", properties={"DELAY": level, "TAGS": "TagA"})])
    codes = [code for _, _, code in store.queue("SCHEDULE_TOPIC_XXXX", 0).units(0, 10)]
    due = [5_000_000 + delay for delay in DELAYS_MS]
    assert codes == [*due, due[-1], TAG_A, TAG_A, TAG_A]
    store.stop()


def test_a_batch_is_stored_in_one_file_with_one_store_time(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(body=bytes(2000))] * 3)
    elements = [
        BatchMessage(b"x" * n, b"TAGS\x01TagA\x02", flag=n, tags_code=TAG_A, uniq_key=None, keys="k")
        for n in (500, 200, 1000)
    ]
    queue = store.queue("orders", 1)
    status, places, first, size = store.append_batch(
        queue, elements, born_timestamp=5, born_host=HOST, sys_flag=1
    )
    assert (status, first, len(places)) == (PutStatus.PUT_OK, 0, 3)
    assert places[0] == LOG_FILE
    found = list(read_log(tmp_path))[3:]
    assert [(one.body, one.flag, one.queue_offset, one.physical_offset) for one in found] == [
        (element.body, element.flag, offset, place)
        for offset, (element, place) in enumerate(zip(elements, places, strict=True))
    ]
    assert len({one.store_timestamp for one in found}) == 1
    assert sum(one.store_size for one in found) == size
    assert [code for _, _, code in queue.units(0, 9)] == [TAG_A] * 3
    assert store.reader.query("orders", "k", 10, 0, 1 << 60).count == 3
    store.stop()


def test_batches_that_are_too_large_or_of_transaction_types_are_illegal(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    ask = {"born_timestamp": 0, "born_host": HOST}
    assert (
        store.append_batch(queue, [BatchMessage(b"", b"")], sys_flag=4, **ask)[0] is PutStatus.MESSAGE_ILLEGAL
    )
    assert store.append_batch(queue, [], **ask)[0] is PutStatus.MESSAGE_ILLEGAL
    large = [BatchMessage(bytes(2000), b"")] * 5
    assert store.append_batch(queue, large, **ask)[0] is PutStatus.MESSAGE_ILLEGAL
    long = [BatchMessage(b"", bytes(32768))]
    assert store.append_batch(queue, long, **ask)[0] is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert (queue.max_offset, store.max_phy_offset) == (0, 0)
    store.stop()


def test_a_stopped_store_rejects_messages(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    store.stop()
    rejected = store.append(queue, body=b"", properties=b"", born_timestamp=0, born_host=HOST)
    assert rejected[0] is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.append_batch(queue, [BatchMessage(b"", b"")], born_timestamp=0, born_host=HOST)[0] is (
        PutStatus.SERVICE_NOT_AVAILABLE
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), cut=st.integers(50, 4096))
def test_master_and_replica_write_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cut: int
) -> None:
    """A master writes queues and index while it appends, a replica by parsing replicated bytes in blocks of
    any size. Both write the same bytes."""
    master_path, replica_path = tmp_path_factory.mktemp("master"), tmp_path_factory.mktemp("replica")
    master = open_store(master_path)
    put_all(master, random_messages(seed, 40))
    replica = open_store(replica_path)
    at = 0
    while at < master.max_phy_offset:
        size = min(cut, LOG_FILE - at % LOG_FILE, master.max_phy_offset - at)
        receive(replica, at, master.log.read(at, size) or b"")
        at += size
    assert replica.max_phy_offset == master.max_phy_offset
    assert replica.dispatch_behind_bytes == 0
    master.stop()
    replica.stop()
    assert file_contents(replica_path, "commitlog") == file_contents(master_path, "commitlog")
    assert file_contents(replica_path, "consumequeue") == file_contents(master_path, "consumequeue")
    assert index_contents(replica_path) == index_contents(master_path)


def test_new_settings_change_limits_while_running(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.configure(small_config(tmp_path, max_message_size=10))
    assert put(store, Message(body=bytes(11)))[0] is PutStatus.MESSAGE_ILLEGAL
    store.stop()


def test_a_held_queue_takes_only_its_batch(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    appender, queue, other = store.appender, store.queue("orders", 0), store.queue("orders", 1)
    ask = {"born_timestamp": 0, "born_host": HOST}
    part = [BatchMessage(b"part", b"")] * 2
    assert store.append_batch(queue, part, **ask)[0] is PutStatus.PUT_OK
    appender.hold(queue)
    for _ in range(3):
        assert appender.append_to_held(queue, part, **ask)[0] is PutStatus.PUT_OK
        assert store.append(queue, body=b"", properties=b"", **ask)[0] is PutStatus.OS_PAGE_CACHE_BUSY
        assert store.append_batch(queue, part, **ask)[0] is PutStatus.OS_PAGE_CACHE_BUSY
        light = store.append_to_light_queues(other, [queue], body=b"", properties=b"", **ask)
        assert light[0] is PutStatus.OS_PAGE_CACHE_BUSY
        assert store.append(other, body=b"", properties=b"", **ask)[0] is PutStatus.PUT_OK
    assert (queue.max_offset, other.max_offset) == (8, 3)
    appender.release(queue)
    assert store.append(queue, body=b"", properties=b"", **ask)[:3:2] == (PutStatus.PUT_OK, 8)
    store.stop()


def test_a_rejection_ends_the_hold_of_a_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    appender, queue = store.appender, store.queue("orders", 0)
    appender.hold(queue)
    appender.reject(PutStatus.SERVICE_NOT_AVAILABLE)
    appender.reject(None)
    part = [BatchMessage(b"part", b"")]
    status, *_ = appender.append_to_held(queue, part, born_timestamp=0, born_host=HOST)
    assert (status, queue.max_offset) == (PutStatus.SERVICE_NOT_AVAILABLE, 0)
    store.stop()
