"""An orderly POP blocks its queue until its messages are acknowledged or visible again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.services.pop.order_info import ILLEGAL, NOTHING_TO_COMMIT, ConsumerOrderInfoTable


class Clock:
    """The time in ms."""

    def __init__(self) -> None:
        self.now = 100_000

    def __call__(self) -> int:
        return self.now


def table(clock: Clock) -> ConsumerOrderInfoTable:
    """A table in which a group has just received 3, 4 and 6 of queue 0, for 10 s."""
    made = ConsumerOrderInfoTable(clock)
    made.update("first", "T", "g", 0, clock.now, 10_000, [3, 4, 6])
    return made


def blocks(orders: ConsumerOrderInfoTable, attempt: str | None = "second") -> bool:
    """Whether queue 0 is blocked."""
    return orders.blocks(attempt, "T", "g", 0, 10_000)


def test_a_queue_is_blocked_until_every_message_is_acknowledged() -> None:
    clock = Clock()
    orders = table(clock)
    assert blocks(orders)
    assert not blocks(orders, "first")  # a repeated attempt gets the same messages
    assert not orders.blocks("x", "T", "g", 1, 10_000)
    assert orders.commit_and_next("T", "g", 0, 4, 100_000) == 3
    assert orders.commit_and_next("T", "g", 0, 3, 100_000) == 6
    assert blocks(orders)
    assert orders.commit_and_next("T", "g", 0, 6, 100_000) == 7
    assert not blocks(orders)


def test_a_queue_is_free_when_its_messages_are_visible_again() -> None:
    clock = Clock()
    orders = table(clock)
    clock.now += 9999
    assert blocks(orders)
    orders.set_next_visible("T", "g", 0, 4, 100_000, 130_000)
    clock.now += 1
    assert blocks(orders)
    clock.now = 130_000
    assert not blocks(orders)


def test_foreign_acknowledgements_change_nothing() -> None:
    orders = table(Clock())
    assert orders.commit_and_next("T", "g", 0, 5, 100_000) == ILLEGAL
    assert orders.commit_and_next("T", "g", 0, 3, 99_999) == NOTHING_TO_COMMIT
    assert orders.commit_and_next("T", "g", 1, 8, 100_000) == 9
    orders.set_next_visible("T", "g", 0, 4, 1, 200_000)
    info = orders.find("T", "g", 0)
    assert info is not None
    assert (info.commit_bits, info.next_visible) == (0, None)


def test_messages_received_again_are_counted() -> None:
    clock = Clock()
    orders = ConsumerOrderInfoTable(clock)
    assert orders.update("1", "T", "g", 0, 1, 10, [3, 4]) == ["0 0 0"]
    assert orders.update("2", "T", "g", 0, 2, 10, [3, 4]) == ["0 qo0%3 1", "0 qo0%4 1", "0 0 1"]
    assert orders.update("2", "T", "g", 0, 3, 10, [3, 4]) == ["0 qo0%3 1", "0 qo0%4 1", "0 0 1"]
    assert orders.update("3", "T", "g", 0, 4, 10, [4, 5]) == ["0 qo0%4 2", "0 0 0"]


def test_the_end_of_a_lock_is_announced() -> None:
    clock = Clock()
    told: list[tuple[str, str, int, int]] = []
    orders = ConsumerOrderInfoTable(clock, lambda *change: told.append(change))
    orders.update("1", "T", "g", 0, clock.now, 10_000, [3])
    assert told == [("T", "g", 0, 110_000)]
    assert orders.locks() == told
    orders.commit_and_next("T", "g", 0, 3, clock.now)
    assert told[-1] == ("T", "g", 0, clock.now)
    assert orders.locks() == []


def test_the_file_keeps_everything() -> None:
    clock = Clock()
    orders = table(clock)
    orders.update(None, "T", "g", 0, clock.now, 10_000, [4, 6])
    orders.commit_and_next("T", "g", 0, 4, clock.now)
    orders.set_next_visible("T", "g", 0, 6, clock.now, 140_000)
    again = ConsumerOrderInfoTable(clock)
    again.restore(orders.encode())
    assert again.encode() == orders.encode()
    assert again.find("T", "g", 0) == orders.find("T", "g", 0)
    java = b'{"table":{"T@g":{0:{"cm":0,"i":3000,"l":1,"o":[7],"popTime":99000}}}}'
    again.restore(java)
    assert blocks(again)


def test_what_does_not_exist_any_more_is_forgotten() -> None:
    clock = Clock()
    orders = ConsumerOrderInfoTable(clock)
    for topic, group, queue_id in (("T", "g", 0), ("T", "g", 5), ("gone", "g", 0), ("T", "gone", 0)):
        orders.update("1", topic, group, queue_id, 1, 10, [1])
    orders.clean({"T": 2}.get, lambda group: group == "g")
    assert orders.find("T", "g", 0) is not None
    for topic, group, queue_id in (("T", "g", 5), ("gone", "g", 0), ("T", "gone", 0)):
        assert orders.find(topic, group, queue_id) is None
    clock.now += 24 * 3600 * 1000 + 1
    orders.clean({"T": 2}.get, lambda _group: True)
    assert orders.find("T", "g", 0) is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=32, unique=True).map(sorted), st.randoms())
def test_the_offset_never_passes_an_unacknowledged_message(offsets: list[int], random: object) -> None:
    orders = ConsumerOrderInfoTable(Clock())
    orders.update("1", "T", "g", 0, 5, 1000, offsets)
    order = list(offsets)
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    left = set(offsets)
    for offset in order:
        left.discard(offset)
        expected = min(left) if left else offsets[-1] + 1
        assert orders.commit_and_next("T", "g", 0, offset, 5) == expected
