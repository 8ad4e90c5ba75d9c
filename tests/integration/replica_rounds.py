"""Kills (-9), suspends (SIGSTOP) and stops processes of a replica group while producers send, and then checks
that everything acknowledged is there.

Producers try every broker, also those that are not master, so that two masters at a time would be noticed.
A send without a response is indeterminate: it may be stored once, or not at all.
"""

from __future__ import annotations

import itertools
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.ack_checks import Ack, check_masters, check_stored, epoch_starts
from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import (
    QUEUES,
    SEND_MESSAGE_V2,
    SUCCESS,
    check_equal,
    read_queue,
    send_header,
    wait_confirmed,
)
from tests.support.process import wait_until
from tests.support.remoting import frame, read_frame, split_address
from tests.support.replica_group import ReplicaGroup

ANSWER_S = 2.0
PAUSE_S = 0.02
STRAY = 20
"""One of so many sends goes to a random broker."""
SAFE = {
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    "registerNameServerPeriod": 10_000,
    "haMaxTimeSlaveNotCatchup": 2000,
    "checkSyncStateSetPeriod": 500,
    "controllerHeartBeatTimeoutMills": 3000,
}


class Producer(threading.Thread):
    """Sends to one queue, one message after another (`pause_s` between them), to any broker that accepts."""

    def __init__(self, queue_id: int, addresses: list[str], seed: int, *, pause_s: float = 0.0) -> None:
        super().__init__(name=f"producer-{queue_id}", daemon=True)
        self.acks: list[Ack] = []
        self.sent = 0
        self.fault: BaseException | None = None
        self.queue_id = queue_id
        self._addresses = addresses
        self._pause_s = pause_s
        self._random = random.Random(seed * 100 + queue_id)
        self._sockets: dict[str, socket.socket] = {}
        self._over = threading.Event()

    def finish(self) -> None:
        """Stops sending, and waits for the thread to end."""
        self._over.set()
        self.join(120)
        assert not self.is_alive()
        assert self.fault is None, self.fault

    def run(self) -> None:
        try:
            target = self._random.choice(self._addresses)
            while not self._over.is_set():
                stray = self._random.randrange(STRAY) == 0
                address = self._random.choice(self._addresses) if stray else target
                if not self._send(address) and not stray:
                    self._over.wait(PAUSE_S)
                    target = self._random.choice(self._addresses)
                if self._pause_s:
                    self._over.wait(self._pause_s)
        except BaseException as error:
            self.fault = error
        finally:
            for one in self._sockets.values():
                one.close()

    def _send(self, address: str) -> bool:
        """Sends one message; whether it was acknowledged."""
        self.sent += 1
        body = b"%d-%d-" % (self.queue_id, self.sent) + b"x" * self._random.randrange(1000)
        ext = send_header(self.queue_id, f"{self.queue_id:08X}{self.sent:024X}")
        sent_s = time.monotonic()
        try:
            connection = self._sockets.get(address)
            if connection is None:
                connection = socket.create_connection(split_address(address), timeout=ANSWER_S)
                self._sockets[address] = connection
            connection.sendall(frame(SEND_MESSAGE_V2, ext, body, opaque=self.sent))
            header, _ = read_frame(connection)
        except OSError:
            lost = self._sockets.pop(address, None)
            if lost is not None:
                lost.close()
            return False
        acked_s = time.monotonic()
        assert header["opaque"] == self.sent
        if header["code"] != SUCCESS:
            return False
        found = header["extFields"]
        self.acks.append(
            Ack(
                body,
                self.queue_id,
                int(found["queueOffset"]),
                int(found["msgId"][16:32], 16),
                sent_s,
                acked_s,
                address,
            )
        )
        return True


@dataclass
class Round:
    """One fault, and when it was."""

    what: str
    began_s: float
    ended_s: float


