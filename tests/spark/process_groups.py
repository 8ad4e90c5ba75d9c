"""Runs groups of real brokers in controller mode, RocketMQ's alone or RocketMQ's and ours, through elections,
kill -9 and truncations. Tests audit them while they run, and damage their directories after a stop."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from epochmq_spark import store_layout
from epochmq_spark.checks.epoch_history import OFFSET_MAX, ReplicaHistory, common_end, leading_replica
from epochmq_spark.decode.epoch_file import parse_epoch_text
from epochmq_spark.files_at_cut import VolumeCut
from tests.spark.damage_kit import records
from tests.spark.seeded_groups import SETTINGS
from tests.spark.volume_readers import VolumeReaders
from tests.support.group_processes import Factory, Member, our_controller
from tests.support.group_traffic import SEND_MESSAGE_V2, SUCCESS, check_equal, max_offset, send_header
from tests.support.process import PATIENCE_S, wait_until
from tests.support.remoting import call
from tests.support.replica_group import ReplicaGroup

PACE_S = 0.03
"""Between two messages."""
SMALL = {
    **SETTINGS,
    "mappedFileSizeCommitLog": 80 * 1024,
    "mappedFileSizeConsumeQueue": 2000,
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    "slaveTimeout": 1000,
    "controllerHeartBeatTimeoutMills": 15_000,
    "messageIndexSafe": True,
}
"""Small files, as in the groups of one process. Without `messageIndexSafe` a killed broker of RocketMQ loses
index entries, and the audit reports them."""


class Traffic:
    """A producer that keeps sending to the present master. `acknowledged` counts acknowledged messages."""

    def __init__(self, group: ReplicaGroup, seed: int) -> None:
        self._group, self._rng = group, random.Random(seed)
        self._numbers = itertools.count()
        self._stop_requested, self._paused = threading.Event(), threading.Event()
        self._master: str | None = None
        self.acknowledged = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def send(self, address: str, timeout_s: float = 5) -> bool:
        """Sends one message with keys and tags, to one of a few queues; whether it was acknowledged."""
        rng = self._rng
        header = send_header(rng.randrange(2), f"{rng.getrandbits(32):08X}{next(self._numbers):024X}")
        header["b"], header["d"] = rng.choice(["orders", "payments"]), "2"
        if rng.random() < 0.5:
            keys = " ".join(f"order-{rng.randrange(50)}" for _ in range(rng.randrange(1, 3)))
            header["i"] += f"KEYS\x01{keys}\x02"
        if rng.random() < 0.5:
            header["i"] += f"TAGS\x01{rng.choice(['new', 'paid', 'Ünicode'])}\x02"
        body = rng.randbytes(rng.choice([1, 40, 300, 700]))
        try:
            return call(address, SEND_MESSAGE_V2, header, body, timeout_s=timeout_s).code == SUCCESS
        except OSError:
            return False

    def _run(self) -> None:
        while not self._stop_requested.wait(PACE_S):
            if self._paused.is_set():
                continue
            with self._lock:
                if self._master is None:
                    master = self._group.master()
                    self._master = None if master is None else master.address
                elif self.send(self._master):
                    self.acknowledged += 1
                else:
                    self._master = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the producer for the length of a block."""
        self._paused.set()
        with self._lock:
            pass
        try:
            yield
        finally:
            self._paused.clear()

    def wait_more(self, count: int) -> None:
        """Waits until `count` more messages are acknowledged."""
        before = self.acknowledged
        wait_until(
            lambda: self.acknowledged >= before + count, what=f"{count} more messages are acknowledged"
        )

    def end(self) -> None:
        """Stops the producer."""
        self._stop_requested.set()
        self._thread.join(120)


