"""`epochmq restart` restarts one broker at a time, the master last, and only while the group is whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epochmq.app import run
from epochmq.exits import ExitCode
from epochmq.verbs import restart
from epochmq_operator.local import replica_requests, status
from epochmq_operator.local.errors import NotReadyError
from epochmq_operator.local.process import ProcessIdentity, current
from epochmq_operator.local.state_directory import PodRecord, PodsFile, StateDirectory
from epochmq_operator.named_replica import PromotionResult
from epochmq_operator.pods import Component
from epochmq_operator.resources import GroupMode
from epochmq_operator.status_model import BrokerGroupStatus, GroupPhase, PodPhase, ReplicaStatus, StatusReport


class FakeRun:
    """A run of one group of three brokers. A broker that gets SIGTERM starts again at once, unless it is in
    `broken`. `events` are the promotions and the signals."""

    def __init__(self, directory: Path) -> None:
        self.state = StateDirectory(directory / "run")
        self.state.create()
        self.state.write_supervisor(current())
        self.mode = GroupMode.CONTROLLER
        self.master = 1
        self.unready: set[int] = set()
        self.broken: set[int] = set()
        self.processes = {n: msgspec.structs.replace(current(), pid=1000 + n) for n in range(3)}
        self.events: list[str] = []
        self.write()

    def write(self) -> None:
        records = [
            PodRecord(
                pod=f"orders-broker-{n}",
                group="orders",
                component=Component.BROKER,
                address="127.9.9.9",
                phase=PodPhase.READY,
                process=one,
            )
            for n, one in self.processes.items()
        ]
        self.state.write_pods(PodsFile(by=current(), applied="", pods=records))

    def replica(self, n: int) -> ReplicaStatus:
        ready = n not in self.unready
        return ReplicaStatus(
            pod=f"orders-broker-{n}", address="a:1", pid=self.processes[n].pid, admin_address=None,
            data_dir="/x", ready=ready, phase=PodPhase.READY if ready else PodPhase.UNREADY,
            reason="" if ready else "disk full", restarts=0, broker_id=n + 1,
            role="master" if n == self.master else "slave", in_sync=ready, epoch=1, max_offset=0,
            confirm_offset=0, fenced=False, drained=False, ha_address=None,
        )  # fmt: skip

    def report(self, *_: object) -> StatusReport:
        group = BrokerGroupStatus(
            name="orders", broker_name="orders", cluster="c", controller_group="orders", mode=self.mode,
            phase=GroupPhase.READY, nameservers=[], replicas=[self.replica(n) for n in range(3)],
        )  # fmt: skip
        return StatusReport(
            state=str(self.state.path), supervisor_pid=1, nameservers=[], nameserver_pods=[], controllers=[],
            controller_groups=[], broker_groups=[group],
        )  # fmt: skip

    async def observe(self, _: StateDirectory) -> None:
        """The report needs no observation."""

    async def promote(self, _: StateDirectory, name: str, timeout_s: float) -> PromotionResult:
        self.events.append(f"promote {name}")
        self.master = int(name[-1])
        return PromotionResult(name, 1, 2, 0)

    def signal(self, wanted: ProcessIdentity, number: int) -> bool:
        n = next(n for n, one in self.processes.items() if one == wanted)
        assert not self.unready, "the group is whole before a restart"
        self.events.append(f"signal {n}")
        self.processes[n] = msgspec.structs.replace(wanted, pid=wanted.pid + 10)
        if n in self.broken:
            self.unready.add(n)
        self.write()
        return True


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    made = FakeRun(tmp_path)
    monkeypatch.setattr(status, "observe", made.observe)
    monkeypatch.setattr(status, "report", made.report)
    monkeypatch.setattr(replica_requests, "promote", made.promote)
    monkeypatch.setattr(restart, "send_signal", made.signal)
    return made


def test_the_master_restarts_last_after_another_replica_took_over(
    fake: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert restart.run(fake.state.path, "orders", 60) == ExitCode.OK
    assert fake.events == ["signal 2", "signal 0", "promote orders/orders-broker-0", "signal 1"]
    assert capsys.readouterr().out.splitlines() == [
        "orders-broker-2: restarted, pid 1012",
        "orders-broker-0: restarted, pid 1010",
        "orders-broker-1: restarted, pid 1011",
    ]


def test_without_a_name_every_group_restarts(fake: FakeRun) -> None:
    restart.run(fake.state.path, None, 60)
    assert [event for event in fake.events if event.startswith("signal")] == [
        "signal 2",
        "signal 0",
        "signal 1",
    ]


def test_one_replica_restarts_alone(fake: FakeRun) -> None:
    restart.run(fake.state.path, "orders/2", 60)
    assert fake.events == ["signal 2"]


def test_the_master_of_a_fixed_group_restarts_without_a_successor_and_the_note_says_so(
    fake: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.mode = GroupMode.MASTER_SLAVE
    restart.run(fake.state.path, "orders/1", 60)
    assert fake.events == ["signal 1"]
    assert "orders-broker-1: sends fail until it is back" in capsys.readouterr().err


def test_nothing_restarts_while_a_replica_is_not_ready(fake: FakeRun) -> None:
    fake.unready = {0}
    with pytest.raises(NotReadyError, match=r"orders-broker-0: disk full.*nothing more was restarted"):
        restart.run(fake.state.path, "orders", 0.1)
    assert fake.events == []


def test_the_others_are_left_as_they_are_if_a_broker_does_not_come_back(fake: FakeRun) -> None:
    fake.broken = {2}
    with pytest.raises(NotReadyError, match=r"orders-broker-2"):
        restart.run(fake.state.path, "orders", 0.1)
    assert fake.events == ["signal 2"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bills", "broker group bills does not run in "),
        ("orders/7", "orders has no replica 7; its replicas are orders-broker-0, "),
        ("/", "expected GROUP/REPLICA"),
    ],
)
def test_an_unknown_name_is_a_clear_error(
    fake: FakeRun, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["restart", name, "--state", str(fake.state.path)]) == ExitCode.FAILED
    assert message in capsys.readouterr().err
    assert fake.events == []


def test_without_a_supervisor_nothing_restarts(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    (fake.state.path / "supervisor.json").unlink()
    assert run(["restart", "--state", str(fake.state.path)]) == ExitCode.FAILED
    assert "starts nothing again: run up again first" in capsys.readouterr().err
    assert fake.events == []
