"""Makes the disks of a group's members fail under RocketMQ's clients, and records what the clients
observed."""

from __future__ import annotations

import errno
import itertools
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.ack_checks import check_seen
from tests.integration.chaos.journals import SEND_OK
from tests.integration.disks.ack_ledger import AckLedger, LossReport
from tests.integration.disks.faulty_volume import FaultyCall
from tests.integration.disks.group import SIZE, FaultyGroup
from tests.support.cluster import Value
from tests.support.group_processes import Member
from tests.support.group_traffic import QUEUES, read_queue, wait_confirmed
from tests.support.process import wait_until
from tests.support.remoting import frame, split_address
from tests.support.replica_group import CONTROLLER_ELECT_MASTER

RECOVERY_TIMEOUT_S = 180.0
EFFECT_TIMEOUT_S = 120.0
SLOW_SYNC_S = 0.5
OBSERVE_S = 0.2
ROOM_BYTES = 64 << 10
CONNECTIONS = 20
CONNECT_TIMEOUT_S = 5.0
UNKNOWN_CODE = 32_000
"""A request code that every process answers, with REQUEST_CODE_NOT_SUPPORTED."""
SETTINGS: dict[str, Value] = {
    "flushDiskType": "SYNC_FLUSH",
    # A full disk affects a store only when it creates a file, so files are full after a second or two.
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 20 * 500,
}
MASTER, REPLICA, CONTROLLER = "master", "replica", "leading controller"
ROLES = (MASTER, REPLICA, CONTROLLER)


class NewClients:
    """Clients that connect to a member while it has a fault and send it a request each."""

    def __init__(self, exits: ExitStack, address: str) -> None:
        self._connections = [exits.enter_context(socket.socket()) for _ in range(CONNECTIONS)]
        for connection in self._connections:
            connection.settimeout(CONNECT_TIMEOUT_S)
            with suppress(OSError):  # the member has closed the connection
                connection.connect(split_address(address))
                connection.sendall(frame(UNKNOWN_CODE))
            connection.setblocking(False)

    def unanswered(self) -> int:
        """The number of clients without a response so far."""
        return sum(not _has_response(connection) for connection in self._connections)


def _has_response(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:  # nothing has arrived, or the member has closed the connection
        return False


@contextmanager
def eio(group: FaultyGroup, member: Member) -> Iterator[None]:
    """Fails every write, sync and allocation with EIO."""
    with _volume_fault(
        group, member, calls=FaultyCall.WRITE | FaultyCall.SYNC | FaultyCall.ALLOCATE, error=errno.EIO
    ):
        yield


@contextmanager
def enospc(group: FaultyGroup, member: Member) -> Iterator[None]:
    """Lets files grow by ROOM_BYTES (a controller's not at all), then fails with ENOSPC."""
    with _volume_fault(group, member, room=ROOM_BYTES if member in group.brokers else 0):
        yield


@contextmanager
def slow_sync(group: FaultyGroup, member: Member) -> Iterator[None]:
    """Delays each sync by half a second."""
    with _volume_fault(group, member, sync_s=SLOW_SYNC_S):
        yield


@contextmanager
def _volume_fault(group: FaultyGroup, member: Member, **fault: Any) -> Iterator[None]:
    volume = group.volumes[member.name]
    volume.fail(**fault)
    try:
        yield
    finally:
        volume.heal()


@contextmanager
def emfile(_: FaultyGroup, member: Member) -> Iterator[NewClients]:
    """Limits the process to its present number of descriptors, while clients connect to it."""
    pid = member.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(list(Path(f"/proc/{pid}/fd").iterdir())), hard))
    try:
        with ExitStack() as connections:
            yield NewClients(connections, member.address)
    finally:
        with suppress(ProcessLookupError):  # the process has ended
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@dataclass(frozen=True)
class DiskFault:
    """A kind of fault. `restarts`: the member is restarted afterwards, as after the replacement of a disk."""

    name: str
    apply: Callable[[FaultyGroup, Member], Any]
    restarts: bool = False
    of_the_disk: bool = True
    """Whether calls of the file system fail. A limit of descriptors takes effect at once."""
    fills: bool = False
    """Whether writes succeed until the member's present files are full."""


FAULTS = (
    DiskFault("EIO", eio, restarts=True),
    DiskFault("ENOSPC", enospc, fills=True),
    DiskFault("slow fsync", slow_sync),
    DiskFault("EMFILE", emfile, of_the_disk=False),
)


@dataclass
class FaultObservation:
    """The effects of one fault."""

    fault: str
    role: str
    felt: int = 0
    """Number of calls of the file system that failed or were delayed, or with EMFILE of new clients without a
    response until the end of the fault."""
    in_sync_min: int = SIZE
    """The smallest size of the SyncStateSet during the fault, as far as the leading controller told it."""
    fault_s: float = 0.0
    healed_s: float = 0.0
    """From the end of the fault until all replicas were in sync and acknowledgements continued."""
    silence_s: float = 0.0
    """The longest time without an acknowledgement between the start of the fault and the recovery."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """The number of sends by result, as RocketMQ's producer reported it after its retries."""
    ended: int | None = None
    """The exit status of the process if it ended."""
    new_master: bool = False
    new_leader: bool = False
    acknowledged: int = 0
    lost: int = 0
    divergent: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


