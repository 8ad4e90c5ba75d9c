"""Runs RocketMQ's clients in pods of a namespace and checks their messages: every acknowledged message is
stored where it was acknowledged, and nothing else is; no two masters wrote at a time; the consumers got all
of it; the replicas' logs are the same bytes."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, cast

from tests.integration.ack_checks import Ack, check_masters, check_seen, check_stored, epoch_starts
from tests.integration.chaos.journals import SEND_OK, ConsumerJournal, ProducerJournal, number_of
from tests.kubernetes.operator_process import Groups
from tests.kubernetes.testbed.clients import java_command
from tests.kubernetes.testbed.pods import claim, pod
from tests.kubernetes.testbed.processes import TestbedError
from tests.support.group_processes import Member
from tests.support.group_traffic import TOPIC, max_offset, read_queue

BROKER_PORT = 10911
TRIES = 3
"""RocketMQ's producer retries twice."""
THREADS, PAUSE_MS = "2", "10"
CLIENT_TIMEOUT_S = 180


class Broker(NamedTuple):
    """A broker's pod, and its address on this machine; it stands for a Member, of which no more is used."""

    name: str
    address: str


class Traffic:
    """A Java producer, and a push and a pull consumer, of the topic `orders` of a group."""

    def __init__(self, groups: Groups, image: str, group: str, *, producer: str = "producer") -> None:
        self.groups = groups
        self.group = group
        self.producer = producer
        self._image = image
        self.producer_journal: ProducerJournal
        self.consumer_journal: ConsumerJournal

    def start(self, *, node: str | None = None, consumers: bool = True) -> None:
        """Starts the clients, on this node or anywhere, and waits until messages are acknowledged and
        consumed."""
        how = (THREADS, PAUSE_MS)
        self.producer_journal = self._journal(
            ProducerJournal, self.producer, "ChaosProducer", *how, node=node
        )
        if consumers:
            self.consumer_journal = self._journal(ConsumerJournal, "consumers", "ChaosConsumers", node=node)
        self.wait_acks(20)
        if consumers:
            self.groups.cluster.wait(self._all_consume, CLIENT_TIMEOUT_S, "the consumers see messages")

    def _all_consume(self) -> bool:
        self.consumer_journal.read()
        return all(self.consumer_journal.seen.values())

    def _journal(self, kind: type, name: str, program: str, *more: str, node: str | None) -> Any:
        groups = self.groups
        arguments = (f"{self.group}-nameserver:9876", TOPIC, "/journal/lines", *more)
        command = java_command(program, *arguments)
        # The journal is in a volume of its own, so that it survives the pod.
        client = pod(name, self._image, command=command, node=node, claims={"/journal": name})
        groups.cluster.apply([claim(name), client], namespace=groups.namespace)
        groups.cluster.wait_pod(groups.namespace, name, timeout_s=CLIENT_TIMEOUT_S)
        return kind(self.volume(name) / "lines")

    @property
    def acks(self) -> list[Ack]:
        """The acknowledged messages so far."""
        self.producer_journal.read()
        return self.producer_journal.acks

    def wait_acks(self, more: int = 5) -> None:
        """Waits until this number of further messages is acknowledged."""
        wanted = len(self.acks) + more
        what = f"{more} messages are acknowledged"
        self.groups.cluster.wait(lambda: len(self.acks) >= wanted, CLIENT_TIMEOUT_S, what)

    def stop(self) -> None:
        """Ends the producer, which first completes its sends."""
        cluster, namespace = self.groups.cluster, self.groups.namespace
        cluster.kill_container(namespace, self.producer, "main", signal.SIGTERM)
        cluster.wait_pod(
            namespace, self.producer, phase="Failed"
        )  # a JVM that SIGTERM ends has exit code 143

    def silence_s(self, since_s: float, until_s: float) -> float:
        """The longest time without an acknowledgement between two moments of the monotonic clock."""
        within = sorted(ack.acked_s for ack in self.acks if since_s <= ack.acked_s <= until_s)
        return max(b - a for a, b in itertools.pairwise([since_s, *within, until_s]))

    def outcomes(self) -> Counter[str]:
        """How sends ended."""
        self.producer_journal.read()
        return self.producer_journal.outcomes

    # Checks

    def check(self, *others: Traffic, consumers: bool = True, epochs: bool = True) -> None:
        """Checks all messages after the producer has stopped. `others` sent the same bodies to the group. A
        group on a DLedger log has no `epochs`."""
        acks = [ack for one in (self, *others) for ack in one.acks]
        assert acks
        master = cast(Member, self.broker(self.master()))
        count = max(ack.queue_id for ack in acks) + 1
        queues = [read_queue(master, number) for number in range(count)]
        check_stored(queues, acks, lambda body: sum(one.copies_max(body) for one in (self, *others)))
        if epochs:
            check_masters(epoch_starts(master), acks)
        if consumers:
            self._check_consumed(master, count)

    def master(self) -> str:
        """The pod that reports that it is the master."""
        group = self.groups.get("BrokerGroup", self.group)
        pods = [f"{self.group}-broker-{n}" for n in range(group["spec"]["replicas"])]
        found = [one for one in pods if self.groups.state(one).get("role") == "master"]
        assert len(found) == 1, found
        return found[0]

    def broker(self, name: str) -> Broker:
        """A broker's pod, through a port of this machine."""
        cluster = self.groups.cluster
        ip = cluster.core.read_namespaced_pod(name, self.groups.namespace).status.pod_ip
        return Broker(name, f"127.0.0.1:{cluster.forward(ip, BROKER_PORT)}")

    def copies_max(self, body: bytes) -> int:
        """How many copies of a body this producer's retries allow."""
        number = number_of(body)
        return TRIES if number is not None and number <= self.producer_journal.last else 0

    def _check_consumed(self, master: Member, count: int) -> None:
        wanted = {(ack.queue_id, ack.queue_offset) for ack in self.acks}

        def missing() -> dict[str, list[tuple[int, int]]]:
            self.consumer_journal.read()
            return {who: sorted(wanted - seen.keys()) for who, seen in self.consumer_journal.seen.items()}

        with contextlib.suppress(TestbedError):
            what = "the consumers saw what was acknowledged"
            self.groups.cluster.wait(lambda: not any(missing().values()), CLIENT_TIMEOUT_S, what)
        for who, places in missing().items():
            assert not places, f"{who} lacks {len(places)} of {len(wanted)}: (queue, offset) {places[:9]}"
        # Read anew: the kernel may deliver what a stopped producer had sent only now.
        queues = [read_queue(master, number) for number in range(count)]
        for who, seen in self.consumer_journal.seen.items():
            check_seen(queues, seen, who)

    def check_equal(self, count: int) -> None:
        """Checks that the logs of this number of replicas are equal; nothing is sent meanwhile."""
        pods = [f"{self.group}-broker-{n}" for n in range(count)]

        def end_of_all() -> int | None:
            ends = {max_offset(cast(Member, self.broker(one))) for one in pods}
            return ends.pop() if len(ends) == 1 and -1 not in ends else None

        end = self.groups.cluster.wait(end_of_all, CLIENT_TIMEOUT_S, "all logs end equally")
        logs = {_log(self.volume(f"store-{one}"), end) for one in pods}
        assert len(logs) == 1

    def volume(self, name: str) -> Path:
        """The directory of a claim's volume on this machine."""
        return self.groups.volume(name)

    def summary(self) -> str:
        """A summary in one line."""
        ok = self.outcomes()[SEND_OK]
        others = {how: times for how, times in self.producer_journal.outcomes.items() if how != SEND_OK}
        return f"{ok} of {self.producer_journal.last} sends acknowledged, others {others or 'none'}"


def _log(store: Path, end: int) -> bytes:
    data = bytearray()
    for path in sorted((store / "commitlog").iterdir()):
        with path.open("rb") as file:
            data += file.read(max(end - int(path.name), 0))
    return bytes(data)
