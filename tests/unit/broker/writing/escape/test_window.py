"""Messages on their way are acknowledged in any order, and count only without a gap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.writing.escape.window import FIRST, SPAN_MAX, EscapeWindow


def test_acknowledged_numbers_have_no_gap() -> None:
    window = EscapeWindow()
    first, second, third = (window.issue() for _ in range(3))
    assert window.acknowledged == FIRST < first
    assert not window.acknowledge(third)
    assert (window.acknowledged, window.waiting) == (FIRST, 2)
    assert window.acknowledge(first)
    assert window.acknowledged == first
    assert window.acknowledge(second)
    assert (window.acknowledged, window.waiting) == (third, 0)


def test_a_message_that_cannot_leave_stops_those_far_behind_it() -> None:
    window = EscapeWindow()
    numbers = [window.issue() for _ in range(SPAN_MAX)]
    for number in numbers[1:]:
        assert not window.acknowledge(number)
        assert not window.has_room
    assert window.waiting == 1
    assert window.acknowledge(numbers[0])
    assert window.has_room


def test_abandoned_messages_have_no_effect_on_later_ones() -> None:
    window = EscapeWindow()
    for _ in range(SPAN_MAX):
        window.issue()
    window.abandon()
    assert (window.waiting, window.has_room) == (0, True)
    number = window.issue()
    assert window.acknowledged < number
    assert window.acknowledge(number)


@given(st.permutations(range(20)))
def test_every_prefix_counts_as_soon_as_it_is_complete(order: list[int]) -> None:
    window = EscapeWindow()
    numbers = [window.issue() for _ in order]
    done: set[int] = set()
    for position in order:
        window.acknowledge(numbers[position])
        done.add(position)
        complete = next(at for at in range(len(order) + 1) if at not in done)
        assert window.acknowledged == FIRST + complete
        assert window.waiting == len(order) - len(done)
