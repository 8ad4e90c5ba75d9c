"""The mode of a broker whose configuration names its role."""

from __future__ import annotations

from epochmq_broker.membership.modes.group_mode import GroupMode


class PlainMode(GroupMode):
    """A master, or a slave that never becomes one. A slave follows the master that a nameserver names."""

    def start_services(self) -> None:
        """See `GroupMode`."""
        if self._parts.live.current.broker_role != "SLAVE":
            self._parts.master_services.start()
