"""Names what a switchover of the master means for the requests of one code."""
# pure: values only

from __future__ import annotations

import enum


class Handover(enum.Enum):
    """What the former master does with a request (`request_gate`)."""

    SERVED = "served"
    """It is served in every phase."""
    RELAYED = "relayed"
    """Only the master can serve it: it is relayed, but not held."""
    HELD = "held"
    """It needs a master that may write: it is held, and relayed later."""
    HELD_ONLY = "held only"
    """It changes what the new master gets. It is held, and rejected while others are relayed: a relayed long
    poll would exceed the time of a relay."""
