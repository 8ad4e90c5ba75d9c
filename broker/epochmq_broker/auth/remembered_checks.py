# pure: checks and times in, remembered results out
"""Remembers the results of checks for a connection, as RocketMQ's stateful strategies do.

A result counts for a fixed time after the check. A change of users or ACLs takes effect when it has passed.
Unlike RocketMQ, a request whose code needs no check leaves nothing behind: RocketMQ would let the following
requests of the same connection and user pass unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

RESULTS_MAX: Final = 1000
"""Results of one connection. The oldest is forgotten first."""


class RememberedChecks:
    """The results of one connection: what was checked → (the reason for a denial or None, until when)."""

    def __init__(self) -> None:
        self._results: dict[Hashable, tuple[str | None, int]] = {}

    def get(
        self, key: Hashable, now_ms: int, lifetime_ms: int, check: Callable[[], str | None]
    ) -> str | None:
        """The remembered result, or that of `check`."""
        known = self._results.get(key)
        if known is not None and now_ms < known[1]:
            return known[0]
        result = check()
        self._results.pop(key, None)
        if len(self._results) >= RESULTS_MAX:
            del self._results[next(iter(self._results))]
        self._results[key] = (result, now_ms + lifetime_ms)
        return result