@dataclass
class ReplicaRounds:
    """Three brokers under three controllers. `with ReplicaRounds(…) as rounds: rounds.run(60)`."""

    directory: Path
    seed: int
    octet: int = 72
    fault_plan: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.group = ReplicaGroup(
            self.directory, [our_controller] * 3, [our_broker] * 3, broker=SAFE, octet=self.octet
        )
        addresses = [member.address for member in self.group.brokers]
        self.producers = [Producer(queue, addresses, self.seed) for queue in range(QUEUES)]

    def __enter__(self) -> Self:
        self.group.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.group.members:
            member.process.signal(signal.SIGCONT)
        if error is not None:
            error.add_note(self.history())
            error.add_note(self.group.logs(8000))
        self.group.kill()

    # Faults -------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Applies faults for `seconds`, then checks."""
        for producer in self.producers:
            producer.start()
        wait_until(lambda: all(one.acks for one in self.producers), what="every producer was acknowledged")
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            before = sum(len(one.acks) for one in self.producers)
            self._trouble()
            # At most a minority at a time: the group recovers in between.
            self.group.wait_in_sync(3)
            wait_until(lambda floor=before: self._acks() > floor, what="messages are acknowledged again")  # type: ignore[misc]
        for producer in self.producers:
            producer.finish()
        self.check()

    def _acks(self) -> int:
        return sum(len(one.acks) for one in self.producers)

    def _trouble(self) -> None:
        """One fault, or two at once: one of a broker, one of a controller."""
        began_s = time.monotonic()
        kinds = self.random.choice((("broker",), ("broker",), ("controller",), ("broker", "controller")))
        undo: list[Callable[[], None]] = []
        names = []
        for kind in kinds:
            victim = self._victim(kind)
            how = self.random.choice(("kill", "kill", "stop", "stop", "end"))
            names.append(f"{how} {victim.name}")
            if how == "stop":
                victim.process.signal(signal.SIGSTOP)
                undo.append(partial(victim.process.signal, signal.SIGCONT))
                continue
            if how == "kill":
                victim.process.kill()
            else:
                assert victim.process.stop() == 0, f"{victim.name} did not stop cleanly"
            undo.append(victim.start)
        time.sleep(self.random.uniform(0.1, 3.5))
        for one in undo:
            one()
        # A process that is still starting has no signal handlers: the next fault could not end it in order.
        wait_until(
            lambda: all(self.group.metadata(one) is not None for one in self.group.controllers),
            what="every controller responds",
        )
        self.fault_plan.append(Round(" and ".join(names), began_s, time.monotonic()))

    def _victim(self, kind: str) -> Member:
        """The leader or master, more often than not."""
        members = self.group.brokers if kind == "broker" else self.group.controllers
        leads = self.group.master() if kind == "broker" else self.group.leader()
        return leads if leads is not None and self.random.random() < 0.6 else self.random.choice(members)

    # The account --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Asserts that everything acknowledged is at its place, that queues are dense, that at most one
        master acknowledged at a time, and that all replicas are equal."""
        self.group.wait_in_sync(3)
        master = wait_confirmed(self.group)
        queues = [read_queue(master, producer.queue_id) for producer in self.producers]
        acks = [ack for one in self.producers for ack in one.acks]
        check_stored(queues, acks, lambda body: 1)
        check_masters(epoch_starts(master), acks)
        check_equal(self.group)

    def longest_silence_s(self) -> float:
        """The longest time without an acknowledgement."""
        moments = sorted(ack.acked_s for one in self.producers for ack in one.acks)
        return max(after - before for before, after in itertools.pairwise(moments))

    def history(self) -> str:
        """The faults, and how long nothing was acknowledged after each one began."""
        moments = sorted(ack.acked_s for one in self.producers for ack in one.acks)
        lines = [
            f"seed {self.seed}: {len(moments)} acknowledged of {sum(one.sent for one in self.producers)}"
        ]
        for one in self.fault_plan:
            ends = [*(moment for moment in moments if one.began_s <= moment), float("inf")]
            gaps = [b - a for a, b in zip([one.began_s, *ends], ends, strict=False) if a < one.ended_s + 1]
            lines.append(f"{one.what} for {one.ended_s - one.began_s:.1f} s: silence {max(gaps):.2f} s")
        return "\n".join(lines)
