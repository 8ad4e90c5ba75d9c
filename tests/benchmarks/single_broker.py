"""Runs one broker under its own controller, both ours or both RocketMQ's: the smallest group in which a
master of ours needs a write lease to accept messages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.benchmarks.cells import BODY_BYTES, PULL_BATCH, LoadFailedError
from tests.benchmarks.peers import BROKER_HEAP_MB, UPDATE_AND_CREATE_TOPIC, java_process
from tests.benchmarks.quorums import java_controller
from tests.support.cluster import Settings
from tests.support.group_processes import Factory, Member, our_broker, our_controller
from tests.support.process import ManagedProcess, wait_until
from tests.support.remoting import call
from tests.support.replica_group import ReplicaGroup

OCTET = 66
GET_MAX_OFFSET = 30
START_TIMEOUT_S = 600
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
WRONG_ANSWERS = 5
WRONG_FIELDS = ("unknown", "duplicates", "below", "holes", "broken")
STALL_S = 120
VISIBLE_TIMEOUT_S = 300
MARGIN_S = 600

# All other settings are RocketMQ's defaults. The long time-outs avoid rejections on a busy machine.
SETTINGS: Settings = {
    "mappedFileSizeCommitLog": 1 << 30,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "flushDiskType": "ASYNC_FLUSH",
    "inSyncReplicas": 1,
    "autoCreateTopicEnable": True,
    "traceTopicEnable": False,
    "mappedFileSizeTimerLog": 100 << 20,
}


def java_broker(config: Path) -> ManagedProcess:
    """RocketMQ's broker with the G1 collector and a heap of 2 GB."""
    main = "org.apache.rocketmq.broker.BrokerStartup"
    return java_process(main, config, config.parent, BROKER_HEAP_MB, "java broker")


MAKERS: dict[str, tuple[Factory, Factory]] = {
    "ours": (our_controller, our_broker),
    "java": (java_controller, java_broker),
}


class SingleBroker:
    """A context manager: a controller, a nameserver of ours and a broker. `kind` is `ours` or `java`. The
    folder is deleted at the end."""

    def __init__(self, kind: str, folder: Path) -> None:
        controller, broker = MAKERS[kind]
        self.kind = kind
        self.folder = folder
        self._acknowledged: Counter[str] = Counter()
        self.group = ReplicaGroup(folder, [controller], [broker], broker=SETTINGS, octet=OCTET)

    @property
    def broker(self) -> Member:
        """The broker."""
        return self.group.brokers[0]

    def __enter__(self) -> Self:
        try:
            for member in [*self.group.controllers, self.group.nameserver]:
                member.start()
            wait_until(
                lambda: self.group.leader() is not None, timeout_s=START_TIMEOUT_S, what="a controller leads"
            )
            self.start_broker()
        except BaseException as error:
            error.add_note(self.group.logs())
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.group.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_broker(self) -> None:
        """Starts the broker and waits until clients find it as master."""
        self.broker.start()
        self.group.wait_in_sync(1, timeout_s=START_TIMEOUT_S)

    def restart_broker(self) -> None:
        """Stops the broker cleanly, empties the page cache and starts the broker again."""
        self.broker.process.stop(timeout_s=START_TIMEOUT_S)
        drop_page_cache(self.folder)
        self.start_broker()

    def create_topic(self, topic: str, queues: int) -> None:
        """Creates a topic at the broker."""
        create_topic(self.broker.address, topic, queues)

    def send(self, program: Path, topic: str, **options: str | int | float) -> RunningLoad:
        """Starts a load of sends."""
        return self._begin(program, "send", topic, self._acknowledged, options)

    def pull(self, program: Path, topic: str, **options: str | int | float) -> RunningLoad:
        """Starts a load of pulls."""
        return self._begin(program, "pull", topic, None, options)

    def _begin(
        self,
        program: Path,
        mode: str,
        topic: str,
        acknowledged: Counter[str] | None,
        options: Mapping[str, str | int | float],
    ) -> RunningLoad:
        address, pid = self.broker.address, self.broker.process.pid
        command = load_command(program, address, pid, mode, topic, **options)
        return RunningLoad(command, topic, acknowledged)

    def wait_visible(self, topic: str, queues: int) -> None:
        """Waits until every acknowledged message of a topic can be read: RocketMQ acknowledges a message
        before it writes the unit to the consume queue."""
        wait_until(
            lambda: (
                sum(max_offset(self.broker.address, topic, queue) for queue in range(queues))
                >= self._acknowledged[topic]
            ),
            timeout_s=VISIBLE_TIMEOUT_S,
            what=f"{self.kind} has all messages of {topic} in its queues",
        )

    def read_bytes(self) -> int:
        """The bytes read from the disk for the broker so far."""
        for line in Path(f"/proc/{self.broker.process.pid}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
        raise AssertionError("no read_bytes in /proc/PID/io")


def create_topic(address: str, topic: str, queues: int) -> None:
    """Creates a topic with this many queues at a broker."""
    header = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    response = call(address, UPDATE_AND_CREATE_TOPIC, header)
    assert response.code == 0, f"topic {topic} not created: {response}"


def max_offset(address: str, topic: str, queue: int) -> int:
    """The max offset of a queue."""
    response = call(address, GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)})
    assert response.code == 0, response
    return int(response.ext["offset"])


