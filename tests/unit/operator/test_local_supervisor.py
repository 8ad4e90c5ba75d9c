"""The supervisor and its keepers, with small processes in the place of nameservers and brokers: they write
down when they start and end, and are ready when a file says so."""

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
from epochmq_operator.local.process import Process, current, identify, is_alive
from epochmq_operator.local.readiness import Readiness
from epochmq_operator.local.state import (
    PodPhase,
    PodRecord,
    PodsFile,
    StateDirectory,
    StateError,
)
from epochmq_operator.local.supervisor import Supervisor, end_leftovers
from epochmq_operator.render import Component, Pod
from epochmq_operator.resources import Resources, load

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
    return load([("f", HEAD + BODY % (name, config))])


class World:
    """A state directory, and what its fake pods do."""

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
            return Readiness(False, f"{pod.name} is told not to be ready")
        return Readiness(f"{pod.name} started" in self.events()[-20:])

    def events(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def changed(self, record: PodRecord) -> None:
        if not self.phases or self.phases[-1] != (record.pod, record.phase):
            self.phases.append((record.pod, record.phase))

    def last_phase(self, pod: str) -> PodPhase:
        """Whatever became of others since."""
        return next(phase for name, phase in reversed(self.phases) if name == pod)

    def supervisor(self) -> Supervisor:
        return Supervisor(self.state, command_of=self.command_of, prober=self.prober, on_change=self.changed)

    def record(self, pod: str) -> PodRecord:
        pods = self.state.pods()
        assert pods is not None
        return next(record for record in pods.pods if record.pod == pod)

    def process(self, pod: str) -> Process:
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
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@asynccontextmanager
async def running(world: World, resources: Resources) -> AsyncIterator[Supervisor]:
    supervisor = world.supervisor()
    world.state.write_resources(resources)
    await supervisor.start()
    try:
        await supervisor.reconcile()
        yield supervisor
    finally:
        supervisor.kill()
        await supervisor.stop()


NAMESERVER, BROKER = "a-nameserver-0", "a-broker-0"


async def test_brokers_start_when_their_nameserver_is_ready_and_end_before_it(world: World) -> None:
    world.unready.add(NAMESERVER)
    supervisor = world.supervisor()
    world.state.write_resources(group())
    await supervisor.start()
    await supervisor.reconcile()
    await until(lambda: world.events() == [f"{NAMESERVER} started"])
    assert world.record(BROKER).phase is PodPhase.WAITING
    world.unready.clear()
    await until(world.is_in(BROKER, PodPhase.READY))
    await supervisor.stop()
    assert world.events() == [
        f"{NAMESERVER} started",
        f"{BROKER} started",
        f"{BROKER} asked to end",
        f"{BROKER} ended",
        f"{NAMESERVER} asked to end",
        f"{NAMESERVER} ended",
    ]
    assert [record.phase for record in world.state.pods().pods] == [PodPhase.STOPPED] * 2  # type: ignore[union-attr]


async def test_what_ran_is_forgotten_after_an_orderly_end_and_its_files_stay(world: World) -> None:
    async with running(world, group()):
        await until(world.is_in(BROKER, PodPhase.READY))
        (world.state.volume_path(BROKER, "store") / "data").write_text("kept")
    assert world.state.resources() == Resources()
    assert (world.state.volume_path(BROKER, "store") / "data").read_text() == "kept"
    assert not world.state.is_locked()


async def test_pods_are_given_their_configuration_and_volumes_and_their_output_is_kept(world: World) -> None:
    async with running(world, group(config="flushDiskType: SYNC_FLUSH")):
        await until(world.is_in(BROKER, PodPhase.READY))
    config = (world.state.path / "config" / BROKER / "broker.conf").read_text()
    assert "flushDiskType=SYNC_FLUSH\n" in config
    store = world.state.volume_path(BROKER, "store")
    assert store.is_dir()
    assert f"storePathRootDir={store}\n" in config
    assert world.state.log_path(BROKER).read_text() == f"hello from {BROKER}\n"


async def test_a_process_that_dies_is_started_again(world: World) -> None:
    async with running(world, group()):
        await until(world.is_in(BROKER, PodPhase.READY))
        before = world.process(BROKER)
        os.kill(before.pid, signal.SIGKILL)
        await until(world.is_in(BROKER, PodPhase.BACK_OFF))
        assert world.record(BROKER).reason == "ended by SIGKILL; starts again after 0.2 s"
        assert world.record(BROKER).process is None
        await until(world.is_in(BROKER, PodPhase.READY))
        assert world.process(BROKER) != before
        assert world.record(BROKER).restarts == 1
        assert world.record(NAMESERVER).restarts == 0


async def test_a_pod_that_stops_answering_is_unready_and_not_restarted(world: World) -> None:
    async with running(world, group()):
        await until(world.is_in(BROKER, PodPhase.READY))
        before = world.process(BROKER)
        world.unready.add(BROKER)
        await until(world.is_in(BROKER, PodPhase.UNREADY))
        assert world.record(BROKER).reason == f"{BROKER} is told not to be ready"
        assert world.process(BROKER) == before
        world.unready.clear()
        await until(world.is_in(BROKER, PodPhase.READY))


async def test_a_pod_that_cannot_start_is_tried_again_and_the_start_is_called_failed(world: World) -> None:
    world.modes[BROKER] = "broken"
    world.unready.add(BROKER)
    async with running(world, group()) as supervisor:
        await until(lambda: runtime.has_failed(record for record, _ in supervisor.pods()))
        left = runtime.unready(record for record, _ in supervisor.pods())
        assert [record.pod for record in left] == [BROKER]
        said = runtime.explain(world.state, left, "does not come up")
    assert said.startswith(f"{BROKER} ({left[0].address}) does not come up: ")
    assert "exit status 1" in said
    assert "storePathRootDir=/nowhere: expected a directory" in said


async def test_a_process_that_does_not_end_when_asked_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(keeper.GRACE_S, Component.BROKER, 0.2)
    world.modes[BROKER] = "stubborn"
    async with running(world, group()) as supervisor:
        await until(world.is_in(BROKER, PodPhase.READY))
        process = world.process(BROKER)
        await asyncio.wait_for(supervisor.stop(), 60)
    assert not is_alive(process)
    assert world.record(BROKER).reason == "ended by SIGKILL"
    assert world.events()[-1] == f"{NAMESERVER} ended"


async def test_a_second_request_to_end_has_no_patience(world: World) -> None:
    world.modes[BROKER] = "stubborn"
    supervisor = world.supervisor()
    world.state.write_resources(group())
    await supervisor.start()
    await supervisor.reconcile()
    await until(world.is_in(BROKER, PodPhase.READY))
    stopping = asyncio.create_task(supervisor.stop())
    await until(lambda: f"{BROKER} asked to end" in world.events())
    supervisor.kill()
    await asyncio.wait_for(stopping, 60)
    assert world.record(BROKER).reason == "ended by SIGKILL"


async def test_a_pass_over_unchanged_resources_touches_nothing(world: World) -> None:
    async with running(world, group()) as supervisor:
        await until(world.is_in(BROKER, PodPhase.READY))
        before = [world.process(pod) for pod in (NAMESERVER, BROKER)]
        await supervisor.reconcile()
        assert [world.process(pod) for pod in (NAMESERVER, BROKER)] == before
    assert len([event for event in world.events() if event.endswith("started")]) == 2


async def test_a_changed_group_restarts_only_the_pods_that_differ(world: World) -> None:
    async with running(world, group()) as supervisor:
        await until(world.is_in(BROKER, PodPhase.READY))
        nameserver, broker = world.process(NAMESERVER), world.process(BROKER)
        world.state.write_resources(group(config="maxMessageSize: 65536"))
        await supervisor.reconcile()
        await until(world.is_in(BROKER, PodPhase.READY))
        assert world.process(NAMESERVER) == nameserver
        assert world.process(BROKER) != broker
        assert "maxMessageSize=65536" in (world.state.path / "config" / BROKER / "broker.conf").read_text()


async def test_groups_come_and_go_without_touching_the_others(world: World) -> None:
    async with running(world, group()) as supervisor:
        await until(world.is_in(BROKER, PodPhase.READY))
        before = world.process(BROKER)
        both = Resources(group().broker_groups + group("b").broker_groups)
        world.state.write_resources(both)
        await supervisor.reconcile()
        await until(world.is_in("b-broker-0", PodPhase.READY))
        other = world.process("b-broker-0")
        addresses = {record.address for record, _ in supervisor.pods()}
        assert len(addresses) == 4
        world.state.write_resources(group())
        await supervisor.reconcile()
        assert not is_alive(other)
        assert world.process(BROKER) == before


async def test_two_state_directories_run_the_same_group_side_by_side(tmp_path: Path) -> None:
    worlds = [World(tmp_path / name) for name in ("one", "two") if (tmp_path / name).mkdir() is None]
    async with running(worlds[0], group()) as one, running(worlds[1], group()) as other:
        for world in worlds:
            await until(world.is_in(BROKER, PodPhase.READY))
        addresses = {record.address for run in (one, other) for record, _ in run.pods()}
        assert len(addresses) == 4


async def test_addresses_stay_from_run_to_run(world: World) -> None:
    async with running(world, group()) as supervisor:
        before = [record.address for record, _ in supervisor.pods()]
    async with running(world, group()) as supervisor:
        assert [record.address for record, _ in supervisor.pods()] == before


async def test_a_port_in_use_is_why_a_pod_does_not_come_up(world: World) -> None:
    async with running(world, group()) as supervisor:
        (address, *_) = [record.address for record, _ in supervisor.pods()]
    with socket.socket() as squatter:
        squatter.bind((address, 9876))
        squatter.listen(1)
        async with running(world, group()) as supervisor:
            await until(lambda: runtime.has_failed(record for record, _ in supervisor.pods()))
            left = runtime.unready(record for record, _ in supervisor.pods())
            said = runtime.explain(world.state, left, "does not come up")
    assert f"{address}:9876 (remoting) is in use by pid {os.getpid()}" in said
    assert f"{NAMESERVER} started" not in world.events()[6:]


async def test_only_one_supervisor_runs_in_a_state_directory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochmq_operator.local.state.LOCK_WAIT_S", 0.1)
    async with running(world, group()):
        with pytest.raises(StateError, match="in use by another supervisor"):
            await World(world.state.path.parent).supervisor().start()


async def left_behind(world: World, mode: str = "") -> Process:
    """A broker of a run whose supervisor died without a word."""
    command = [sys.executable, "-S", "-c", POD, BROKER, str(world.journal), mode]
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
    await until(lambda: f"{BROKER} started" in world.events())
    found = identify(process.pid)
    assert found is not None
    return found


def write_left(world: World, process: Process) -> None:
    record = PodRecord(
        pod=BROKER,
        group="a",
        component=Component.BROKER,
        address="127.200.1.1",
        phase=PodPhase.READY,
        process=process,
    )
    world.state.write_pods(PodsFile(by=current(), applied="", pods=[record]))


async def test_what_a_dead_supervisor_left_running_is_ended_before_anything_starts(world: World) -> None:
    process = await left_behind(world)
    write_left(world, process)
    async with running(world, group()):
        assert not is_alive(process)
        await until(world.is_in(BROKER, PodPhase.READY))
    assert world.events()[:3] == [f"{BROKER} started", f"{BROKER} asked to end", f"{BROKER} ended"]


async def test_a_process_that_only_has_the_number_of_one_left_behind_is_let_be(world: World) -> None:
    process = await left_behind(world)
    write_left(world, Process(pid=process.pid, started="1", boot=process.boot))
    assert await end_leftovers(world.state) == []
    assert is_alive(process)
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: not is_alive(process))


