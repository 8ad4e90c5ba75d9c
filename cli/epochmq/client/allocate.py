"""Which of a topic's queues a member of a consumer group reads (AllocateMessageQueueAveragely)."""

# pure: every member of a group must come to the same result

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def allocate_averagely(queues: Sequence[T], clients: Sequence[str], own: str) -> list[T]:
    """The queues of `own`, one run of neighbours; every member must pass the same queues and clients in the
    same order. Empty when `own` is not among the clients, or there are more clients than queues before it."""
    if own not in clients:
        return []
    index, share, extra = clients.index(own), len(queues) // len(clients), len(queues) % len(clients)
    start = index * share + min(index, extra)
    return list(queues[start : start + share + (1 if index < extra else 0)])
