"""A stranger with the network and no credentials attacks every port of a group that `epochmq up` runs, in
every way that the tests know, at once. RocketMQ's Java clients with credentials notice nothing: no send
fails, and every message arrives. The master, its lease and its epoch stay, and no process exceeds the memory
of a pod."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.up_run import UpRun
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.admin import UPDATE_AND_CREATE_TOPIC, route_queues
from tests.support.attacks import Cluster
from tests.support.cluster import NEVER_BUSY, Settings
from tests.support.net import loopback
from tests.support.process import wait_holds, wait_until
from tests.support.remoting import call, split_address
from tests.support.signing import CHECKED, ROOT, signed
from tests.support.stalls import unless_stalled
from tests.support.stranger import Plan, Port, Report, StrangerProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(1500)]

OCTET = 89
MIB = 1 << 20
POD_BYTES = 512 * MIB
"""The memory limit of the pods for which these groups are configured: `maxReceivedBytes` is what a process
chooses in a pod with this limit."""
CONTROLLERS = """\
apiVersion: epochmq.io/v1alpha1
kind: ControllerGroup
metadata: {{name: names}}
spec: {{replicas: {count}, config: {config}}}
---
"""
GROUP = """\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {{name: orders}}
spec:
  mode: {mode}
  replicas: {replicas}
  brokerName: orders-a
  controllerGroup: names
  config: {config}
"""
MODES = {"Controller": (3, 3), "MasterSlave": (1, 2), "DLedger": (1, 3)}
"""Mode → numbers of controllers or nameservers, and of brokers."""
TOPIC, GROUP_OF_READERS, QUEUES = "orders", "readers", 4
SHORT_S, SOAK_S = 10, 600
KNOWN_S = 30
"""How long the status of an unchanged group may take to show all of it."""
STEADY_CONTROLLERS: Settings = {"writeLeaseMs": 20_000, "heartBeatTimeIntervalMs": 2_000}
"""Settings of controllers with which a stall of a busy machine elects no other leader."""
PATIENT: Settings = {
    **NEVER_BUSY,
    "controllerHeartBeatTimeoutMills": 120_000,
    "haMaxTimeSlaveNotCatchup": 120_000,
}
"""Settings of controllers and brokers with which a stall of a busy machine ends no lease, and removes no
replica. An attack that stops a process for longer does."""
PAUSE_MAX_S = 1.0
SOAK_TIMEOUT_MS, TIMEOUT_MS = 3_000, 60_000
ROLES = ("pid", "restarts", "role", "epoch", "brokerId", "term", "inSync")


class AttackedRun(UpRun):
    """A run of one group, whose clients need credentials and whose members authenticate each other."""

    def __init__(self, directory: Path, mode: str, more: Settings, controller: Settings) -> None:
        super().__init__(directory, "orders")
        self.mode = mode
        controllers, replicas = MODES[mode]
        received = {"maxReceivedBytes": POD_BYTES // 4}
        own = json.dumps({**received, **(controller if mode == "Controller" else {})})
        config = json.dumps({"mappedFileSizeCommitLog": 32 * MIB, **received, **CHECKED, **more})
        self.file.write_text(
            CONTROLLERS.format(count=controllers, config=own)
            + GROUP.format(mode=mode, replicas=replicas, config=config)
        )

    def start(self) -> None:
        """Returns when the group is ready and the nameservers know the topic."""
        done = self.try_up("--admin")
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        wait_holds(self._check_ready)
        fields = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false",
        }  # fmt: skip
        assert call(self.master["address"], UPDATE_AND_CREATE_TOPIC, signed(fields)).code == 0
        for nameserver in self.nameservers:
            wait_until(lambda name=nameserver: route_queues(name, TOPIC) == QUEUES, what="the topic's route")  # type: ignore[misc]

    def _check_ready(self) -> None:
        assert self.group["phase"] == "Ready"
        roles = [one["role"] for one in self.group["replicas"]]
        assert sorted(roles) == ["master"] + ["slave"] * (len(roles) - 1)

    @property
    def group(self) -> Any:
        """The group's status as JSON."""
        (group,) = self.status()["brokerGroups"]
        return group

    @property
    def master(self) -> Any:
        """The status of the master."""
        (master,) = [one for one in self.group["replicas"] if one["role"] == "master"]
        return master

    @property
    def nameservers(self) -> list[str]:
        """The addresses of the nameservers."""
        return list(self.status()["nameservers"])

    def pods(self) -> list[Any]:
        """The status of each pod."""
        found = self.status()
        return [*found["controllers"], *found["nameserverPods"], *found["brokerGroups"][0]["replicas"]]

    def known(self) -> dict[str, Any]:
        """What no stranger changes: processes, roles, epochs and terms; and how many leases have run out."""
        pods = {pod["pod"]: {name: pod.get(name) for name in ROLES} for pod in self.pods()}
        found = self.status()
        (group,) = found["brokerGroups"]
        replicated = [one for quorum in found["controllerGroups"] for one in quorum["replicaGroups"]]
        return {
            "pods": pods,
            "SyncStateSet epochs": [one["syncStateSetEpoch"] for one in replicated],
            "master epoch": group["masterEpoch"],
            "SyncStateSet": group["syncStateSet"],
            "acting master": group["actingMaster"],
            "lapsed leases": sum(lapsed_leases(pod["adminAddress"]) for pod in group["replicas"]),
        }

    def processes(self) -> dict[str, int]:
        """Name → process id of every pod and its sidecar."""
        records = json.loads((self.state / "pods.json").read_text())["pods"]
        found = {pod["pod"]: pod["pid"] for pod in self.pods()}
        found |= {f"{one['pod']}'s sidecar": one["sidecar"]["pid"] for one in records if one["sidecar"]}
        return found

    def ports(self) -> list[Port]:
        """Every port, the master's first."""
        master = self.master["pod"]
        pods = sorted(self.pods(), key=lambda pod: pod["pod"] != master)
        found = []
        for pod in pods:
            host, number = split_address(pod["address"])
            found.append(Port("sidecar", pod["adminAddress"]))
            if "nameserver" in pod:
                found += [Port("controller", pod["address"]), Port("nameserver", pod["nameserver"])]
            elif "haAddress" not in pod:
                found.append(Port("nameserver", pod["address"]))
            else:
                found += [Port("broker", pod["address"]), Port("broker", f"{host}:{number - 2}")]
                if pod["haAddress"] is not None:
                    found.append(Port("ha", pod["haAddress"]))
                if pod["dledgerAddress"] is not None:
                    found.append(Port("dledger", pod["dledgerAddress"]))
        return found

    def raft_group(self) -> str:
        """The name of the Raft group, as the configuration of its members has it."""
        texts = [path.read_text() for path in sorted((self.state / "config").glob("*/*.conf"))]
        found = re.search(r"^(?:controllerDLegerGroup|dLegerGroup)=(.*)$", "\n".join(texts), re.MULTILINE)
        return found[1] if found else "none"


