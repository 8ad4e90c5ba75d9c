"""Counts what the ports of this process have rejected, and the bytes of unfinished frames that it holds."""

from __future__ import annotations

from enum import StrEnum


class PortRejection(StrEnum):
    """Why a port rejected, or aborted, a connection."""

    CONNECTIONS = "connections"
    """As many connections are open as the port may have."""
    ADDRESS = "address"
    """As many connections of its address are open as one address may have."""
    RATE = "rate"
    """Its address opens connections too fast."""
    FRAME_TIMEOUT = "frame_timeout"
    """It did not complete a frame in time."""
    RECEIVED_BYTES = "received_bytes"
    """The process holds too many bytes of unfinished frames, and its frame was the oldest."""


rejections: dict[PortRejection, int] = dict.fromkeys(PortRejection, 0)
"""Connections since the start of the process, of all its ports."""
strangers_rejected = 0
"""Requests and HA connections of peers that have no proof of membership, and wrong proofs."""
unproven_requests = 0
"""Requests and HA connections that were accepted as a member's without a proof of membership."""
unfinished_bytes = 0
"""Bytes that the connections of all ports hold of frames that are not complete."""


def metric_values() -> dict[str, float]:
    """The counts by the names of their metrics."""
    values: dict[str, float] = {f"port_rejections_total:{why}": count for why, count in rejections.items()}
    values["port_unfinished_frame_bytes"] = unfinished_bytes
    values["member_rejections_total"] = strangers_rejected
    values["member_unproven_requests_total"] = unproven_requests
    return values
