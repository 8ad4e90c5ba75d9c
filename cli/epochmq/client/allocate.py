"""Assigns the queues of a topic to the members of a consumer group (AllocateMessageQueueAveragely)."""

# pure: every member of a group must compute the same result

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def allocate_averagely(queues: Sequence[T], clients: Sequence[str], own: str) -> list[T]:
    """The queues of the client `own`: consecutive ones. Every member must pass the same queues and clients in
    the same order. The result is empty if `own` is not a client, or if there are too few queues."""
    if own not in clients:
        return []
    index, share, extra = clients.index(own), len(queues) // len(clients), len(queues) % len(clients)
    start = index * share + min(index, extra)
    return list(queues[start : start + share + (1 if index < extra else 0)])
