"""Numbers the messages of one service that are on their way to another group.

The numbers take the place of offsets in the log: when all messages up to a number are acknowledged, the
service's own offset may move past what they were put for. The numbers begin above every offset, so that none
counts as safe because the log is long."""
# pure: numbers in, numbers out

from __future__ import annotations

from typing import Final

FIRST: Final = 1 << 62
SPAN_MAX: Final = 256
"""Messages from the oldest one without acknowledgement to the newest one. So many may arrive twice when
another broker continues."""


class EscapeWindow:
    """The messages of one service, in the order in which it put them."""

    def __init__(self) -> None:
        self.issued = FIRST
        """The number of the newest message."""
        self.acknowledged = FIRST
        """Every message up to this number is acknowledged."""
        self._out_of_order: set[int] = set()

    @property
    def waiting(self) -> int:
        """The number of messages without acknowledgement."""
        return self.issued - self.acknowledged - len(self._out_of_order)

    @property
    def has_room(self) -> bool:
        """Whether a further message may be put."""
        return self.issued - self.acknowledged < SPAN_MAX

    def issue(self) -> int:
        """The number of a further message."""
        assert self.has_room
        self.issued += 1
        return self.issued

    def acknowledge(self, number: int) -> bool:
        """Notes that another group has stored a message. Returns whether `acknowledged` has moved."""
        assert self.acknowledged < number <= self.issued
        self._out_of_order.add(number)
        before = self.acknowledged
        while self.acknowledged + 1 in self._out_of_order:
            self.acknowledged += 1
            self._out_of_order.remove(self.acknowledged)
        return self.acknowledged != before

    def abandon(self) -> None:
        """Forgets the messages without acknowledgement. The service that put them must forget them first."""
        self.acknowledged = self.issued
        self._out_of_order.clear()
