"""Chaos rounds over two groups without controllers, whose slaves act for their masters, under every kind of
message: processes die and hang, links are cut, and due messages of one group leave for the other."""

from __future__ import annotations

import json
import random
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.integration.chaos import disks
from tests.integration.chaos.faults import ChaosFault, ChaosFaultPlan
from tests.integration.chaos.group import JUDGE, PORTS, ChaosProcesses
from tests.integration.chaos.mixed import MixedClients, MixedRounds
from tests.integration.chaos.mixed_journals import MixedConsumerJournal, MixedProducerJournal
from tests.integration.chaos.network import Network
from tests.integration.chaos.rounds import HEAL_S
from tests.support.cluster import GET_BROKER_CLUSTER_INFO, NEVER_BUSY, START_TIMEOUT_S, Value, properties
from tests.support.group_processes import Factory, Member
from tests.support.process import wait_until
from tests.support.remoting import call

UPDATE_AND_CREATE_TOPIC, RUNTIME_INFO, GET_BROKER_HA_STATUS = 17, 28, 907
GROUPS = ("broker-a", "broker-b")
KINDS = ("retry", "delay", "timer", "transaction", "pop", "order")
QUEUES = 4
NOT_ACTIVE_MS = 3000
"""After which a nameserver drops a silent broker: less than most faults last."""
BROKER: dict[str, Value] = {
    "brokerClusterName": "TestCluster",
    "brokerRole": "SYNC_MASTER",
    "enableSlaveActingMaster": True,
    "enableRemoteEscape": True,
    "slaveReadEnable": True,
    "totalReplicas": 2,
    "inSyncReplicas": 2,
    "enableAutoInSyncReplicas": True,
    "brokerNotActiveTimeoutMillis": NOT_ACTIVE_MS,
    # The topics are created in both groups; one that is unknown for a moment must not be created in one.
    "autoCreateTopicEnable": False,
    "mappedFileSizeCommitLog": 16 << 20,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "mappedFileSizeTimerLog": 1 << 20,
    "registerNameServerPeriod": 10_000,
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 10_000,
    **NEVER_BUSY,
}
NAMESERVER: dict[str, Value] = {
    "supportActingMaster": True,
    "notifyMinBrokerIdChanged": True,
    "scanNotActiveBrokerInterval": 500,
}


