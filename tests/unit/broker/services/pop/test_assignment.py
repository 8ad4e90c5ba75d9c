"""Queues are assigned as by RocketMQ's strategies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.services.pop.assignment import (
    STRATEGIES,
    allocate_for_pop,
    averagely,
    averagely_by_circle,
)
from epochmq_protocol.bodies import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    """The queues of a topic on one broker."""
    return [MessageQueue("T", "b", queue_id) for queue_id in range(count)]


def ids(found: list[MessageQueue]) -> list[int]:
    """The queues' ids."""
    return [queue.queue_id for queue in found]


def test_eight_queues_of_three_clients() -> None:
    clients = ["a", "b", "c"]
    assert [ids(averagely(client, queues(8), clients)) for client in clients] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7],
    ]
    assert ids(averagely_by_circle("b", queues(8), clients)) == [1, 4, 7]
    assert averagely("x", queues(8), clients) == []


@given(st.integers(1, 40), st.integers(1, 20), st.sampled_from(sorted(STRATEGIES)))
def test_every_queue_has_one_owner(count: int, clients: int, name: str) -> None:
    names = [f"c{number:02}" for number in range(clients)]
    given_out = [queue for client in names for queue in STRATEGIES[name](client, queues(count), names)]
    assert sorted(given_out) == queues(count)


def test_pop_consumers_share_all_queues_unless_told_otherwise() -> None:
    clients = ["a", "b", "c", "d"]
    everything = allocate_for_pop(averagely, "a", queues(8), clients, 0)
    assert set(everything) == {MessageQueue("T", "b", -1)}
    assert set(allocate_for_pop(averagely, "a", queues(8), clients, 3)) == {MessageQueue("T", "b", -1)}
    assert ids(allocate_for_pop(averagely, "a", queues(8), clients, 1)) == [0, 1, 2, 3]
    assert ids(allocate_for_pop(averagely, "d", queues(8), clients, 1)) == [6, 7, 0, 1]
    assert ids(allocate_for_pop(averagely, "c", queues(2), clients, 1)) == [0]
    assert allocate_for_pop(averagely, "x", queues(2), clients, 1) == []
