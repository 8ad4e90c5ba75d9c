"""Runs replica groups for measurements: three controllers, a nameserver of ours and three brokers;
controllers and brokers are all ours or all RocketMQ's."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.machine import TICKS_PER_S
from tests.benchmarks.peers import QUEUES, UPDATE_AND_CREATE_TOPIC, java_process
from tests.benchmarks.quorums import java_controller
from tests.interop.java_env import FULL_SPEED, JavaProcess, compile_java
from tests.support.cluster import Settings
from tests.support.group_processes import ElectingGroup, Factory, Member, our_broker, our_controller
from tests.support.process import ManagedProcess, wait_until
from tests.support.remoting import call
from tests.support.replica_group import CONTROLLER_ELECT_MASTER, ReplicaGroup

OCTET = 64
TOPIC = "bench-send"
UPDATE_BROKER_CONFIG, GET_BROKER_RUNTIME_INFO, GET_BROKER_HA_STATUS = 25, 28, 907
SWITCHOVER = 20_001
JAVA_HEAP_MB = 1024
WARMUP_S = 2.0
PRODUCER = Path(__file__).resolve().parent / "java" / "PacedProducer.java"

# All other settings are RocketMQ's defaults. The long queue time-outs avoid rejections on a busy machine.
SETTINGS: Settings = {
    "mappedFileSizeCommitLog": 1 << 30,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "flushDiskType": "ASYNC_FLUSH",
    "brokerHeartbeatInterval": 1000,
    "syncBrokerMetadataPeriod": 5000,
    "checkSyncStateSetPeriod": 5000,
    "controllerHeartBeatTimeoutMills": 10_000,
    "waitTimeMillsInSendQueue": 5000,
    "traceTopicEnable": False,
}


def java_broker(config: Path) -> ManagedProcess:
    """RocketMQ's broker with the G1 collector, configured for three of them on this machine."""
    main = "org.apache.rocketmq.broker.BrokerStartup"
    return java_process(main, config, config.parent, JAVA_HEAP_MB, "java broker")


MAKERS: dict[str, tuple[Factory, Factory]] = {
    "ours": (our_controller, our_broker),
    "java": (java_controller, java_broker),
}


class MeasuredBrokers:
    """The brokers of one group. `kind` is `ours` or `java`."""

    group: ElectingGroup
    kind: str
    folder: Path

    def kill(self) -> None:
        """Kills all processes."""
        self.group.kill()

    @property
    def master(self) -> Member:
        """The present master."""
        return self.group.wait_master()

    def create_topic(self) -> None:
        """Creates the topic at every running broker."""
        header = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        for member in self.group.brokers:
            if member.process.alive:
                answer = call(member.address, UPDATE_AND_CREATE_TOPIC, header)
                assert answer.code == 0, f"{self.kind}: topic not created at {member.name}: {answer}"

    def cpu_s(self) -> float:
        """CPU time of all living brokers so far, in seconds."""
        total = 0
        for member in self.group.brokers:
            if member.process.alive:
                stat = Path(f"/proc/{member.process.pid}/stat").read_text().rpartition(")")[2].split()
                total += int(stat[11]) + int(stat[12])
        return total / TICKS_PER_S

    def log_end(self, member: Member) -> int:
        """The end offset of the broker's log; 0 while it does not respond."""
        try:
            answer = call(member.address, GET_BROKER_RUNTIME_INFO, timeout_s=2)
        except OSError:
            return 0
        return int(_table(answer.body).get("commitLogMaxOffset", 0))