class ActingGroups(MixedClients, ChaosProcesses):
    """A nameserver, two groups of a master and a slave, and the clients. `brokers`: first the masters."""

    CLIENTS: Sequence[str] = ("producer", "consumers")

    def __init__(self, directory: Path, settings: dict[str, Value]) -> None:
        self.directory = directory
        names = [f"{group}-{number}" for number in range(2) for group in GROUPS]
        self.places = ["nameserver", *names, *self.CLIENTS]
        self.network = Network([*self.places, JUDGE])
        library = disks.compile_shim(directory)
        self.slow_disks = {name: disks.SlowDisk(library, directory / "switches" / name) for name in names}
        self.small_disks: dict[str, disks.SmallDisk] = {}
        self.controllers: list[Member] = []
        self.nameserver = self._member(
            "nameserver",
            self._made_by("nameserver"),
            {**NAMESERVER, "kvConfigPath": str(directory / "nameserver" / "kvConfig.json")},
        )
        self.brokers = [self._broker(name, settings) for name in names]
        self.sent = MixedProducerJournal(directory / "producer" / "journal")
        self.consumed = MixedConsumerJournal(directory / "consumers" / "journal")
        self.clients = self._mixed_clients(self.nameserver.address, ",".join(GROUPS))
        self._exits = ExitStack()

    def _member(self, name: str, make: Factory, settings: dict[str, Value]) -> Member:
        host, port = self.network.address[name], PORTS[name.split("-")[0]]
        path = self.directory / name / f"{name}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(properties({"listenPort": port, "bindAddress": host, **settings}))
        return Member(name, f"{host}:{port}", path, make, make(path))

    def _broker(self, name: str, settings: dict[str, Value]) -> Member:
        group, _, number = name.rpartition("-")
        host, store = self.network.address[name], self.directory / name / "store"
        own: dict[str, Value] = {
            "brokerName": group,
            "brokerId": int(number),
            "brokerIP1": host,
            "brokerIP2": host,
            "haListenPort": PORTS["broker"] + 1,
            "namesrvAddr": self.nameserver.address,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
        }
        role: dict[str, Value] = {} if number == "0" else {"brokerRole": "SLAVE"}
        return self._member(name, self._made_by("broker"), {**BROKER, **settings, **own, **role})

    # Life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            exits.enter_context(self.network)
            exits.enter_context(self.network.within(JUDGE))
            exits.callback(self._end_processes)
            for member in (self.nameserver, *self.brokers):
                member.start()
            self.wait_in_sync(timeout_s=START_TIMEOUT_S)
            self._create_topics()
            for process in self.clients:
                process.start()
            self.wait_clients(acks=0, timeout_s=180)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs(6000))
        self._exits.close()

    def _end_processes(self) -> None:
        for process in self.clients:
            process.kill()
        for member in (*self.brokers, self.nameserver):
            member.process.kill()

    def _create_topics(self) -> None:
        """Of the messages that are consumed in order, the offsets of one group are compared: so the topic
        is in one group only."""
        for kind in KINDS:
            for master in self.brokers[: 1 if kind == "order" else 2]:
                fields = {
                    "topic": f"mixed-{kind}", "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
                    "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "0", "order": "false",
                }  # fmt: skip
                response = call(master.address, UPDATE_AND_CREATE_TOPIC, fields)
                assert response.code == 0, response

    def logs(self, characters: int = 2500) -> str:
        """The end of every process's log."""
        parts = []
        for process in (*(member.process for member in (self.nameserver, *self.brokers)), *self.clients):
            lines = [line for line in process.output(100_000).splitlines() if "|-INFO in" not in line]
            parts.append(f"--- {process.name} (status {process.status})\n" + "\n".join(lines)[-characters:])
        return "\n".join(parts)

    # State --------------------------------------------------------------------------------------------------

    def leader(self) -> Member | None:
        """There are no controllers."""
        return None

    def master(self) -> Member | None:
        """The master of the first group."""
        return self.brokers[0]

    def slave_of(self, master: Member) -> Member:
        """The other broker of a master's group."""
        return self.brokers[self.brokers.index(master) + len(GROUPS)]

    def listed(self) -> dict[str, set[str]]:
        """Name of a group → the ids of its brokers that the nameserver lists."""
        response = call(self.nameserver.address, GET_BROKER_CLUSTER_INFO, timeout_s=5)
        assert response.code == 0, response
        table = _json(response.body)["brokerAddrTable"]
        return {name: set(group["brokerAddrs"]) for name, group in table.items()}

    def runtime(self, broker: Member) -> dict[str, str]:
        """What a broker says of itself."""
        response = call(broker.address, RUNTIME_INFO, timeout_s=30)
        assert response.code == 0, response
        found: dict[str, str] = json.loads(response.body)["table"]
        return found

    def log_end(self, broker: Member) -> int:
        """The end of a broker's log."""
        status = json.loads(call(broker.address, GET_BROKER_HA_STATUS, timeout_s=5).body)
        if status["master"]:
            return int(status["masterCommitLogMaxOffset"])
        return int(status["haClientRuntimeInfo"]["maxOffset"])

    def wait_in_sync(self, count: int = 2, *, timeout_s: float) -> None:
        """Waits until all brokers are listed, and each group has a master and a slave that follows it."""

        def reached() -> bool:
            for member in (self.nameserver, *self.brokers):
                assert member.process.alive, f"{member.name} ended with {member.process.status}"
            if self.listed() != {group: {"0", "1"} for group in GROUPS}:
                return False
            roles = [self.runtime(broker).get("groupRole") for broker in self.brokers]
            if roles != ["master"] * len(GROUPS) + ["slave"] * len(GROUPS):
                return False
            return all(self._is_followed(master) for master in self.brokers[: len(GROUPS)])

        wait_until(reached, timeout_s=timeout_s, what="both groups have a master and a slave")

    def _is_followed(self, master: Member) -> bool:
        status = json.loads(call(master.address, GET_BROKER_HA_STATUS, timeout_s=5).body)
        return bool(status["haConnectionInfo"])

    def difference(self) -> str | None:
        """How a slave's log differs from its master's; None if both are equal, byte for byte."""
        for master in self.brokers[: len(GROUPS)]:
            slave = self.slave_of(master)
            end, slave_end = self.log_end(master), self.log_end(slave)
            if slave_end != end:
                return f"the log of {master.name} ends at {end}, that of {slave.name} at {slave_end}"
            log, copy = self._log_bytes(master, end), self._log_bytes(slave, end)
            if log != copy:
                pairs = enumerate(zip(log, copy, strict=False))
                first = next((at for at, (one, other) in pairs if one != other), min(len(log), len(copy)))
                return (
                    f"the logs of {master.name} ({len(log)} bytes) and {slave.name} ({len(copy)}) differ from"
                    f" offset {self._log_begin(master) + first} on, of {end}"
                )
        return None

    def _log_begin(self, broker: Member) -> int:
        return min(int(path.name) for path in self._log_files(broker))

    def _log_bytes(self, broker: Member, end: int) -> bytes:
        data = bytearray()
        for path in self._log_files(broker):
            data += path.read_bytes()[: max(end - int(path.name), 0)]
        return bytes(data)

    def _log_files(self, broker: Member) -> list[Path]:
        return sorted((self.directory / broker.name / "store" / "commitlog").iterdir())


