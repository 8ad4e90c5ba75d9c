"""Checks of liveness: what must happen in time while enough of a world is healthy.

A machine is healthy while it runs, none of its links is cut, and its disk is not slow, stuck, full or broken.
Then:

- If a majority of the controllers and all members of a group's SyncStateSet are healthy, the group has a
  writing master within `master_within_ms`. The same if all members are down and the eligible members are
  healthy, of which one is known to have everything.
- Without faults, a leading controller responds to a lease request within two heartbeat rounds, the current
  one and the next one.

Both hold only in networks that neither lose nor delay messages by chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.clockwork import Host
    from tests.simulation.controller_world import ControllerWorld

LOOK_MS = 200
CALM_MS = 2500
"""Time without faults before responses have a bound: by then a leader is elected and has applied all
entries."""


class Liveness:
    """Checks a world periodically."""

    def __init__(self, world: ControllerWorld) -> None:
        self.world = world
        self.well_since: dict[str, float] = {}
        """Since when a group could have had a writing master, and had none."""
        self.disturbed_ms = 0.0
        """The time of the last fault."""
        self.slowest_ms = 0.0
        options = world.wanted.options
        self.master_within_ms = 9_000 + options["beat_timeout_ms"] + 4 * options["lease_ms"]
        world.at(LOOK_MS, self.look)

    def is_kind(self) -> bool:
        """Whether the network neither loses nor delays messages by chance."""
        world = self.world
        return not (world.network.drop or world.network.slow) and (
            world.quiet or world.congested_until <= world.now
        )

    def unwell(self) -> set[str]:
        """The machines that are not healthy."""
        world = self.world
        now = world.now
        found = {name for link, until_ms in world.cuts.items() if until_ms > now for name in link}
        found |= {name for name, host in world.hosts.items() if not host.up or host.paused}
        if world.quiet:
            return found
        for name, peer in world.peers.items():
            if max(peer.slow_disk_until, peer.stuck_disk_until, peer.log.checker.full_until) > now:
                found.add(name)
        found |= {name for name, broker in world.brokers.items() if self.has_bad_disk(broker)}
        return found

    def has_bad_disk(self, broker: Host) -> bool:
        """Whether a broker's disk fails or is slow."""
        disk = getattr(broker, "disk", None)
        return disk is not None and (
            disk.failed
            or disk.stuck
            or max(disk.slow_until, disk.broken_until, disk.full_until) > self.world.now
        )

    def look(self) -> None:
        """Checks that every group that could have a writing master gets one in time."""
        world = self.world
        world.at(LOOK_MS, self.look)
        if not self.is_kind():
            self.well_since.clear()
            self.disturbed_ms = world.now
            return
        unwell = self.unwell()
        if unwell:
            self.disturbed_ms = world.now
        quorum = sum(name not in unwell for name in world.controllers) > len(world.controllers) // 2
        for group in world.acked:
            if not quorum or not self.is_served(group, unwell):
                self.well_since.pop(group, None)
            elif world.now - self.well_since.setdefault(group, world.now) > self.master_within_ms:
                world.fail(
                    f"no master of {group} writes, although a quorum of controllers and the SyncStateSet "
                    f"have been healthy for {self.master_within_ms:.0f} ms: {world.shown(group)}"
                )

    def is_served(self, name: str, unwell: set[str]) -> bool:
        """Whether a group has no writing master, but must get one soon."""
        world = self.world
        group = world.tables.get(name)
        if group is None or group.master_epoch == 0:
            return False
        master = world.master_of(name)
        if master is not None and master.writable:
            return False

        def are_well(ids: frozenset[int]) -> bool:
            found = [world.broker_of(name, one) for one in ids]
            return all(one is not None and one.name not in unwell for one in found)

        return are_well(group.sync_state_set) or (
            self.are_down(name, group.sync_state_set)
            and are_well(group.eligible_members)
            and self.is_any_trusted(name, group.eligible_members)
        )

    def are_down(self, name: str, ids: frozenset[int]) -> bool:
        """Whether none of these brokers runs."""
        found = [self.world.broker_of(name, one) for one in ids]
        return not any(one is not None and one.up for one in found)

    def is_any_trusted(self, name: str, ids: frozenset[int]) -> bool:
        """Whether the leading controller knows that one of these brokers has every acknowledged message."""
        machines = [controller.state_machine for controller in self.world.controllers.values()]
        leading = next((one for one in machines if one is not None and one.leads), None)
        if leading is None:
            return False
        infos = [leading.alive(self.world.tables.groups[name].cluster_name, name, one) for one in ids]
        return any(info is not None and info.has_trusted_log for info in infos)

    def disturbed(self) -> None:
        """Records a fault."""
        self.disturbed_ms = self.world.now

    def answered(self, name: str, took_ms: float) -> None:
        """Checks how long a leading controller took to respond to a lease request."""
        world = self.world
        if world.now - took_ms - self.disturbed_ms < CALM_MS:
            return
        self.slowest_ms = max(self.slowest_ms, took_ms)
        within_ms = 4 * (world.network.delay_max_ms + 1) + 5
        if took_ms > within_ms and not self.unwell() and self.is_kind():
            world.fail(f"{name} responded to a lease request after {took_ms:.0f} ms, not {within_ms:.0f} ms")
        world.event_counts["answers within the bound"] += 1
