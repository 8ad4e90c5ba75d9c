"""Describes the object to which a server reports the times of its requests."""

from __future__ import annotations

from typing import Protocol


class RequestTimer(Protocol):
    """Measures requests from the turn of the server in which they were read to their responses."""

    began: float
    """When the present turn began (time.monotonic)."""
    fast: list[int]
    """The numbers that fast handlers increment, each at its own position."""
    marks: list[int]
    """`fast` when the present turn began."""

    def end_slow_turn(self, took_s: float) -> None:
        """The present turn took a millisecond or longer."""

    def record(
        self, code: int, answer: int, began_s: float, *, polls: bool = False, oneway: bool = False
    ) -> None:
        """A request, read in the turn that began at `began_s`, gets a response with the code `answer` now.
        `polls`: it waited for messages."""