def _json(body: bytes) -> Any:
    """A body whose maps have integers as keys."""
    return json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))


class ActingFaultPlan(ChaosFaultPlan):
    """Draws the faults of processes and links. Masters are concerned more often than slaves."""

    def __init__(self, groups: ActingGroups, chance: random.Random) -> None:
        super().__init__(groups, chance)
        self._groups = groups
        self.escaped = 0
        """Messages that left for another group during the faults that begin with a master's end."""

    def _own_kinds(self) -> list[Callable[[], ChaosFault]]:
        return [self._end_of_a_master]

    def essential(self) -> list[ChaosFault]:
        """One fault of each family, in a drawn order."""
        kinds: list[Callable[[], ChaosFault]] = [
            self._end_of_a_master,
            self._hang,
            partial(self._cut, "cut off", hears=False, heard=False),
        ]
        self._chance.shuffle(kinds)
        return [kind() for kind in kinds]

    def draw_some(self) -> list[ChaosFault]:
        """One fault, or two at once. One that waits for an acting slave has no other beside it, which could
        keep the slave from acting."""
        found = super().draw_some()
        return next(([one] for one in found if one.alone), found)

    def _broker(self) -> Member:
        masters = self._groups.brokers[: len(GROUPS)]
        return self._chance.choice(masters if self._chance.random() < 0.7 else self._groups.brokers)

    def _server(self) -> Member:
        return self._broker()

    def _end_of_a_master(self) -> ChaosFault:
        """Kills a master until its slave acts, and a message has left for the other group."""
        master = self._chance.choice(self._groups.brokers[: len(GROUPS)])
        slave = self._groups.slave_of(master)

        def has_sent() -> bool:
            runtime = self._groups.runtime(slave)
            return runtime.get("groupRole") == "acting" and int(runtime["escapedMessages"]) > before

        before = 0

        def kill() -> None:
            nonlocal before
            before = int(self._groups.runtime(slave).get("escapedMessages", "0"))
            master.process.kill()

        def start() -> None:
            wait_until(has_sent, timeout_s=HEAL_S, what=f"{slave.name} acts, and a message has left")
            self.escaped += int(self._groups.runtime(slave)["escapedMessages"]) - before
            master.start()

        return ChaosFault(
            f"kill {master.name} until messages have left", kill, start, process=True, alone=True
        )

    def _kill_all(self) -> ChaosFault:
        """Kills both brokers of a group."""
        master = self._chance.choice(self._groups.brokers[: len(GROUPS)])
        both = (master, self._groups.slave_of(master))

        def kill() -> None:
            for member in both:
                member.process.signal(signal.SIGKILL)
            for member in both:
                member.process.kill()

        def start() -> None:
            for member in self._chance.sample(both, 2):
                member.start()

        return ChaosFault(f"kill both brokers of {master.name[:-2]}", kill, start, process=True)


class ActingRounds(MixedRounds):
    """`with ActingRounds(folder, seed) as rounds: rounds.run(60)`."""

    group: ActingGroups  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.settings = {
            "enablePopBufferMerge": self.random.random() < 0.5,
            "lockInStrictMode": self.random.random() < 0.3,
            **self.settings,
        }
        self.group = ActingGroups(self.directory, self.settings)
        self.fault_plan = ActingFaultPlan(self.group, self.random)  # type: ignore[assignment]

    def _differences(self) -> str | None:
        """Of the slaves' logs from their masters'. Brokers still write for some seconds."""
        return self.group.difference()

    def history(self) -> str:
        """The faults, what was sent and consumed, and what escaped."""
        plan = self.fault_plan
        assert isinstance(plan, ActingFaultPlan)
        return f"{super().history()}\n{plan.escaped} messages left a group while their master was killed"
