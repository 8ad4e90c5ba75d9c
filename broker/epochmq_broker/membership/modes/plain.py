"""The mode of a broker whose configuration names its role."""

from __future__ import annotations

from epochmq_broker.membership.modes.availability_mode import AvailabilityMode


class PlainMode(AvailabilityMode):
    """A master, or a slave that never becomes one. A slave follows the master that a nameserver names."""

    def start_services(self) -> None:
        """See `AvailabilityMode`. After a power loss the file of consumer offsets may be ahead of the log."""
        if self._parts.live.standing.capabilities.runs_special_services:
            self._parts.slave_sync.lower_offsets_to_log()
            self._parts.master_services.start()
