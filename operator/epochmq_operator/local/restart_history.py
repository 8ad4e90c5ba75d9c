"""When a pod that ended is started again. Pure: time comes in as data.

A process that ends is started again after a delay that doubles with every end in a row, up to a bound: a low
one when it had been ready, since what it serves is worth the attempt, a high one when it had not. A row ends
when the process has been ready for a while."""

# pure: decided from exits and their times alone

from __future__ import annotations

from dataclasses import dataclass, replace

DELAY_FIRST_S = 0.2
DELAY_MAX_S = 10.0
STEADY_AFTER_S = 5.0
"""A process that was ready for this long is no longer held responsible for what was before."""
CONSECUTIVE_READY_ENDS_MAX = 3
"""What the row counts up to by ends of processes that were ready: delays up to 0.8 s."""


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """What is known of a pod's ends. `total` counts all restarts, `row` the ends since it last was steady,
    `consecutive_unready_ends` those since it last was ready at all."""

    total: int = 0
    consecutive_ends: int = 0
    consecutive_unready_ends: int = 0

    @property
    def delay_s(self) -> float:
        """How long to wait before the next start."""
        return min(DELAY_FIRST_S * 2.0 ** min(max(self.consecutive_ends - 1, 0), 16), DELAY_MAX_S)

    def ready(self) -> RestartHistory:
        """After the process became ready."""
        return replace(self, consecutive_unready_ends=0)

    def ended(self, ready_for_s: float | None) -> RestartHistory:
        """After the process ended, or could not be started; `ready_for_s` is since when it was ready, None if
        it never was."""
        if ready_for_s is None:
            consecutive_ends = self.consecutive_ends + 1
        else:
            consecutive_ends = (
                1
                if ready_for_s >= STEADY_AFTER_S
                else min(self.consecutive_ends + 1, CONSECUTIVE_READY_ENDS_MAX)
            )
        return replace(
            self,
            total=self.total + 1,
            consecutive_ends=consecutive_ends,
            consecutive_unready_ends=1 if ready_for_s is not None else self.consecutive_unready_ends + 1,
        )
