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
    """Gives every client a run of adjacent queues, the first ones one more if they cannot be equal."""
    if not queues or client_id not in client_ids:
        return []
    index, clients = client_ids.index(client_id), len(client_ids)
    each, more = divmod(len(queues), clients)
    start = index * each + min(index, more)
    return list(queues[start : start + each + (index < more)])


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
    """The queues that a client pops. Usually queue -1 of every broker: each client pops every queue. With
    `share_queue_num` a client also pops the queues of so many clients behind it."""
    if share_queue_num <= 0 or share_queue_num >= len(client_ids) - 1:
        return [structs.replace(queue, queue_id=-1) for queue in queues]
    if len(client_ids) <= len(queues):
        found = allocate(client_id, queues, client_ids)
        if client_id in client_ids:
            index = client_ids.index(client_id)
            for distance in range(1, share_queue_num + 1):
                other = client_ids[(index + distance) % len(client_ids)]
                found += allocate(other, queues, client_ids)
        return found
    if client_id not in client_ids:
        return []
    return [queues[client_ids.index(client_id) % len(queues)]]
