# pure: counts of connections
"""Limits how many connections one address has at a port, and how fast it opens them.

The rate is that of a token bucket, which holds the connections of `BURST_S` seconds: after a restart all
clients behind one address come back at once.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 5.0
PRUNE_MIN: Final = 4096
"""With fewer addresses nothing is forgotten."""


class AddressUse:
    """What one address has."""

    __slots__ = ("at_s", "open", "tokens")

    def __init__(self, tokens: float, at_s: float) -> None:
        self.open = 0
        self.tokens = tokens
        """Connections that it may open at once."""
        self.at_s = at_s
        """When `tokens` was true."""


class AddressLimits:
    """The limits of one port. 0 means no limit."""

    def __init__(self, open_max: int, per_second: int) -> None:
        self._open_max = open_max
        self._per_second = per_second
        self._burst = per_second * BURST_S
        self._uses: dict[str, AddressUse] = {}
        """Invariant: every address with an open connection; of the others those that have opened one in the
        last `BURST_S` seconds, and at most as many more, or PRUNE_MIN."""
        self._prune_at = PRUNE_MIN

    def too_fast(self, address: str, now_s: float) -> bool:
        """Whether an address opens connections too fast. Every call counts as one."""
        if not self._per_second:
            return False
        use = self._use_of(address, now_s)
        use.tokens = min(self._burst, use.tokens + (now_s - use.at_s) * self._per_second)
        use.at_s = now_s
        if use.tokens < 1:
            return True
        use.tokens -= 1
        return False

    def has_room(self, address: str, now_s: float) -> bool:
        """Whether an address may have one more connection."""
        return not self._open_max or self._use_of(address, now_s).open < self._open_max

    def opened(self, address: str, now_s: float) -> None:
        """A connection of this address is open."""
        self._use_of(address, now_s).open += 1

    def closed(self, address: str) -> None:
        """A connection of this address is closed."""
        use = self._uses.get(address)
        if use is not None:
            use.open -= 1

    def _use_of(self, address: str, now_s: float) -> AddressUse:
        use = self._uses.get(address)
        if use is None:
            if len(self._uses) >= self._prune_at:
                self._prune(now_s)
            use = self._uses[address] = AddressUse(self._burst, now_s)
        return use

    def _prune(self, now_s: float) -> None:
        """Forgets the addresses whose next connection is treated like a first one."""
        self._uses = {
            address: use for address, use in self._uses.items() if use.open or now_s - use.at_s < BURST_S
        }
        self._prune_at = max(PRUNE_MIN, 2 * len(self._uses))
