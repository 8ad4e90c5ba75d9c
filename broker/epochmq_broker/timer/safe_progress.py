"""Tracks how far work is done whose results are also safe: on disk with SYNC_FLUSH, and on the replicas."""

# pure: numbers in, numbers out
from __future__ import annotations

from collections import deque
from typing import Final

STEPS_MAX: Final = 4096


class SafeProgress:
    """`reached`: everything before this value is done. `safe`: the same, and what was stored for it is safe.
    Values rise."""

    __slots__ = ("_steps", "reached", "safe")

    def __init__(self, value: int = 0) -> None:
        self.reached = self.safe = value
        self._steps: deque[tuple[int, int]] = deque()

    def reset(self, value: int) -> None:
        """Starts again at this value."""
        self.reached = self.safe = value
        self._steps.clear()

    @property
    def is_long(self) -> bool:
        """Whether so many steps are unsafe that further ones are joined with the last."""
        return len(self._steps) >= STEPS_MAX

    def advance(self, value: int, log_end: int) -> None:
        """Everything before `value` is done; what was stored for it ends at this physical offset, 0 if
        nothing was stored."""
        self.reached = value
        steps = self._steps
        if steps and (log_end <= steps[-1][1] or len(steps) >= STEPS_MAX):
            steps[-1] = value, max(log_end, steps[-1][1])
        elif log_end:
            steps.append((value, log_end))
        else:
            self.safe = value

    def settle(self, safe_end: int) -> None:
        """Notes that the commit log is safe up to this physical offset."""
        steps = self._steps
        while steps and steps[0][1] <= safe_end:
            self.safe = steps.popleft()[0]