class FaultRounds:
    """Applies one fault after another to one group: `FaultRounds(group).run(MASTER, fault, hold_s=2)`."""

    def __init__(self, group: FaultyGroup) -> None:
        self.group = group
        self._ack_ledger = AckLedger(group.differences)

    def run(self, role: str, fault: DiskFault, *, hold_s: float) -> FaultObservation:
        """Applies the fault until a call is affected and for `hold_s` seconds more, waits until the group has
        recovered, and checks for losses."""
        group = self.group
        found = FaultObservation(fault.name, role)
        member, master, leader = self._member(role), group.wait_master(), group.wait_leader()
        group.producer_journal.read()
        outcomes = Counter(group.producer_journal.outcomes)
        began = time.monotonic()
        volume = group.volumes[member.name]
        affected = volume.affected_calls
        with fault.apply(group, member) as new_clients:
            if fault.of_the_disk:
                wait_until(
                    lambda: self._has_affected_calls(role, member, affected),
                    timeout_s=EFFECT_TIMEOUT_S,
                    what=f"{fault.name} affects {member.name}",
                )
            if fault.fills and role != CONTROLLER:
                wait_until(
                    lambda: self._is_full(role, outcomes),
                    timeout_s=EFFECT_TIMEOUT_S,
                    what=f"{member.name} takes no message more",
                )
            self._hold(hold_s, found)
            found.felt = volume.affected_calls - affected if fault.of_the_disk else new_clients.unanswered()
            found.fault_s = time.monotonic() - began
        ended = time.monotonic()
        found.ended = member.process.status
        if fault.restarts or found.ended is not None:
            member.process.stop()
            member.start()
        group.wait_in_sync(SIZE, timeout_s=RECOVERY_TIMEOUT_S)
        group.producer_journal.read()
        group.wait_acknowledged(len(group.producer_journal.acks), timeout_s=RECOVERY_TIMEOUT_S)
        healed = time.monotonic()
        found.healed_s = healed - ended
        found.new_master = group.wait_master() is not master
        found.new_leader = group.wait_leader() is not leader
        losses = self._check_losses()
        found.acknowledged, found.lost = losses.acknowledged, len(losses.lost)
        found.divergent = losses.divergent
        found.silence_s = self._silence(began, healed)
        found.outcomes = dict(group.producer_journal.outcomes - outcomes)
        return found

    def _has_affected_calls(self, role: str, member: Member, before: int) -> bool:
        """Whether the fault has failed or delayed a call. A controller writes only when something changes, so
        this method requests another master."""
        if self.group.volumes[member.name].affected_calls > before:
            return True
        if role == CONTROLLER:
            self._request_another_master()
        return False

    def _is_full(self, role: str, outcomes: Counter[str]) -> bool:
        """Whether the clients or the controllers have noticed that the member's files are full: the master
        rejects sends, and a replica that cannot store the master's log leaves the SyncStateSet."""
        if role == REPLICA:
            return self._sync_state_size() < SIZE
        journal = self.group.producer_journal
        journal.read()
        return any(count for outcome, count in (journal.outcomes - outcomes).items() if outcome != SEND_OK)

    def _sync_state_size(self) -> int:
        """The size of the SyncStateSet; SIZE while no controller tells it."""
        found = self.group.replicas()
        return SIZE if found is None else len(found["inSyncReplicas"])

    def _hold(self, hold_s: float, found: FaultObservation) -> None:
        """Lets the fault last for this time, and observes the SyncStateSet meanwhile."""
        until = time.monotonic() + hold_s
        while (left_s := until - time.monotonic()) > 0:
            found.in_sync_min = min(found.in_sync_min, self._sync_state_size())
            time.sleep(min(left_s, OBSERVE_S))

    def _request_another_master(self) -> None:
        """Sends one request; a missing response is not a failure."""
        group = self.group
        found = group.replicas()
        others = (
            []
            if found is None
            else [one for one in found["inSyncReplicas"] if one["brokerId"] != found["masterBrokerId"]]
        )
        if others:
            ext = {
                "clusterName": group.CLUSTER,
                "brokerName": group.NAME,
                "brokerId": str(others[0]["brokerId"]),
                "designateElect": "true",
                "invokeTime": "0",
            }
            group.ask(CONTROLLER_ELECT_MASTER, ext)

    def _member(self, role: str) -> Member:
        if role == CONTROLLER:
            return self.group.wait_leader()
        master = self.group.wait_master()
        return master if role == MASTER else next(one for one in self.group.brokers if one is not master)

    def _check_losses(self) -> LossReport:
        group = self.group
        group.pause()
        try:
            return self._ack_ledger.check_new(
                wait_confirmed(group), group.brokers, group.producer_journal.acks
            )
        finally:
            group.resume()

    def _silence(self, began: float, healed: float) -> float:
        moments = sorted(ack.acked_s for ack in self.group.producer_journal.acks)
        within = [began, *(at for at in moments if began <= at <= healed), healed]
        return max(b - a for a, b in itertools.pairwise(within))

    def finish(self) -> None:
        """Stops the producer, waits until both consumers have received every acknowledged message, and checks
        that they received nothing else."""
        group = self.group
        group.producer.stop()
        group.producer_journal.read()
        wanted = {(ack.queue_id, ack.queue_offset) for ack in group.producer_journal.acks}

        def all_seen() -> bool:
            group.consumer_journal.read()
            return all(wanted <= seen.keys() for seen in group.consumer_journal.seen.values())

        wait_until(all_seen, timeout_s=RECOVERY_TIMEOUT_S, what="the consumers saw what was acknowledged")
        master = wait_confirmed(group)
        queues = [read_queue(master, queue_id) for queue_id in range(QUEUES)]
        for who, seen in group.consumer_journal.seen.items():
            check_seen(queues, seen, who)
