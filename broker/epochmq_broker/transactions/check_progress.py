"""Delays the offsets of the checks until what they depend on is safe.

A round of checks moves the offsets of the half queue and the op queue past half messages, because the log
has their op messages or their copies. Replicas copy the offsets apart from the log. A replica with an offset
and without the copy would never check that transaction. So an offset moves on only when the log that the
round has seen is as safe as an acknowledged message. RocketMQ moves the offsets at once.
"""
# pure: state and rules only

from __future__ import annotations

from collections import deque

UNSAFE_MAX = 64
"""Rounds whose offsets may wait. Further rounds replace the last one."""


class CheckProgress:
    """The progress of the checks of one half queue, beyond its stored offsets."""

    def __init__(self) -> None:
        self._unsafe: deque[tuple[int, int, int]] = deque()

    @property
    def latest(self) -> tuple[int, int] | None:
        """(half offset, op offset) at which the next round starts; None: at the stored offsets."""
        return self._unsafe[-1][:2] if self._unsafe else None

    def add(self, half_offset: int, op_offset: int, log_end: int) -> None:
        """Adds the offsets after a round. They are safe when the log is safe up to `log_end`."""
        if len(self._unsafe) >= UNSAFE_MAX:
            self._unsafe.pop()
        self._unsafe.append((half_offset, op_offset, log_end))

    def take_safe(self, safe_end: int) -> tuple[int, int] | None:
        """Returns the newest safe (half offset, op offset), and forgets them and older ones; None if there is
        none."""
        found = None
        while self._unsafe and self._unsafe[0][2] <= safe_end:
            found = self._unsafe.popleft()[:2]
        return found

    def clear(self) -> None:
        """Forgets the offsets that are not safe."""
        self._unsafe.clear()
