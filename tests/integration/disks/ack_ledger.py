"""Compares the acknowledgements of a group with its stored messages, and counts the lost ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from epochmq_protocol.message import MessageExt
from tests.integration.ack_checks import Ack
from tests.support.group_processes import Member
from tests.support.group_traffic import QUEUES, epochs_of, log_of, read_queue


@dataclass
class LossReport:
    """The number of acknowledged messages, the lost ones among them, and differences between replicas."""

    acknowledged: int = 0
    lost: list[Ack] = field(default_factory=list)
    divergent: list[str] = field(default_factory=list)
    """One text for each difference between a replica and the master."""


class AckLedger:
    """The messages of a group's queues, read as by a consumer, and the acknowledgements compared with them.
    `check_new` reads the messages since the last check; `check_all` reads all."""

    def __init__(self, differences: Callable[[Member, Member], list[str]]) -> None:
        """`differences` compares a replica with its master."""
        self._differences = differences
        self._queues: list[list[MessageExt]] = [[] for _ in range(QUEUES)]
        self._compared = 0

    def check_new(self, master: Member, replicas: Sequence[Member], acks: Sequence[Ack]) -> LossReport:
        """Compares the acknowledgements since the last call with the messages that consumers get from the
        master, and the replicas with the master. No producer sends meanwhile, and the master has confirmed
        its whole log."""
        for queue_id, stored in enumerate(self._queues):
            stored += read_queue(master, queue_id, start=len(stored))
        new = acks[self._compared :]
        self._compared = len(acks)
        found = LossReport(len(new), [ack for ack in new if not is_stored(self._queues, ack)])
        found.divergent = [
            f"{member.name}: {text}" for member in replicas for text in self._differences(member, master)
        ]
        return found

    def check_all(self, master: Member, replicas: Sequence[Member], acks: Sequence[Ack]) -> LossReport:
        """Compares all acknowledgements and messages."""
        new = len(acks) - self._compared
        self._queues = [[] for _ in range(QUEUES)]
        self._compared = 0
        found = self.check_new(master, replicas, acks)
        found.acknowledged = new
        return found


def is_stored(queues: Sequence[Sequence[MessageExt]], ack: Ack) -> bool:
    """Whether the message is stored at the offset of its acknowledgement, byte for byte."""
    stored = queues[ack.queue_id]
    if ack.queue_offset >= len(stored):
        return False
    found = stored[ack.queue_offset]
    return (found.body, found.physical_offset) == (ack.body, ack.position)


def differences(member: Member, master: Member) -> list[str]:
    """The differences between a replica's log and epochs and its master's, as texts."""
    found = []
    one, other = log_of(member), log_of(master)
    if one != other:
        common = min(len(one), len(other))
        first = next((at for at in range(common) if one[at] != other[at]), common)
        found.append(f"its log has {len(one)} bytes, the master's {len(other)}; they differ from {first} on")
    if epochs_of(member) != epochs_of(master):
        found.append(f"its epochs are {epochs_of(member)!r}, the master's {epochs_of(master)!r}")
    return found
