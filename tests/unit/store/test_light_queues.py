"""Light message queues in the store: the same units on the append path, on a replica and after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_protocol import javahash
from epochmq_protocol import message as records
from epochmq_store.appending.appender import AppendResult
from epochmq_store.files.mapped_file import DiskFullError
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.light_queues import light_queue_offsets
from epochmq_store.statuses import PutStatus
from tests.unit.store.support import HOST, Message, copy_after_crash, open_store, put, receive

CODE = javahash.tags_code("TagA")
LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}


def put_light(store: MessageStore, names: str, body: bytes = b"hello") -> AppendResult | PutStatus:
    """Stores a message as the message writer does."""
    assert store.light_queues is not None
    assigned = store.light_queues.assign(names)
    if isinstance(assigned, PutStatus):
        return assigned
    offsets, queues = assigned
    properties = {"TAGS": "TagA", "INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    result = store.append_to_light_queues(
        store.queue("parent", 0),
        queues,
        body=body,
        properties=records.format_properties(properties),
        born_timestamp=1,
        born_host=HOST,
        tags_code=CODE,
    )
    if result[0] is PutStatus.PUT_OK:
        store.light_queues.count("parent", properties)
    return result


def contents(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """All units of all queues."""
    return {
        key: [unit for at in range(queue.max_offset) if (unit := queue.unit(at)) is not None]
        for key, queue in store.queues.items()
        if queue.max_offset
    }


def fill(store: MessageStore, count: int = 50) -> None:
    for number in range(count):
        names = ["%LMQ%all"] + [f"%LMQ%{by}" for by in (2, 3) if number % by == 0]
        result = put_light(store, ",".join(names), bytes(number * 10))
        assert isinstance(result, tuple)
        assert result[0] is PutStatus.PUT_OK


def test_a_message_is_in_its_queue_and_in_each_light_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LIGHT)
    fill(store, 6)
    found = contents(store)
    parent = found["parent", 0]
    assert [code for _, _, code in parent] == [CODE] * 6
    assert found["%LMQ%all", 0] == parent
    assert found["%LMQ%2", 0] == parent[::2]
    assert found["%LMQ%3", 0] == parent[::3]
    record = records.decode_record(store.read(*parent[4][:2]) or b"")
    assert records.parse_properties(record.properties)["INNER_MULTI_QUEUE_OFFSET"] == "4,2"
    store.stop()


def test_a_replica_has_the_same_light_queues(tmp_path: Path) -> None:
    master, replica = open_store(tmp_path / "a", **LIGHT), open_store(tmp_path / "b", **LIGHT)
    arrived: list[tuple[str, int]] = []
    replica.on_arrival.append(lambda queue, offset, _code: arrived.append((queue.topic, offset)))
    fill(master, 12)
    receive(replica, 0, master.log.read(0, master.max_phy_offset) or b"")
    assert contents(replica) == contents(master)
    assert ("%LMQ%3", 3) in arrived
    master.stop()
    replica.stop()


def test_messages_arrive_in_each_queue_at_their_offsets(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LIGHT)
    arrived: list[tuple[str, int]] = []
    store.on_arrival.append(lambda queue, offset, _code: arrived.append((queue.topic, offset)))
    fill(store, 7)
    assert sorted(arrived) == [
        *[("%LMQ%2", offset) for offset in range(4)],
        *[("%LMQ%3", offset) for offset in range(3)],
        *[("%LMQ%all", offset) for offset in range(7)],
        *[("parent", offset) for offset in range(7)],
    ]
    store.stop()


def test_a_replica_without_light_queues_has_none(tmp_path: Path) -> None:
    master, replica = open_store(tmp_path / "a", **LIGHT), open_store(tmp_path / "b")
    fill(master, 3)
    receive(replica, 0, master.log.read(0, master.max_phy_offset) or b"")
    assert list(contents(replica)) == [("parent", 0)]
    master.stop()
    replica.stop()


@pytest.mark.parametrize("loses_queues", [False, True], ids=["with its queues", "without its queues"])
def test_a_killed_broker_has_the_same_light_queues_again(tmp_path: Path, *, loses_queues: bool) -> None:
    store = open_store(tmp_path / "a", **LIGHT)
    fill(store)
    expected = contents(store)
    copy = copy_after_crash(store, tmp_path / "b")
    store.stop()
    if loses_queues:
        for path in sorted((copy / "consumequeue").glob("%LMQ%*/0/*")):
            path.unlink()
    again = open_store(copy, **LIGHT)
    assert contents(again) == expected
    assert put_light(again, "%LMQ%all")[1] == again.queue("parent", 0).unit(50)[0]  # type: ignore[index]
    assert again.queue("%LMQ%all", 0).max_offset == 51
    again.stop()


def test_a_truncation_takes_units_back_from_light_queues(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LIGHT)
    fill(store, 6)
    cut = contents(store)["parent", 0][3][0]
    store.truncate(cut)
    assert {key: len(units) for key, units in contents(store).items()} == {
        ("parent", 0): 3,
        ("%LMQ%all", 0): 3,
        ("%LMQ%2", 0): 2,
        ("%LMQ%3", 0): 1,
    }
    store.stop()


def test_nothing_is_stored_when_a_light_queue_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, **LIGHT)
    fill(store, 3)
    before, end = contents(store), store.max_phy_offset
    put(store, Message())
    end = store.max_phy_offset

    def no_room() -> None:
        raise DiskFullError("no room for the test's queue")

    monkeypatch.setattr(type(store.queue("%LMQ%new", 0)), "make_room", lambda _self: no_room())
    result = put_light(store, "%LMQ%all,%LMQ%new")
    assert isinstance(result, tuple)
    assert result[0] is PutStatus.SERVICE_NOT_AVAILABLE
    monkeypatch.undo()
    assert store.max_phy_offset == end
    assert {key: units for key, units in contents(store).items() if key[0] != "orders"} == before
    store.stop()


def test_a_rejected_message_is_in_no_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LIGHT)
    store.state.reject_messages()
    assert put_light(store, "%LMQ%a") == (PutStatus.SERVICE_NOT_AVAILABLE, -1, -1, 0)
    assert contents(store) == {}
    store.stop()


def test_the_number_of_light_queues_is_limited(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LIGHT, max_lmq_consume_queue_num=2)
    assert isinstance(put_light(store, "%LMQ%a,%LMQ%b"), tuple)
    assert put_light(store, "%LMQ%a,%LMQ%c") is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    assert isinstance(put_light(store, "%LMQ%b"), tuple)
    store.delete_topic("%LMQ%a")
    assert isinstance(put_light(store, "%LMQ%c"), tuple)
    store.stop()
    again = open_store(tmp_path, **LIGHT, max_lmq_consume_queue_num=2)
    assert put_light(again, "%LMQ%d") is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    again.stop()


def test_light_queues_without_messages_in_the_log_are_forgotten(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LIGHT)
    put_light(store, "%LMQ%old")
    store.queues.drop_expired(store.max_phy_offset)
    assert ("%LMQ%old", 0) not in store.queues
    assert ("parent", 0) in store.queues
    store.stop()
    assert not (tmp_path / "consumequeue" / "%LMQ%old").exists()


def test_offsets_are_counted_without_multi_dispatch(tmp_path: Path) -> None:
    store = open_store(tmp_path, enable_lmq=True)
    put_light(store, "%LMQ%a")
    put_light(store, "%LMQ%a,%LMQ%b")
    assert store.light_queues is not None
    assigned = store.light_queues.assign("%LMQ%b,%LMQ%a,other")
    assert assigned == ("1,2,", [])
    assert list(contents(store)) == [("parent", 0)]
    store.stop()


@pytest.mark.parametrize("names", ["other,%LMQ%a", "%LMQ%a,,%LMQ%b", "%LMQ%" + "x" * 260, "%LMQ%a/b"])
def test_names_that_rocketmq_cannot_dispatch_are_rejected(tmp_path: Path, names: str) -> None:
    store = open_store(tmp_path, **LIGHT)
    assert put_light(store, names) is PutStatus.MESSAGE_ILLEGAL
    store.stop()


@pytest.mark.parametrize(
    ("topic", "names", "offsets", "found"),
    [
        ("parent", "%LMQ%a,%LMQ%b", "3,4", [("%LMQ%a", 3), ("%LMQ%b", 4)]),
        ("parent", "%LMQ%a,%LMQ%b", "3", []),
        ("parent", "%LMQ%a,other", "3,", []),
        ("parent", "other", "5", []),
        ("parent", "%LMQ%a", "x", []),
        ("%RETRY%group", "%LMQ%a", "3", []),
        ("SCHEDULE_TOPIC_XXXX", "%LMQ%a", "3", []),
        ("rmq_sys_wheel_timer", "%LMQ%a", "3", []),
    ],
)
def test_the_queues_of_a_record_follow_from_its_properties(
    topic: str, names: str, offsets: str, found: list[tuple[str, int]]
) -> None:
    stored = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    assert light_queue_offsets(topic, records.format_properties(stored)) == found
