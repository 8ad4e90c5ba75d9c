"""Holds the locks on queues that orderly consumers take while they consume (RocketMQ's RebalanceLockManager).

A lock is a lease of 60 s, which its owner renews every 20 s. The locks are in memory only: after a restart
the first client that asks gets the lock, as in RocketMQ.
"""
# pure: the caller passes the time

from __future__ import annotations

from collections.abc import Iterable

from epochmq_protocol.bodies import MessageQueue

LEASE_MS = 60_000


class RebalanceLocks:
    """(group, queue) -> (client id, time of the last grant or renewal)."""

    def __init__(self, lease_ms: int = LEASE_MS) -> None:
        self.lease_ms = lease_ms
        self._locks: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, now_ms: int
    ) -> set[MessageQueue]:
        """Grants or renews the lock of every queue that is free, expired or already the client's. Returns
        these queues."""
        held = self._locks.setdefault(group, {})
        granted = set()
        for queue in queues:
            entry = held.get(queue)
            if entry is None or entry[0] == client_id or now_ms - entry[1] > self.lease_ms:
                held[queue] = (client_id, now_ms)
                granted.add(queue)
        if not held:
            del self._locks[group]
        return granted

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Releases the client's locks on the queues. Locks of other clients stay."""
        held = self._locks.get(group)
        if held is None:
            return
        for queue in queues:
            entry = held.get(queue)
            if entry is not None and entry[0] == client_id:
                del held[queue]
        if not held:
            del self._locks[group]

    def all_expired(self, group: str, now_ms: int) -> bool:
        """Whether no client of the group holds a lock. If one does, the group consumes in order."""
        return all(now_ms - since > self.lease_ms for _, since in self._locks.get(group, {}).values())

    def sweep(self, now_ms: int) -> None:
        """Deletes expired locks, so that the table holds only current ones."""
        for group in list(self._locks):
            held = self._locks[group]
            for queue, (_, since) in list(held.items()):
                if now_ms - since > self.lease_ms:
                    del held[queue]
            if not held:
                del self._locks[group]