def lapsed_leases(admin_address: str) -> int:
    """How many leases of a broker have run out before they were renewed."""
    text = httpx.get(f"http://{admin_address}/metrics", timeout=120).text
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "epochmq_broker_lease_lapses_total"
    )


class Memory:
    """Looks at the memory of processes again and again; `most` has the most of each, in bytes."""

    def __init__(self, processes: dict[str, int]) -> None:
        self.most = dict.fromkeys(processes, 0)
        self._processes = processes
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory")

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ending.wait(0.2):
            for name, pid in self._processes.items():
                found = None
                with suppress(OSError):  # the process has ended, which is found elsewhere
                    found = re.search(r"RssAnon:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
                if found is not None:
                    self.most[name] = max(self.most[name], int(found[1]) * 1024)


class Clients:
    """A Java producer that sends every message once, and a consumer, both with credentials."""

    def __init__(self, nameservers: Sequence[str], home: Path, timeout_ms: int) -> None:
        self.producer = self._client(
            "SteadyProducer", [";".join(nameservers), "10", str(timeout_ms)], home / "producer"
        )
        self.consumer = self._client(
            "SteadyConsumer",
            [";".join(nameservers), TOPIC, GROUP_OF_READERS, "concurrent", "0"],
            home / "consumer",
        )

    def _client(self, program: str, arguments: list[str], home: Path) -> JavaProcess:
        home.mkdir(parents=True)
        user = {"EPOCHMQ_ACCESS_KEY": ROOT[0], "EPOCHMQ_SECRET_KEY": ROOT[1]}
        classes = compile_java(f"{program}.java")
        return JavaProcess(program, arguments, home=home, classes=classes, heap_mb=128, env=user)

    def lines(self, process: JavaProcess, word: str) -> list[list[str]]:
        """The whole lines of a client's output that begin with this word, as words."""
        text = process.output_path.read_text(errors="replace")
        lines = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
        return [line for line in lines if line[:1] == [word]]

    @property
    def acknowledged(self) -> list[tuple[str, float]]:
        """Body and moment (s, monotonic) of each acknowledged message."""
        # Java's nanoTime and Python's monotonic read the same clock.
        return [(line[1], int(line[4]) / 1e9) for line in self.lines(self.producer, "acked")]

    @property
    def failures(self) -> list[str]:
        """The sends that were not acknowledged in time."""
        return [" ".join(one) for word in ("failed", "open") for one in self.lines(self.producer, word)]

    @property
    def consumed(self) -> set[str]:
        """The bodies that have been consumed."""
        return {line[4] for line in self.lines(self.consumer, "message")}

    def longest_pause_s(self, began_s: float) -> float:
        """The longest time without an acknowledgement since then."""
        moments = [began_s, *(at for _, at in self.acknowledged if at > began_s)]
        return max(after - before for before, after in itertools.pairwise(moments))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Starts both, and waits until messages flow."""
        try:
            for process in (self.consumer, self.producer):
                process.start()
            self.producer.wait_until(lambda: len(self.acknowledged) > 20, what="sending")
            self.consumer.wait_until(lambda: bool(self.consumed), what="consuming")
            yield
        finally:
            for process in (self.producer, self.consumer):
                process.kill()


def attack(
    run: AttackedRun, directory: Path, *, seed: int, seconds: float, connections: int
) -> dict[str, Any]:
    """Lets a stranger attack for this time, and until it has made every attack. Returns what was measured."""
    timeout_ms = SOAK_TIMEOUT_MS if seconds >= SOAK_S else TIMEOUT_MS
    clients = Clients(run.nameservers, directory, timeout_ms)
    status = run.status()
    ports = run.ports()
    plan = Plan(
        target=Cluster(status["brokerGroups"][0]["cluster"], "orders-a", run.raft_group()),
        ports=ports,
        sources=[loopback(OCTET) for _ in range(17)],
        idle=connections,
        slow=connections,
        seed=seed,
        crowd=max(connections // 50, 5),
    )
    kinds = {port.kind for port in ports}
    stranger = StrangerProcess(plan, directory / "stranger")
    with clients.running(), ExitStack() as stack:
        before = run.known()
        memory = stack.enter_context(Memory(run.processes()))
        began = time.monotonic()
        stranger.start()
        stack.callback(stranger.kill)

        def done() -> bool:
            return time.monotonic() - began >= seconds and did_everything(stranger.newest(), kinds)

        stranger.wait_until(done, timeout_s=seconds + 300, what="done")
        pause = clients.longest_pause_s(began)
        report = stranger.newest()
        stranger.stop()
        sent = len(clients.acknowledged)
        clients.producer.wait_until(lambda: len(clients.acknowledged) > sent, what="sending")
        clients.producer.kill()
        bodies = {body for body, _ in clients.acknowledged}
        clients.consumer.wait_until(lambda: clients.consumed >= bodies, what="consuming everything")
        found = {"pause_s": pause, "failures": clients.failures, "sent": len(bodies), "report": report}
        print(found, memory.most, f"{time.monotonic() - began:.0f} s")

        def check_known() -> None:
            """A replica that is late to answer the status has no role in it."""
            assert run.known() == before

        wait_holds(check_known, timeout_s=KNOWN_S)
    assert report.served == []
    assert clients.failures == []
    assert {name: most for name, most in memory.most.items() if most > POD_BYTES} == {}
    return {**found, "memory": memory.most}


def did_everything(report: Report, kinds: set[str]) -> bool:
    """Whether the stranger has made every attack on every kind of port, and done everything else there."""
    work = ("pieces of fuzz", "hoard", "flood", "greed")
    return (
        report.idle > 0
        and report.slow > 0
        and all(report.rounds.get(kind) for kind in kinds)
        and all(report.done.get(f"{one} at {kind}") for one in work for kind in kinds)
    )


@contextmanager
def running(
    directory: Path, mode: str, more: Settings | None = None, controller: Settings | None = None
) -> Iterator[AttackedRun]:
    """The group, stopped at the end."""
    run = AttackedRun(directory, mode, more or {}, controller or {})
    try:
        run.start()
        yield run
    finally:
        run.here("down")


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("Controller", marks=pytest.mark.soak),
        "MasterSlave",
        pytest.param("DLedger", marks=pytest.mark.soak),
    ],
)
def test_a_stranger_disturbs_no_client(tmp_path: Path, mode: str) -> None:
    with running(tmp_path, mode, PATIENT, STEADY_CONTROLLERS) as run:

        def attempt(number: int) -> None:
            attack(run, tmp_path / f"attempt-{number}", seed=number, seconds=SHORT_S, connections=100)

        unless_stalled(tmp_path, attempt)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_a_stranger_disturbs_no_client_for_ten_minutes(tmp_path: Path, mode: str) -> None:
    with running(tmp_path, mode) as run:
        found = attack(run, tmp_path / "attack", seed=int(time.time()), seconds=SOAK_S, connections=1000)
    assert found["pause_s"] < PAUSE_MAX_S
