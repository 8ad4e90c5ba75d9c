"""Tells whether the operator's activities still make progress; `/live` fails if one does not.

Every request of the operator has a timeout, and a watch ends by itself after some minutes. An activity that
exceeds its limit therefore waits for something that never happens, and only a new process helps. A failing
API server makes no activity exceed its limit: requests end with an error and are repeated.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from epochmq_operator.kube.api import WATCH_S

RECONCILIATION_LIMIT_S: Final = 600.0
"""Ten times what a reconciliation of the largest group takes whose replicas do not respond."""
WATCH_LIMIT_S: Final = 3.0 * WATCH_S


class Liveness:
    """The activities of one operator, each with the time until which it has to end or to begin again."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._until_s: dict[str, tuple[float, float]] = {}

    def begin(self, activity: str, limit_s: float) -> None:
        """Notes that an activity begins, or begins again, and ends or begins again within `limit_s`."""
        self._until_s[activity] = self._clock_s() + limit_s, limit_s

    def end(self, activity: str) -> None:
        """Notes that an activity has ended."""
        self._until_s.pop(activity, None)

    @contextlib.contextmanager
    def during(self, activity: str, limit_s: float) -> Iterator[None]:
        """An activity that lasts as long as the block."""
        self.begin(activity, limit_s)
        try:
            yield
        finally:
            self.end(activity)

    def stuck(self) -> list[str]:
        """Describes each activity that has exceeded its limit."""
        now_s = self._clock_s()
        return sorted(
            f"{activity} has not ended within {limit_s:.0f} s"
            for activity, (until_s, limit_s) in self._until_s.items()
            if now_s > until_s
        )