async def test_a_fault_of_the_supervisor_itself_ends_the_run_in_order(world: World) -> None:
    supervisor = world.supervisor()
    world.state.write_resources(group())
    run = asyncio.create_task(runtime.supervise(supervisor))
    await until(world.is_in(BROKER, PodPhase.READY))
    processes = [world.process(pod) for pod in (NAMESERVER, BROKER)]
    supervisor.failure.set_exception(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(run, 60)
    assert not any(is_alive(process) for process in processes)
    assert world.events()[-1] == f"{NAMESERVER} ended"


async def test_a_full_disk_stops_no_pod(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(world, group()):
        await until(world.is_in(BROKER, PodPhase.READY))
        process = world.process(BROKER)

        def full(self: StateDirectory, pods: PodsFile) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(StateDirectory, "write_pods", full)
            world.unready.add(BROKER)
            await until(lambda: world.last_phase(BROKER) is PodPhase.UNREADY)
            world.unready.clear()
            await until(lambda: world.last_phase(BROKER) is PodPhase.READY)
        assert is_alive(process)


async def test_a_reload_takes_in_what_was_written_meanwhile(world: World) -> None:
    supervisor = world.supervisor()
    world.state.write_resources(group())
    ending = asyncio.Event()
    run = asyncio.create_task(runtime.supervise(supervisor, until=ending))
    await until(world.is_in(BROKER, PodPhase.READY))
    world.state.write_resources(Resources(group().broker_groups + group("b").broker_groups))
    await asyncio.to_thread(runtime.reload, world.state)
    await until(world.is_in("b-broker-0", PodPhase.READY))
    ending.set()
    await asyncio.wait_for(run, 60)
    assert len([event for event in world.events() if event.endswith(" ended")]) == 4


async def test_a_signal_to_end_ends_the_run_in_order(world: World) -> None:
    supervisor = world.supervisor()
    world.state.write_resources(group())
    run = asyncio.create_task(runtime.supervise(supervisor))
    await until(world.is_in(BROKER, PodPhase.READY))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(run, 60)
    assert world.events()[-1] == f"{NAMESERVER} ended"