def load_command(
    program: Path,
    address: str,
    pid: int,
    mode: str,
    topic: str,
    *,
    broker: str | int | float = ReplicaGroup.NAME,
    **options: str | int | float,
) -> list[str]:
    """The command line of the load program."""
    host, _, port = address.rpartition(":")
    known: dict[str, str | int | float] = {
        "broker": broker,
        "body": BODY_BYTES,
        "batch": PULL_BATCH,
        "stall": STALL_S,
        "pid": pid,
    }
    words = {"host": host, "port": port, "topic": topic, **known, **options}
    return [str(program), mode, *(f"{key}={value}" for key, value in words.items())]


class RunningLoad:
    """A load that runs until it is stopped. Rejected sends are counted and do not make it fail."""

    def __init__(self, command: list[str], topic: str = "", acknowledged: Counter[str] | None = None) -> None:
        """Adds the number of acknowledged messages to `acknowledged` of the topic."""
        self._topic = topic
        self._acknowledged = acknowledged
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def open_window(self) -> None:
        """Starts the measured window. The load must be running."""
        self._process.send_signal(signal.SIGUSR1)

    def alive(self) -> bool:
        """Whether the load is running."""
        return self._process.poll() is None

    def ended(self, timeout_s: float) -> bool:
        """Waits for the load to end by itself; whether it did in time."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return not self.alive()

    def result(self, *, end: bool = True, timeout_s: float = STALL_S + MARGIN_S) -> dict[str, Any]:
        """Stops the load if `end` is set, and returns its output with the number of rejected requests as
        `refused`. Raises LoadFailedError for all other errors."""
        if end:
            self._process.send_signal(signal.SIGTERM)
        try:
            out, err = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        status = self._process.returncode
        found: dict[str, Any] = json.loads(out.splitlines()[-1]) if status in (0, WRONG_ANSWERS) else {}
        if not found or any(found[field] for field in WRONG_FIELDS):
            raise LoadFailedError(f"the load ended with {status}: {out[-2000:]}{err[-2000:]}")
        found["refused"] = sum(count for code, count in found["codes"].items() if code not in ("0", "19"))
        if self._acknowledged is not None:
            self._acknowledged[self._topic] += found["codes"].get("0", 0)
        return found

    def kill(self) -> None:
        """Kills the load."""
        self._process.kill()
        self._process.communicate()


def drop_page_cache(folder: Path) -> None:
    """Flushes dirty pages and drops the page cache (without root: only for the files below this folder).
    Pages that a process maps stay, so the broker must not run."""
    os.sync()
    try:
        DROP_CACHES.write_text("3\n")
    except OSError:
        for path in folder.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)