class ProcessGroup:
    """A group of broker processes. `cycles` counts the failover cycles so far."""

    def __init__(self, root: Path, brokers: Sequence[Factory], seed: int, octet: int) -> None:
        self.root, self._rng = root, random.Random(seed)
        self.group = ReplicaGroup(root, [our_controller], brokers, broker=SMALL, octet=octet)
        self.cycles = 0
        self.last_cut: tuple[object, ...] = ()  # what the last cut was made of
        self.readers = VolumeReaders()

    def store_directory(self, member: Member) -> Path:
        """The store of a member."""
        return member.config.parent / "store"

    # history

    def run_cycle(self, traffic: Traffic, number: int) -> None:
        """One failover cycle: a broker is elected, gets an unreplicated tail and is killed; another one
        becomes master; the first one returns and its log is truncated."""
        group = self.group
        wanted = group.brokers[number % len(group.brokers)]
        group.elect(wanted)
        traffic.wait_more(self._rng.randrange(20, 60))
        others = [member for member in group.brokers if member is not wanted]
        with traffic.paused():
            for member in others:
                member.process.signal(signal.SIGSTOP)
            before = max_offset(wanted)
            for _ in range(self._rng.randrange(1, 4)):
                traffic.send(wanted.address, timeout_s=1)

            def has_tail() -> bool:
                if max_offset(wanted) > before:
                    return True
                traffic.send(wanted.address, timeout_s=1)  # a starved master rejects sends for a moment
                return False

            wait_until(has_tail, what="its log has an unreplicated tail")
            wanted.process.kill()
            for member in others:
                member.process.signal(signal.SIGCONT)
        group.wait_master(other_than=wanted)
        traffic.wait_more(self._rng.randrange(10, 40))
        wanted.start()
        group.wait_in_sync(len(group.brokers))
        traffic.wait_more(5)
        self.cycles += 1

    def stop(self) -> list[Path]:
        """Stops all brokers cleanly; copies of their directories, named after their broker ids."""
        check_equal(self.group)
        for member in self.group.brokers:
            member.process.stop()
        self.group.kill()
        target = self.root / "healthy"
        for member in self.group.brokers:
            read_identity = store_layout.read_identity(str(self.store_directory(member)))
            assert read_identity is not None, member.name
            shutil.copytree(self.store_directory(member), target / f"r{read_identity[2]}")
        paths = sorted(target.iterdir())
        write_consumer_offsets(paths)
        return paths

    # cuts

    def cut(self) -> tuple[int, dict[str, bytes]] | None:
        """A cut at the common end of all logs, and the epoch files; None while too few brokers respond.
        RocketMQ's brokers do not report a confirm offset."""
        before = self._ends()
        copies: dict[str, bytes] = {}
        for member in self.group.brokers:
            with contextlib.suppress(OSError):
                copies[member.name] = (self.store_directory(member) / store_layout.EPOCH_FILE).read_bytes()
        after = self._ends()
        if len(before.keys() & after.keys()) < 2:
            return None
        histories = []
        for name, copy in copies.items():
            entries, fault = parse_epoch_text(copy.decode())
            if fault is not None:
                return None  # it is being written
            one = ReplicaHistory(name, 0, [], entries)
            one.end = min(before.get(name, OFFSET_MAX), after.get(name, OFFSET_MAX))
            histories.append(one)
        self.last_cut = before, after, copies
        leading = leading_replica(histories)
        return min(common_end(one, leading) for one in histories), copies

    def _ends(self) -> dict[str, int]:
        """The max offsets of the brokers that respond."""
        ends = {member.name: max_offset(member) for member in self.group.brokers if member.process.alive}
        return {name: end for name, end in ends.items() if end >= 0}

    def replicas(self, name: str) -> list[store_layout.AuditedReplica]:
        """The group under this name, frozen at a cut made now."""
        replicas = []
        deadline = time.monotonic() + PATIENCE_S
        while (cut := self.cut()) is None:
            assert time.monotonic() < deadline, "too few brokers report their max offset"
        end, copies = cut
        for member in self.group.brokers:
            cut = VolumeCut(end, copies.get(member.name))
            replicas.append(self.readers.show(name, member.name, self.store_directory(member), cut))
        return replicas


def write_consumer_offsets(paths: Sequence[Path]) -> None:
    """Writes consumer offsets inside the queues to every replica."""
    ends: dict[str, dict[str, int]] = {}
    for record in records(paths[0]):
        one = record.message
        if one.topic in ("orders", "payments"):
            ends.setdefault(f"{one.topic}@readers", {})[str(one.queue_id)] = one.queue_offset
    for path in paths:
        folder = path / "config"
        folder.mkdir(exist_ok=True)
        text = json.dumps({"dataVersion": {}, "offsetTable": ends})
        (folder / "consumerOffset.json").write_text(text)
