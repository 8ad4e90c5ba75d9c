"""Tracks how far a service has come, and how much of that is safe.

A service that delivers, checks or revives stored messages stores other messages for them. Its offset, or
time, is written to files and copied by replicas apart from the log. A replica with the offset and without
those messages would never store them. So the offset moves past a step only when what the step has stored is
as safe as an acknowledged message. RocketMQ moves its offsets at once.
"""
# pure: values in, values out

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

STEPS_MAX: Final = 4096
"""Unsafe steps that are kept apart."""


class SafeProgress(Generic[T]):
    """The progress of one service on one queue, or along the time. `reached`: everything before this value is
    done. `safe`: the same, and what was stored for it is safe."""

    __slots__ = ("_moved", "_steps", "_steps_max", "reached", "safe")

    def __init__(self, value: T, steps_max: int = STEPS_MAX) -> None:
        self.reached = self.safe = value
        self._steps: deque[tuple[T, int]] = deque()
        self._steps_max = steps_max
        self._moved = False

    def reset(self, value: T) -> None:
        """Starts again at this value, which is safe."""
        self.reached = self.safe = value
        self._steps.clear()
        self._moved = False

    @property
    def unsafe(self) -> int:
        """The number of steps that are not safe."""
        return len(self._steps)

    @property
    def is_full(self) -> bool:
        """Whether so many steps are unsafe that further ones are joined with the last, and become safe with
        it."""
        return len(self._steps) >= self._steps_max

    def advance(self, value: T, end: int) -> None:
        """Everything before `value` is done. What was stored for it ends at `end`, the `PutResult.end` of the
        last message; 0 if nothing was stored."""
        self.reached = value
        steps = self._steps
        if steps and (end <= steps[-1][1] or len(steps) >= self._steps_max):
            steps[-1] = value, max(end, steps[-1][1])
        elif end:
            steps.append((value, end))
        else:
            self.safe = value
            self._moved = True

    def settle(self, safe_end: int) -> bool:
        """Notes that everything stored up to this end is safe. Returns whether `safe` has moved since the
        last call."""
        steps = self._steps
        while steps and steps[0][1] <= safe_end:
            self.safe = steps.popleft()[0]
            self._moved = True
        moved, self._moved = self._moved, False
        return moved
