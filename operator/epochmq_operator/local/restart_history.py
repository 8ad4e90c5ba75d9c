"""Decides when a pod that ended is started again. Pure: time is an argument.

The delay before a restart doubles with every consecutive end, up to a bound. The bound is low for a process
that had been ready, because a retry is worthwhile, and high for one that had not. A process that was ready
for a while starts a new count."""

# pure: decided from exits and their times alone

from __future__ import annotations

from dataclasses import dataclass, replace

DELAY_FIRST_S = 0.2
DELAY_MAX_S = 10.0
STEADY_AFTER_S = 5.0
"""A process that was ready for this long starts a new count."""
CONSECUTIVE_READY_ENDS_MAX = 3
"""The limit of the count for ends of processes that were ready: delays of up to 0.8 s."""


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """The ends of a pod. `total` counts all restarts; `consecutive_ends` those since it was last ready for
    `STEADY_AFTER_S`; `consecutive_unready_ends` those since it was last ready at all."""

    total: int = 0
    consecutive_ends: int = 0
    consecutive_unready_ends: int = 0

    @property
    def delay_s(self) -> float:
        """The delay before the next start."""
        return min(DELAY_FIRST_S * 2.0 ** min(max(self.consecutive_ends - 1, 0), 16), DELAY_MAX_S)

    def ready(self) -> RestartHistory:
        """The history after the process became ready."""
        return replace(self, consecutive_unready_ends=0)

    def ended(self, ready_for_s: float | None) -> RestartHistory:
        """The history after the process ended or could not be started. `ready_for_s` is how long it had been
        ready, None if it never was."""
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
