"""What a group owes to those whom it acknowledged, counted rather than asserted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from epochmq_protocol.message import MessageExt
from tests.integration.ack_checks import Ack
from tests.support.group_traffic import QUEUES, epochs_of, log_of, read_queue
from tests.support.replica_group import Member


@dataclass
class Account:
    """What was acknowledged, and what became of it."""

    acknowledged: int = 0
    lost: list[Ack] = field(default_factory=list)
    divergent: list[str] = field(default_factory=list)
    """Each replica that differs from the master, and where."""


class Ledger:
    """The messages of a group's queues as consumers saw them, and the acknowledgements that were compared
    with them. Each `account` reads what came since the one before; `whole_account` reads all."""

    def __init__(self) -> None:
        self._queues: list[list[MessageExt]] = [[] for _ in range(QUEUES)]
        self._compared = 0

    def account(self, master: Member, replicas: Sequence[Member], acks: Sequence[Ack]) -> Account:
        """Compares the acknowledgements since the last call with what consumers get from the master, and the
        replicas with the master. Nobody sends meanwhile, and the master has confirmed all it has."""
        for queue_id, stored in enumerate(self._queues):
            stored += read_queue(master, queue_id, start=len(stored))
        new = acks[self._compared :]
        self._compared = len(acks)
        found = Account(len(new), [ack for ack in new if not is_stored(self._queues, ack)])
        found.divergent = [
            f"{member.name}: {text}" for member in replicas for text in differences(member, master)
        ]
        return found

    def whole_account(self, master: Member, replicas: Sequence[Member], acks: Sequence[Ack]) -> Account:
        """The same of all acknowledgements and messages."""
        new = len(acks) - self._compared
        self._queues = [[] for _ in range(QUEUES)]
        self._compared = 0
        found = self.account(master, replicas, acks)
        found.acknowledged = new
        return found


def is_stored(queues: Sequence[Sequence[MessageExt]], ack: Ack) -> bool:
    """Whether the message is where its acknowledgement said, byte for byte."""
    stored = queues[ack.queue_id]
    if ack.queue_offset >= len(stored):
        return False
    found = stored[ack.queue_offset]
    return (found.body, found.physical_offset) == (ack.body, ack.position)


def differences(member: Member, master: Member) -> list[str]:
    """How a replica's log and epochs differ from its master's."""
    found = []
    one, other = log_of(member), log_of(master)
    if one != other:
        common = min(len(one), len(other))
        first = next((at for at in range(common) if one[at] != other[at]), common)
        found.append(f"its log has {len(one)} bytes, the master's {len(other)}; they differ from {first} on")
    if epochs_of(member) != epochs_of(master):
        found.append(f"its epochs are {epochs_of(member)!r}, the master's {epochs_of(master)!r}")
    return found
