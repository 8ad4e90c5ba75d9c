"""Kill -9 of the broker loses no acknowledged message: under load, while a new commit log file begins, and
while the broker recovers from the kill before."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from tests.integration.kill_rounds import Ledger, check, load_until_killed
from tests.support.cluster import Cluster, OurCluster, Value
from tests.support.process import wait_until
from tests.support.remoting import call

OCTET = 57
ACKS_MAX = 3000
RECOVERY_KILLS_MAX = 3
SEED = int(os.environ.get("EPOCHMQ_SEED", "20260811"))

# Files so small that a new one begins every few hundred messages.
SETTINGS: dict[str, Value] = {
    "mappedFileSizeCommitLog": 512 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 300,
    "maxMessageSize": 256 * 1024,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "messageDelayLevel": "1s 5s",
    "flushConsumerOffsetInterval": 200,
}


class KillRounds:
    """One store directory, and the brokers that run on it one after another."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.start_s = 1.0

    def _answers(self) -> bool:
        try:
            call(self.cluster.broker_address, 0, timeout_s=2)
        except OSError:
            return False
        return True

    def start(self) -> None:
        """Starts the broker, without a nameserver, and records how long that takes."""
        started = time.monotonic()
        process = self.cluster.broker_process
        process.start()
        process.wait_until(self._answers, what="answering")
        self.start_s = time.monotonic() - started

    def kill_while_starting(self) -> None:
        """Starts the broker and kills it while it starts, up to a few times."""
        for _ in range(self.rng.randint(0, RECOVERY_KILLS_MAX)):
            self.cluster.broker_process.start()
            time.sleep(self.rng.uniform(0, self.start_s))  # at a random moment
            self.cluster.broker_process.kill()

    def round(self, number: int, *, whole: bool) -> None:
        """Sends, kills, kills again during recovery, restarts, and compares. Every round adds a topic."""
        topics = ["kill-always", "kill-sometimes" if number % 2 else f"kill-{number}"]
        acks = self.rng.randint(1, ACKS_MAX)
        asyncio.run(
            load_until_killed(
                self.cluster.broker_address,
                self.ledger,
                self.rng,
                topics,
                self.cluster.broker_process.kill,
                acks,
            )
        )
        self.kill_while_starting()
        self.start()
        asyncio.run(check(self.cluster.broker_address, self.ledger, self.rng, whole=whole))

    def run(self, rounds: int) -> None:
        """Runs all rounds. After the last one everything is read from the start, before and after a clean
        restart."""
        self.start()
        for number in range(rounds):
            try:
                self.round(number, whole=number == rounds - 1 or number % 10 == 9)
            except BaseException as error:
                error.add_note(f"in round {number + 1} of {rounds}\n{self.cluster.broker_process.output()}")
                raise
        assert self.cluster.broker_process.stop() == 0
        self.start()
        asyncio.run(check(self.cluster.broker_address, self.ledger, self.rng, whole=True))


def run_rounds(directory: Path, seed: int, rounds: int, flush: str) -> Ledger:
    """Runs the rounds on a cluster of their own. The seed repeats the choices, not the machine's timing."""
    settings = {**SETTINGS, "flushDiskType": flush}
    cluster = OurCluster(directory, broker=settings, octet=OCTET)
    rounds_of = KillRounds(cluster, seed)
    try:
        rounds_of.run(rounds)
    finally:
        cluster.abandon()
    log = cluster.store / "commitlog"
    assert len(list(log.iterdir())) > rounds // 2, "the load never began a new file"
    return rounds_of.ledger


def test_ten_kills_with_synchronous_flush_lose_nothing(tmp_path: Path) -> None:
    ledger = run_rounds(tmp_path, SEED, 10, "SYNC_FLUSH")
    print(f"{ledger.acks} acknowledged, {len(ledger.ever_found)} stored, {len(ledger.sent)} sent")


@pytest.mark.soak
def test_kills_with_asynchronous_flush_lose_nothing_either(tmp_path: Path) -> None:
    """The kernel keeps the pages that the process had written."""
    run_rounds(tmp_path, SEED + 1, 4, "ASYNC_FLUSH")


@pytest.mark.soak
@pytest.mark.parametrize(("flush", "rounds"), [("SYNC_FLUSH", 50), ("ASYNC_FLUSH", 20)])
def test_many_kills_lose_nothing(tmp_path: Path, flush: str, rounds: int) -> None:
    ledger = run_rounds(
        tmp_path, int(time.time()) if "EPOCHMQ_SEED" not in os.environ else SEED, rounds, flush
    )
    print(f"{ledger.acks} acknowledged, {len(ledger.ever_found)} stored, {len(ledger.sent)} sent")


def test_the_rounds_notice_a_lost_message(tmp_path: Path) -> None:
    """The check itself works: it notices a message that the broker never had."""
    cluster = OurCluster(tmp_path, broker=SETTINGS, octet=OCTET)
    rounds = KillRounds(cluster, SEED)
    try:
        rounds.start()
        rounds.round(0, whole=False)
        queue = next(iter(rounds.ledger.acked))
        offset = max(rounds.ledger.acked[queue])
        rounds.ledger.acked[queue][offset + 1000] = "never stored"
        with pytest.raises(AssertionError, match="was acked"):
            asyncio.run(check(cluster.broker_address, rounds.ledger, rounds.rng, whole=False))
    finally:
        cluster.abandon()
    wait_until(lambda: not cluster.broker_process.alive, what="the broker is gone")
