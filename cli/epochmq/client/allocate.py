"""Assigns the queues of a topic to the consumers of a group (AllocateMessageQueueAveragely). The broker has
the same rule for consumers that let it assign (`epochmq_broker.services.pop.assignment`)."""

# pure: every consumer of a group must compute the same result

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def allocate_averagely(queues: Sequence[T], client_ids: Sequence[str], client_id: str) -> list[T]:
    """Returns the consecutive queues of one consumer. Every consumer must pass the same queues and client ids
    in the same order. The result is empty if `client_id` is not among `client_ids`, or if there are fewer
    queues than consumers and the others have them."""
    if client_id not in client_ids:
        return []
    clients = len(client_ids)
    index, share, extra = client_ids.index(client_id), len(queues) // clients, len(queues) % clients
    start = index * share + min(index, extra)
    return list(queues[start : start + share + (1 if index < extra else 0)])
