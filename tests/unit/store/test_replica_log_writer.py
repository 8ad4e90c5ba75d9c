"""Tests the store as a replica: replicated bytes, durable truncation, and the limit of what readers see."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_store.statuses import GetStatus, PutStatus
from tests.unit.store.support import (
    LOG_FILE,
    Message,
    copy_after_crash,
    open_store,
    put,
    put_all,
    random_messages,
    read_log,
    receive,
)


def test_replicated_bytes_must_start_at_the_end_of_the_log(tmp_path: Path) -> None:
    master, replica = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    put_all(master, [Message(body=bytes(1000))] * 10)
    data = master.log.read(0, 2000) or b""
    with pytest.raises(ValueError, match="inside a file"):
        receive(replica, 100, data)
    assert receive(replica, 0, data) == 1
    with pytest.raises(ValueError, match="ends at 2000"):
        receive(replica, 1999, data)
    with pytest.raises(ValueError, match="cross the end"):
        receive(replica, 2000, bytes(LOG_FILE))
    assert replica.max_phy_offset == 2000
    master.stop()
    replica.stop()


def test_a_replicas_log_may_start_at_any_file(tmp_path: Path) -> None:
    master, replica = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    done = put_all(master, [Message(body=bytes(1000))] * 20)
    data = (
        master.log.read(LOG_FILE, master.max_phy_offset - LOG_FILE)
        if master.max_phy_offset < 2 * LOG_FILE
        else (master.log.read(LOG_FILE, LOG_FILE))
    )
    assert data
    receive(replica, LOG_FILE, data)
    first = next(offset for _, physical, offset, _ in done if physical == LOG_FILE)
    queue = replica.queue("orders", 0)
    assert (queue.min_offset, replica.min_phy_offset) == (first, LOG_FILE)
    assert replica.get(queue, first, 1).count == 1
    assert replica.get(queue, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
    replica.stop()
    again = open_store(tmp_path / "b")
    queue = again.queue("orders", 0)
    assert queue.min_offset == first
    assert queue.max_offset > first
    again.stop()
    master.stop()


def test_puts_are_rejected_while_the_log_ends_with_a_torn_record(tmp_path: Path) -> None:
    master, replica = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    done = put_all(master, [Message(body=bytes(100))] * 3)
    data = master.log.read(0, master.max_phy_offset) or b""
    assert receive(replica, 0, data[:-1]) == 2
    assert replica.dispatch_behind_bytes == done[2][3] - 1
    assert put(replica, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
    replica.truncate(done[2][1])
    assert (replica.max_phy_offset, replica.dispatch_behind_bytes) == (done[2][1], 0)
    assert put(replica, Message(body=b"mine"))[2] == 2
    replica.stop()
    master.stop()


def test_truncation_applies_to_log_queues_and_index(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    messages = random_messages(1, 60)
    done = put_all(store, messages)
    with pytest.raises(ValueError, match="no record starts"):
        store.truncate(done[30][1] + 1)
    store.truncate(done[30][1])
    assert store.max_phy_offset == done[30][1]
    for key, queue in store.queues.items():
        kept = [
            offset
            for message, (_, _, offset, _) in zip(messages[:30], done[:30], strict=True)
            if (message.topic, message.queue_id) == key and not message.sys_flag & 4
        ]
        assert queue.max_offset == len(kept)
    assert len(list(read_log(tmp_path))) == 30
    for message in messages[30:]:
        found = store.reader.query(message.topic, message.properties["UNIQ_KEY"], 10, 0, 1 << 60)
        assert found.count == 0
    # The truncated records are gone from the disk, too.
    assert (
        b"".join(path.read_bytes() for path in sorted((tmp_path / "commitlog").iterdir()))[
            done[30][1] :
        ].strip(b"\0")
        == b""
    )
    # A message that replaces them is found.
    put_all(store, [Message(properties={"UNIQ_KEY": "N" * 32})])
    assert store.reader.query("orders", "N" * 32, 10, 0, 1 << 60).count == 1
    store.truncate(store.max_phy_offset + 5)
    store.stop()


def test_a_log_can_be_truncated_to_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, random_messages(2, 40))
    store.truncate(0)
    assert store.max_phy_offset == 0
    assert all(queue.max_offset == 0 for queue in store.queues.values())
    assert put(store, Message())[1:3] == (0, 0)
    store.stop()


def test_a_kill_after_a_truncation_brings_nothing_back(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    done = put_all(store, random_messages(3, 60))
    store.truncate(done[20][1])
    left = copy_after_crash(store, tmp_path / "b")
    store.stop()
    again = open_store(left)
    assert again.max_phy_offset == done[20][1]
    again.stop()


def test_readers_see_nothing_after_the_confirm_offset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    arrived: list[int] = []
    store.on_arrival.append(lambda queue, offset, tags_code: arrived.append(offset))
    store.visibility.set_confirm_offset(0)
    done = put_all(store, [Message()] * 10)
    queue = store.queue("orders", 0)
    assert store.get(queue, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    store.visibility.set_confirm_offset(done[3][1] + 5)  # in the middle of a record
    assert store.max_offset(queue) == 3
    assert store.get(queue, 0, 32).count == 3
    assert store.get(queue, 3, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert arrived == [0, 1, 2]
    store.visibility.set_confirm_offset(None)
    assert store.get(queue, 0, 32).count == 10
    assert arrived == list(range(10))
    store.stop()


def test_a_message_that_is_confirmed_before_its_dispatch_arrives_with_the_dispatch(tmp_path: Path) -> None:
    """As on a replica whose master confirms bytes at once. Nothing else need happen after that."""
    master, replica = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    done = put_all(master, [Message()] * 4)
    arrived: list[int] = []
    replica.on_arrival.append(lambda queue, offset, tags_code: arrived.append(offset))
    replica.visibility.set_confirm_offset(done[3][1])
    receive(replica, 0, master.log.read(0, master.max_phy_offset) or b"")
    assert arrived == [0, 1, 2]
    replica.visibility.set_confirm_offset(master.max_phy_offset)
    assert arrived == [0, 1, 2, 3]
    for store in (master, replica):
        store.stop()


def test_a_topic_created_again_starts_at_offset_zero_on_replicas(tmp_path: Path) -> None:
    """The master removes the queues of a deleted topic. A replica sees only the log, and must not mix the old
    and the new queue."""
    master, replica = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    put_all(master, [Message()] * 5)
    master.delete_topic("orders")
    put_all(master, [Message(body=b"new")] * 3)
    receive(replica, 0, master.log.read(0, master.max_phy_offset) or b"")
    assert replica.queue("orders", 0).max_offset == 3
    assert (
        replica.get(replica.queue("orders", 0), 0, 9).body == master.get(master.queue("orders", 0), 0, 9).body
    )
    left = copy_after_crash(master, tmp_path / "c")
    recovered = open_store(left)
    assert recovered.queue("orders", 0).max_offset == 3
    for store in (master, replica, recovered):
        store.stop()
