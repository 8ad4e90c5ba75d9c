"""A compaction topic of a replica group: each broker compacts for itself, and the next master serves the
newest message of each key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import compaction_traffic as traffic
from tests.support.compaction_traffic import OFTEN, ROUND, SENT_MAX
from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.process import wait_until
from tests.support.replica_group import ReplicaGroup

OCTET = 96


class Sender:
    """Sends the messages of a topic, one after the other, each until the present master acknowledges it."""

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group
        self.sent = 0

    def send(self, count: int) -> None:
        """Sends more messages."""
        master = self._group.wait_master()
        for number in range(self.sent, self.sent + count):

            def acknowledged(number: int = number) -> bool:
                nonlocal master
                if traffic.send(master, number):
                    return True
                master = self._group.master() or master
                return False

            wait_until(acknowledged, what=f"the group acknowledges message {number}")
        self.sent += count

    def send_until_compacted(self, member: Member) -> list[tuple[int, int]]:
        """Sends until this broker, the master, has removed messages that it serves now. Returns what it
        serves in the end."""
        oldest = traffic.pull_all(member)
        limit = self.sent + SENT_MAX

        def compacted() -> bool:
            if self.sent < limit:
                self.send(ROUND)
            found = traffic.pull_all(member)
            return bool(found) and (not oldest or found[0][0] > oldest[0][0]) and found[0][0] > 0

        wait_until(compacted, timeout_s=traffic.COMPACTED_TIMEOUT_S, what=f"{member.name} has compacted")
        return traffic.wait_serves(member, self.sent)


@pytest.mark.timeout(1200)
def test_every_next_master_serves_the_newest_message_of_each_key(tmp_path: Path) -> None:
    """A master that compacts is killed; its successor serves, takes messages and compacts; the killed one
    comes back, catches up, and is elected."""
    settings = {**OFTEN, "allAckInSyncStateSet": True, "minInSyncReplicas": 2, "slaveReadEnable": True}
    with ReplicaGroup(
        tmp_path, [our_controller] * 3, [our_broker] * 3, broker=settings, octet=OCTET
    ) as group:
        first = group.wait_master()
        traffic.create(first)
        sender = Sender(group)
        sender.send_until_compacted(first)

        first.process.kill()
        second = group.wait_master(other_than=first)
        traffic.wait_serves(second, sender.sent)
        sender.send_until_compacted(second)

        first.start()
        group.wait_in_sync(3)
        group.elect(first)
        sender.send(ROUND)
        traffic.check_offsets(
            {member.name: traffic.wait_serves(member, sender.sent) for member in group.brokers}
        )
