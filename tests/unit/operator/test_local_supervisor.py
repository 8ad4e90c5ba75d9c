"""Tests the supervisor and its keepers with small processes instead of nameservers and brokers. They record
when they start and end, and are ready when a file says so."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epochmq_operator.local import keeper, runtime
from epochmq_operator.local.errors import StateError
from epochmq_operator.local.process import ProcessIdentity, current, identify, is_alive
from epochmq_operator.local.readiness import Readiness
from epochmq_operator.local.state_directory import PodRecord, PodsFile, StateDirectory
from epochmq_operator.local.supervisor import Supervisor, end_leftovers
from epochmq_operator.pods import (
    Component,
    Pod,
)
from epochmq_operator.resources import Resources, load_resources
from epochmq_operator.status_model import PodPhase

POD = """
import os, signal, sys, time
name, journal, mode = sys.argv[1:4]
def note(what):
    with open(journal, "a") as file:
        file.write(f"{name} {what}\\n")
def end(*_):
    note("asked to end")
    if mode == "stubborn":
        return
    note("ended")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
note("started")
print("hello from", name, flush=True)
if mode == "broken":
    sys.exit("storePathRootDir=/nowhere: expected a directory")
while True:
    signal.pause()
"""
HEAD = "apiVersion: epochmq.io/v1alpha1\nkind: BrokerGroup\n"
BODY = "metadata: {name: %s}\nspec: {replicas: 1, config: {%s}}\n"


def group(name: str = "a", config: str = "") -> Resources:
    return load_resources([("f", HEAD + BODY % (name, config))])


class PodProcesses:
    """A state directory, and what its fake pods recorded."""

    def __init__(self, directory: Path) -> None:
        self.state = StateDirectory(directory / "state")
        self.state.create()
        self.journal = directory / "journal"
        self.modes: dict[str, str] = {}
        self.unready: set[str] = set()
        self.phases: list[tuple[str, PodPhase]] = []

    def command_of(self, pod: Pod) -> Sequence[str]:
        return [sys.executable, "-S", "-c", POD, pod.name, str(self.journal), self.modes.get(pod.name, "")]

    async def prober(self, pod: Pod) -> Readiness:
        if pod.name in self.unready:
            return Readiness(False, f"{pod.name} is held unready by the test")
        return Readiness(f"{pod.name} started" in self.events()[-20:])

    def events(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def changed(self, record: PodRecord) -> None:
        if not self.phases or self.phases[-1] != (record.pod, record.phase):
            self.phases.append((record.pod, record.phase))

    def last_phase(self, pod: str) -> PodPhase:
        """The last phase that was seen of the pod."""
        return next(phase for name, phase in reversed(self.phases) if name == pod)

    def supervisor(self) -> Supervisor:
        return Supervisor(self.state, command_of=self.command_of, prober=self.prober, on_change=self.changed)

    def record(self, pod: str) -> PodRecord:
        pods = self.state.pods()
        assert pods is not None
        return next(record for record in pods.pods if record.pod == pod)

    def process(self, pod: str) -> ProcessIdentity:
        process = self.record(pod).process
        assert process is not None
        return process

    def is_in(self, pod: str, phase: PodPhase) -> Callable[[], bool]:
        def holds() -> bool:
            pods = self.state.pods()
            return pods is not None and any(r.pod == pod and r.phase is phase for r in pods.pods)

        return holds


async def until(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (other processes bring it about)
            await asyncio.sleep(0.01)


@pytest.fixture
def pod_processes(tmp_path: Path) -> PodProcesses:
    return PodProcesses(tmp_path)


@asynccontextmanager
async def running(pod_processes: PodProcesses, resources: Resources) -> AsyncIterator[Supervisor]:
    supervisor = pod_processes.supervisor()
    pod_processes.state.write_resources(resources)
    await supervisor.start()
    try:
        await supervisor.reconcile()
        yield supervisor
    finally:
        supervisor.kill()
        await supervisor.stop()


NAMESERVER, BROKER = "a-nameserver-0", "a-broker-0"


async def test_brokers_start_after_their_nameserver_is_ready_and_end_before_it(
    pod_processes: PodProcesses,
) -> None:
    pod_processes.unready.add(NAMESERVER)
    supervisor = pod_processes.supervisor()
    pod_processes.state.write_resources(group())
    await supervisor.start()
    await supervisor.reconcile()
    await until(lambda: pod_processes.events() == [f"{NAMESERVER} started"])
    assert pod_processes.record(BROKER).phase is PodPhase.WAITING
    pod_processes.unready.clear()
    await until(pod_processes.is_in(BROKER, PodPhase.READY))
    await supervisor.stop()
    assert pod_processes.events() == [
        f"{NAMESERVER} started",
        f"{BROKER} started",
        f"{BROKER} asked to end",
        f"{BROKER} ended",
        f"{NAMESERVER} asked to end",
        f"{NAMESERVER} ended",
    ]
    assert [record.phase for record in pod_processes.state.pods().pods] == [PodPhase.STOPPED] * 2  # type: ignore[union-attr]


async def test_a_stopped_run_forgets_its_resources_and_keeps_its_files(
    pod_processes: PodProcesses,
) -> None:
    async with running(pod_processes, group()):
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        (pod_processes.state.volume_path(BROKER, "store") / "data").write_text("kept")
    assert pod_processes.state.resources() == Resources()
    assert (pod_processes.state.volume_path(BROKER, "store") / "data").read_text() == "kept"
    assert not pod_processes.state.lock.is_held()


async def test_pods_get_configuration_and_volumes_and_their_output_is_logged(
    pod_processes: PodProcesses,
) -> None:
    async with running(pod_processes, group(config="flushDiskType: SYNC_FLUSH")):
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
    config = (pod_processes.state.path / "config" / BROKER / "broker.conf").read_text()
    assert "flushDiskType=SYNC_FLUSH\n" in config
    store = pod_processes.state.volume_path(BROKER, "store")
    assert store.is_dir()
    assert f"storePathRootDir={store}\n" in config
    assert pod_processes.state.log_path(BROKER).read_text() == f"hello from {BROKER}\n"


async def test_a_process_that_dies_is_started_again(pod_processes: PodProcesses) -> None:
    async with running(pod_processes, group()):
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        before = pod_processes.process(BROKER)
        os.kill(before.pid, signal.SIGKILL)
        await until(pod_processes.is_in(BROKER, PodPhase.BACK_OFF))
        assert pod_processes.record(BROKER).reason == "ended by SIGKILL; starts again after 0.2 s"
        assert pod_processes.record(BROKER).process is None
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        assert pod_processes.process(BROKER) != before
        assert pod_processes.record(BROKER).restarts == 1
        assert pod_processes.record(NAMESERVER).restarts == 0


async def test_a_pod_that_stops_responding_is_unready_and_not_restarted(pod_processes: PodProcesses) -> None:
    async with running(pod_processes, group()):
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        before = pod_processes.process(BROKER)
        pod_processes.unready.add(BROKER)
        await until(pod_processes.is_in(BROKER, PodPhase.UNREADY))
        assert pod_processes.record(BROKER).reason == f"{BROKER} is held unready by the test"
        assert pod_processes.process(BROKER) == before
        pod_processes.unready.clear()
        await until(pod_processes.is_in(BROKER, PodPhase.READY))


async def test_a_pod_that_cannot_start_is_retried_and_the_start_fails(
    pod_processes: PodProcesses,
) -> None:
    pod_processes.modes[BROKER] = "broken"
    pod_processes.unready.add(BROKER)
    async with running(pod_processes, group()) as supervisor:
        await until(lambda: runtime.has_failed(record for record, _ in supervisor.pods()))
        left = runtime.unready(record for record, _ in supervisor.pods())
        assert [record.pod for record in left] == [BROKER]
        explanation = runtime.explain(pod_processes.state, left, "does not come up")
    assert explanation.startswith(f"{BROKER} ({left[0].address}) does not come up: ")
    assert "exit status 1" in explanation
    assert "storePathRootDir=/nowhere: expected a directory" in explanation


async def test_a_process_that_ignores_sigterm_is_killed(
    pod_processes: PodProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(keeper.GRACE_S, Component.BROKER, 0.2)
    pod_processes.modes[BROKER] = "stubborn"
    async with running(pod_processes, group()) as supervisor:
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        process = pod_processes.process(BROKER)
        await asyncio.wait_for(supervisor.stop(), 60)
    assert not is_alive(process)
    assert pod_processes.record(BROKER).reason == "ended by SIGKILL"
    assert pod_processes.events()[-1] == f"{NAMESERVER} ended"


async def test_a_second_signal_kills_the_pods(pod_processes: PodProcesses) -> None:
    pod_processes.modes[BROKER] = "stubborn"
    supervisor = pod_processes.supervisor()
    pod_processes.state.write_resources(group())
    await supervisor.start()
    await supervisor.reconcile()
    await until(pod_processes.is_in(BROKER, PodPhase.READY))
    stopping = asyncio.create_task(supervisor.stop())
    await until(lambda: f"{BROKER} asked to end" in pod_processes.events())
    supervisor.kill()
    await asyncio.wait_for(stopping, 60)
    assert pod_processes.record(BROKER).reason == "ended by SIGKILL"


async def test_reconciling_unchanged_resources_changes_nothing(pod_processes: PodProcesses) -> None:
    async with running(pod_processes, group()) as supervisor:
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        before = [pod_processes.process(pod) for pod in (NAMESERVER, BROKER)]
        await supervisor.reconcile()
        assert [pod_processes.process(pod) for pod in (NAMESERVER, BROKER)] == before
    assert len([event for event in pod_processes.events() if event.endswith("started")]) == 2


async def test_a_changed_group_restarts_only_the_pods_that_differ(pod_processes: PodProcesses) -> None:
    async with running(pod_processes, group()) as supervisor:
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        nameserver, broker = pod_processes.process(NAMESERVER), pod_processes.process(BROKER)
        pod_processes.state.write_resources(group(config="maxMessageSize: 65536"))
        await supervisor.reconcile()
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        assert pod_processes.process(NAMESERVER) == nameserver
        assert pod_processes.process(BROKER) != broker
        assert (
            "maxMessageSize=65536"
            in (pod_processes.state.path / "config" / BROKER / "broker.conf").read_text()
        )


async def test_adding_and_removing_groups_does_not_affect_others(pod_processes: PodProcesses) -> None:
    async with running(pod_processes, group()) as supervisor:
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        before = pod_processes.process(BROKER)
        both = Resources(group().broker_groups + group("b").broker_groups)
        pod_processes.state.write_resources(both)
        await supervisor.reconcile()
        await until(pod_processes.is_in("b-broker-0", PodPhase.READY))
        other = pod_processes.process("b-broker-0")
        addresses = {record.address for record, _ in supervisor.pods()}
        assert len(addresses) == 4
        pod_processes.state.write_resources(group())
        await supervisor.reconcile()
        assert not is_alive(other)
        assert pod_processes.process(BROKER) == before


async def test_two_state_directories_run_the_same_group_side_by_side(tmp_path: Path) -> None:
    worlds = [PodProcesses(tmp_path / name) for name in ("one", "two") if (tmp_path / name).mkdir() is None]
    async with running(worlds[0], group()) as one, running(worlds[1], group()) as other:
        for pod_processes in worlds:
            await until(pod_processes.is_in(BROKER, PodPhase.READY))
        addresses = {record.address for run in (one, other) for record, _ in run.pods()}
        assert len(addresses) == 4


async def test_addresses_stay_the_same_from_run_to_run(pod_processes: PodProcesses) -> None:
    async with running(pod_processes, group()) as supervisor:
        before = [record.address for record, _ in supervisor.pods()]
    async with running(pod_processes, group()) as supervisor:
        assert [record.address for record, _ in supervisor.pods()] == before


async def test_a_port_in_use_is_reported_as_the_reason(pod_processes: PodProcesses) -> None:
    async with running(pod_processes, group()) as supervisor:
        (address, *_) = [record.address for record, _ in supervisor.pods()]
    with socket.socket() as squatter:
        squatter.bind((address, 9876))
        squatter.listen(1)
        async with running(pod_processes, group()) as supervisor:
            await until(lambda: runtime.has_failed(record for record, _ in supervisor.pods()))
            left = runtime.unready(record for record, _ in supervisor.pods())
            explanation = runtime.explain(pod_processes.state, left, "does not come up")
    assert f"{address}:9876 (remoting) is in use by pid {os.getpid()}" in explanation
    assert f"{NAMESERVER} started" not in pod_processes.events()[6:]


async def test_only_one_supervisor_runs_in_a_state_directory(
    pod_processes: PodProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochmq_operator.local.state_lock.LOCK_WAIT_S", 0.1)
    async with running(pod_processes, group()):
        with pytest.raises(StateError, match="in use by another supervisor"):
            await PodProcesses(pod_processes.state.path.parent).supervisor().start()


@asynccontextmanager
async def left_behind(pod_processes: PodProcesses, mode: str = "") -> AsyncIterator[ProcessIdentity]:
    """A broker of a run whose supervisor was killed. At the end the broker is killed and collected: the event
    loop must not end before its child."""
    command = [sys.executable, "-S", "-c", POD, BROKER, str(pod_processes.journal), mode]
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
    try:
        await until(lambda: f"{BROKER} started" in pod_processes.events())
        found = identify(process.pid)
        assert found is not None
        yield found
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def write_left(pod_processes: PodProcesses, process: ProcessIdentity) -> None:
    record = PodRecord(
        pod=BROKER,
        group="a",
        component=Component.BROKER,
        address="127.200.1.1",
        phase=PodPhase.READY,
        process=process,
    )
    pod_processes.state.write_pods(PodsFile(by=current(), applied="", pods=[record]))


async def test_leftovers_of_a_dead_supervisor_end_before_pods_start(
    pod_processes: PodProcesses,
) -> None:
    async with left_behind(pod_processes) as process:
        write_left(pod_processes, process)
        async with running(pod_processes, group()):
            assert not is_alive(process)
            await until(pod_processes.is_in(BROKER, PodPhase.READY))
    assert pod_processes.events()[:3] == [f"{BROKER} started", f"{BROKER} asked to end", f"{BROKER} ended"]


async def test_a_process_with_a_reused_id_is_not_signalled(
    pod_processes: PodProcesses,
) -> None:
    async with left_behind(pod_processes) as process:
        write_left(pod_processes, ProcessIdentity(pid=process.pid, started="1", boot=process.boot))
        assert await end_leftovers(pod_processes.state) == []
        assert is_alive(process)


async def test_a_bug_in_the_supervisor_ends_the_run_in_order(pod_processes: PodProcesses) -> None:
    supervisor = pod_processes.supervisor()
    pod_processes.state.write_resources(group())
    run = asyncio.create_task(runtime.supervise(supervisor))
    await until(pod_processes.is_in(BROKER, PodPhase.READY))
    processes = [pod_processes.process(pod) for pod in (NAMESERVER, BROKER)]
    supervisor.failure.set_exception(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(run, 60)
    assert not any(is_alive(process) for process in processes)
    assert pod_processes.events()[-1] == f"{NAMESERVER} ended"


async def test_a_full_disk_stops_no_pod(pod_processes: PodProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(pod_processes, group()):
        await until(pod_processes.is_in(BROKER, PodPhase.READY))
        process = pod_processes.process(BROKER)

        def full(self: StateDirectory, pods: PodsFile) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(StateDirectory, "write_pods", full)
            pod_processes.unready.add(BROKER)
            await until(lambda: pod_processes.last_phase(BROKER) is PodPhase.UNREADY)
            pod_processes.unready.clear()
            await until(lambda: pod_processes.last_phase(BROKER) is PodPhase.READY)
        assert is_alive(process)


async def test_a_reload_reads_the_changed_resources(pod_processes: PodProcesses) -> None:
    supervisor = pod_processes.supervisor()
    pod_processes.state.write_resources(group())
    ending = asyncio.Event()
    run = asyncio.create_task(runtime.supervise(supervisor, until=ending))
    await until(pod_processes.is_in(BROKER, PodPhase.READY))
    pod_processes.state.write_resources(Resources(group().broker_groups + group("b").broker_groups))
    await asyncio.to_thread(runtime.reload, pod_processes.state)
    await until(pod_processes.is_in("b-broker-0", PodPhase.READY))
    ending.set()
    await asyncio.wait_for(run, 60)
    assert len([event for event in pod_processes.events() if event.endswith(" ended")]) == 4


async def test_a_signal_to_end_ends_the_run_in_order(pod_processes: PodProcesses) -> None:
    supervisor = pod_processes.supervisor()
    pod_processes.state.write_resources(group())
    run = asyncio.create_task(runtime.supervise(supervisor))
    await until(pod_processes.is_in(BROKER, PodPhase.READY))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(run, 60)
    assert pod_processes.events()[-1] == f"{NAMESERVER} ended"


PAIR = HEAD + "metadata: {name: a}\nspec: {mode: MasterSlave, replicas: 3, config: {%s}}\n"
PAIR_BROKERS = [f"a-broker-{number}" for number in range(3)]


def pair(config: str = "") -> Resources:
    return load_resources([("f", PAIR % config)])


def ends(pod_processes: PodProcesses) -> list[str]:
    """The pods that ended, in order."""
    return [line.split()[0] for line in pod_processes.events() if line.endswith(" ended")]


async def test_slaves_restart_before_their_master_each_when_all_others_are_ready(
    pod_processes: PodProcesses,
) -> None:
    first, second, master = reversed(PAIR_BROKERS)
    async with running(pod_processes, pair()) as supervisor:
        for pod in PAIR_BROKERS:
            await until(pod_processes.is_in(pod, PodPhase.READY))
        pod_processes.unready.add(first)
        await until(pod_processes.is_in(first, PodPhase.UNREADY))
        pod_processes.state.write_resources(pair("flushDiskType: SYNC_FLUSH"))
        await supervisor.reconcile()
        # It was not ready, and so restarts at once; the others wait until it is ready.
        await until(lambda: ends(pod_processes) == [first])
        await until(pod_processes.is_in(first, PodPhase.STARTING))
        left = runtime.unready(record for record, _ in supervisor.pods())
        assert {record.pod for record in left} == set(PAIR_BROKERS)
        assert "former configuration" in runtime.explain(pod_processes.state, left, "x")
        assert ends(pod_processes) == [first]
        pod_processes.unready.clear()
        await until(lambda: not runtime.unready(record for record, _ in supervisor.pods()))
        assert ends(pod_processes) == [first, second, master]
        events = pod_processes.events()
        assert events.index(f"{second} ended") < events.index(f"{master} asked to end")
        for pod in PAIR_BROKERS:
            config = (pod_processes.state.path / "config" / pod / "broker.conf").read_text()
            assert "flushDiskType=SYNC_FLUSH\n" in config


async def test_a_later_change_replaces_restarts_that_have_not_begun(pod_processes: PodProcesses) -> None:
    first, _, master = reversed(PAIR_BROKERS)
    async with running(pod_processes, pair()) as supervisor:
        for pod in PAIR_BROKERS:
            await until(pod_processes.is_in(pod, PodPhase.READY))
        pod_processes.unready.add(first)
        pod_processes.state.write_resources(pair("flushDiskType: SYNC_FLUSH"))
        await supervisor.reconcile()
        await until(lambda: pod_processes.events().count(f"{first} started") == 2)
        pod_processes.unready.clear()
        pod_processes.state.write_resources(pair())
        await supervisor.reconcile()
        await until(lambda: not runtime.unready(record for record, _ in supervisor.pods()))
        config = (pod_processes.state.path / "config" / master / "broker.conf").read_text()
        assert "SYNC_FLUSH" not in config
        assert ends(pod_processes).count(first) == 2


async def test_a_run_stops_while_pods_wait_for_their_turn(pod_processes: PodProcesses) -> None:
    first = PAIR_BROKERS[-1]
    async with running(pod_processes, pair()) as supervisor:
        for pod in PAIR_BROKERS:
            await until(pod_processes.is_in(pod, PodPhase.READY))
        pod_processes.unready.add(first)
        await until(pod_processes.is_in(first, PodPhase.UNREADY))
        pod_processes.state.write_resources(pair("flushDiskType: SYNC_FLUSH"))
        await supervisor.reconcile()
        await until(lambda: ends(pod_processes) == [first])
    assert {record.phase for record in pod_processes.state.pods().pods} == {PodPhase.STOPPED}  # type: ignore[union-attr]