class MeasuredGroup(MeasuredBrokers):
    """One replica group under three controllers."""

    group: ReplicaGroup

    def __init__(self, kind: str, folder: Path, *, waits_for_all: bool = False) -> None:
        """`waits_for_all`: sends wait for every member of the SyncStateSet, not only for one replica."""
        controller, broker = MAKERS[kind]
        settings = {**SETTINGS, "allAckInSyncStateSet": waits_for_all}
        self.kind = kind
        self.folder = folder
        self.group = ReplicaGroup(folder, [controller] * 3, [broker] * 3, broker=settings, octet=OCTET)

    def start(self, brokers: int = 3) -> None:
        """Starts the group with `brokers` brokers and creates the topic."""
        group = self.group
        for member in [*group.controllers, group.nameserver]:
            member.start()
        wait_until(lambda: group.leader() is not None, timeout_s=90, what="a controller leads")
        for member in group.brokers[:brokers]:
            member.start()
        group.wait_in_sync(brokers, timeout_s=180)
        self.create_topic()

    def switch(self) -> Member:
        """A planned switchover, in the way of each program: our master switches over, RocketMQ's controllers
        get an electMaster request. Returns the new master when the controllers list it."""
        old = self.master
        ids = self._ids()
        successor = next(m for m in self.group.brokers if m is not old and m.address in ids)
        if self.kind == "ours":
            ext = {"brokerId": str(ids[successor.address]), "address": successor.address}
            answer = call(old.address, SWITCHOVER, ext, timeout_s=30)
            assert answer.code == 0, answer
        else:
            ext = {
                "clusterName": ReplicaGroup.CLUSTER,
                "brokerName": ReplicaGroup.NAME,
                "brokerId": str(ids[successor.address]),
                "designateElect": "true",
                "invokeTime": str(time.time_ns() // 1_000_000),
            }
            response = self.group.ask(CONTROLLER_ELECT_MASTER, ext)
            assert response is not None, "no controller leads"
            assert response.code == 0, response
        return successor

    def _ids(self) -> dict[str, int]:
        found: dict[str, Any] = self.group.replicas() or {}
        return {one["brokerAddress"]: one["brokerId"] for one in found.get("inSyncReplicas", [])}


def _table(body: bytes) -> dict[str, str]:
    table: dict[str, str] = json.loads(body)["table"]
    return table


class PacedSends:
    """RocketMQ's Java producer, which starts a send every few milliseconds and prints a line with the result
    of each."""

    def __init__(self, nameserver: str, folder: Path, pace_ms: int = 5) -> None:
        self.process = JavaProcess(
            "PacedProducer",
            [nameserver, TOPIC, str(pace_ms)],
            home=folder,
            classes=compile_java(PRODUCER),
            heap_mb=256,
            jvm=FULL_SPEED,
        )
        self._read = 0
        self._lines: list[tuple[int, int, str]] = []

    def start(self) -> None:
        """Returns when sends have been acknowledged for `WARMUP_S`. RocketMQ's client sends its first
        heartbeat one second after its start, on the thread that requests routes; a master that is stopped at
        that moment would delay it for 3 s."""
        self.process.start()
        wait_until(
            lambda: self._acknowledged_for_s() >= WARMUP_S, timeout_s=60, what="sends are acknowledged"
        )

    def sends(self) -> list[tuple[int, int, str]]:
        """(start ns, end ns, status) of every finished send, by CLOCK_MONOTONIC."""
        with self.process.output_path.open("rb") as handle:
            handle.seek(self._read)
            data = handle.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            words = line.split(" ")
            if len(words) == 3 and words[0].isdecimal():
                self._lines.append((int(words[0]), int(words[1]), words[2]))
        return self._lines

    def _acknowledged_for_s(self) -> float:
        ends = [end for _, end, status in self.sends() if status == "SEND_OK"]
        return (max(ends) - min(ends)) / 1e9 if ends else 0.0

    def acknowledged_after(self, start_ns: int) -> int | None:
        """The time at which the first send that started after `start_ns` was acknowledged."""
        ends = [end for start, end, status in self.sends() if start >= start_ns and status == "SEND_OK"]
        return min(ends) if ends else None

    def first_acknowledged_s(self, since_ns: int, begun_ns: int, timeout_s: float) -> float:
        """The seconds from `since_ns` to the first acknowledgement of a send that started after `begun_ns`;
        at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            end = self.acknowledged_after(begun_ns)
            if end is not None:
                return (end - since_ns) / 1e9
            time.sleep(0.01)
        return timeout_s


def sendfile_s(files: list[Path], copies: Path | None = None) -> float:
    """The seconds for a plain `sendfile` of these files over loopback, to a process that discards them. With
    `copies`, the process writes them to files in this folder, which it creates."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        try:
            with socket.create_connection(listener.getsockname()) as reader:
                _receive(reader, [(path.name, path.stat().st_size) for path in files], copies)
                reader.sendall(b"x")
        finally:
            os._exit(0)
    writer, _ = listener.accept()
    started = time.monotonic()
    with writer:
        for path in files:
            with path.open("rb") as handle:
                writer.sendfile(handle)
        writer.shutdown(socket.SHUT_WR)
        writer.recv(1)
    took = time.monotonic() - started
    listener.close()
    os.waitpid(child, 0)
    return took


def _receive(reader: socket.socket, files: list[tuple[str, int]], copies: Path | None) -> None:
    buffer = memoryview(bytearray(1 << 20))
    if copies is None:
        while reader.recv_into(buffer):
            pass
        return
    copies.mkdir()
    for name, left in files:
        with (copies / name).open("wb", buffering=0) as copy:
            while left and (count := reader.recv_into(buffer[:left])):
                copy.write(buffer[:count])
                left -= count
