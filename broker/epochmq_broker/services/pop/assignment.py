"""Assigns the queues of a topic to the consumers of a group (RocketMQ's AllocateMessageQueueStrategy and
QueryAssignmentProcessor.allocate4Pop)."""
# pure: rules over values

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from epochmq_protocol.bodies import MessageQueue

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(client id, queues, client ids) → the client's queues. Queues and ids are sorted."""


def averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Gives every client consecutive queues. If the queues cannot be divided equally, each of the first
    clients gets one more."""
    if not queues or client_id not in client_ids:
        return []
    index, clients = client_ids.index(client_id), len(client_ids)
    share, extra = divmod(len(queues), clients)
    start = index * share + min(index, extra)
    return list(queues[start : start + share + (index < extra)])


def averagely_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Deals the queues to the clients in turn."""
    if not queues or client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


STRATEGIES: Final[dict[str, Allocate]] = {"AVG": averagely, "AVG_BY_CIRCLE": averagely_by_circle}
"""RocketMQ's names."""


def allocate_for_pop(
    allocate: Allocate,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    share_queue_num: int,
) -> list[MessageQueue]:
    """The queues that a client pops. If `share_queue_num` is 0 or covers all clients: queue -1 of every
    broker, which stands for all its queues, so each client pops every queue. Otherwise a client pops its own
    queues and those of the next `share_queue_num` clients in the order of ids. With more clients than queues,
    a client pops one queue, which it shares with others."""
    if share_queue_num <= 0 or share_queue_num >= len(client_ids) - 1:
        return [structs.replace(queue, queue_id=-1) for queue in queues]
    if len(client_ids) <= len(queues):
        allocated = allocate(client_id, queues, client_ids)
        if client_id in client_ids:
            index = client_ids.index(client_id)
            for distance in range(1, share_queue_num + 1):
                other = client_ids[(index + distance) % len(client_ids)]
                allocated += allocate(other, queues, client_ids)
        return allocated
    if client_id not in client_ids:
        return []
    return [queues[client_ids.index(client_id) % len(queues)]]
