"""Defines the interface of the state machine that a peer with snapshots drives."""

from __future__ import annotations

from typing import Protocol


class StateMachine(Protocol):
    """A state machine that can save its state, beside applying entries."""

    def save(self) -> bytes:
        """The state that the entries applied so far have produced."""

    def check(self, data: bytes) -> None:
        """ValueError unless `restore` can load these bytes: they come from another peer."""

    def restore(self, data: bytes) -> None:
        """Loads a state that `save` of this or another peer returned. ValueError if it is none."""
