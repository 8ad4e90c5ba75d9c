"""Runs groups in use: each in a thread of its own, through elections, lags and truncations, until it is
stopped. Meanwhile cuts are made as the operator makes them, and volume readers freeze the volumes at these
cuts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from epochmq_broker.replication.ha.service import HARole
from epochmq_operator.audits.cut import GroupCut, cut_of
from epochmq_operator.plans.reported_states import ReportedBrokerState, ReportedState
from epochmq_spark import store_layout
from epochmq_spark.files_at_cut import VolumeCut
from tests.spark.seeded_groups import NAME, SeededGroup
from tests.spark.volume_readers import VolumeReaders
from tests.unit.broker.replication.ha.broker_node import BrokerNode

WAIT_MAX_S = 300
FREEZE_DELAY_MAX_S = 0.1
PACE_GROWTH_BYTES = 256 * 1024
Value = TypeVar("Value")


class RunningGroup(SeededGroup):
    """A group with an endless history. It confirms what all members have or, with an odd seed, what the
    master has.

    `pace_s` is the shortest pause between two steps; a pause also takes as long as the step before it, and
    longer as the log grows, so that an audit can keep up. `switches` and `truncations` count elections, and
    masters that returned with an unreplicated tail."""

    def __init__(self, root: Path, seed: int, pace_s: float = 0.02) -> None:
        super().__init__(root, seed, settings={"allAckInSyncStateSet": str(seed % 2 == 0).lower()})
        self.root = root
        self.pace_s = pace_s
        self.switches = self.truncations = 0
        self.stop_requested = False
        self.last_cut: tuple[object, ...] = ()  # the inputs of the last cut, for failure messages

    async def run(self) -> None:
        """Runs until a stop is requested."""
        for node in self.nodes:
            await node.open()
        try:
            await self.elect(self.nodes[0])
            took_s = 0.0
            while not self.stop_requested:
                self.write(self.master, self.rng.randrange(5, 60))
                await self.commit_offsets()
                await asyncio.sleep(max(self.pace_s, took_s) * (1 + self.master.end / PACE_GROWTH_BYTES))
                began = time.monotonic()
                chance = self.rng.random()
                if chance < 0.3:
                    await self.lose_master()
                    self.truncations += 1
                elif chance < 0.7:
                    await self.wait_in_sync()
                    await self.elect(self.rng.choice(self.nodes))
                    self.switches += 1
                took_s = time.monotonic() - began
        finally:
            for node in self.nodes:
                await node.close()

    async def commit_offsets(self) -> None:
        """Writes consumer offsets inside the queues to every replica. Like a broker, the master writes its
        queues before it writes consumer offsets."""
        table: dict[str, dict[str, int]] = {}
        for (topic, queue_id), queue in self.master.store.queues.items():
            table.setdefault(f"{topic}@readers", {})[str(queue_id)] = queue.max_offset
        written = asyncio.Event()
        self.master.store.when_queues_written(written.set)
        await written.wait()
        for node in self.nodes:
            path = node.directory / "config" / "consumerOffset.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".new").write_text(json.dumps({"dataVersion": {}, "offsetTable": table}))
            path.with_suffix(".new").replace(path)

    async def make_cut(self) -> GroupCut:
        """Makes a cut: reads the state of each broker at a different time, copies the epoch files, and reads
        again."""

        async def each(ask: Callable[[BrokerNode], Value]) -> dict[str, Value]:
            values = {}
            for node in self.nodes:
                values[node.directory.name] = ask(node)
                await asyncio.sleep(0.003)
            return values

        while True:
            states: dict[str, ReportedState] = dict(await each(self.reported_state))
            copies = await each(lambda node: (node.directory / store_layout.EPOCH_FILE).read_bytes())
            later: dict[str, ReportedState] = dict(await each(self.reported_state))
            cut = cut_of(tuple(states), states, copies, later, NAME)
            if isinstance(cut, GroupCut):
                self.last_cut = states, copies, later, cut
                return cut

    def reported_state(self, node: BrokerNode) -> ReportedBrokerState:
        """The state that a broker's sidecar reports."""
        ha = node.ha
        role = {HARole.MASTER: "master", HARole.REPLICA: "replica"}.get(ha.role, "none")
        sync = ha.sync_state
        return ReportedBrokerState(
            broker_name=NAME,
            broker_id=node.id,
            role=role,  # type: ignore[arg-type]
            master_epoch=self.led_epochs.get(node.id),
            sync_state_set=sorted(sync.members) if sync is not None else [],
            confirm_offset=ha.confirm_offset,
            confirmed_by_all=sync is not None and sync.all_ack,
            max_offset=node.end,
        )


class BackgroundGroup:
    """Runs a group in a thread beside the test."""

    def __init__(self, group: RunningGroup) -> None:
        self.group = group
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self.fault: BaseException | None = None
        self.readers = VolumeReaders()

    def start(self) -> None:
        """Starts the group, and returns when a message is confirmed."""
        self._thread.start()
        self.wait(lambda: self.group.epoch > 0 and self.group.master.ha.confirm_offset > 0)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self.group.run())
        except BaseException as error:
            self.fault = error
        finally:
            self._loop.close()

    def wait(self, condition: Any) -> None:
        """Waits for a condition; fails if the group failed."""
        deadline = time.monotonic() + WAIT_MAX_S
        while not condition():
            self.check()
            assert time.monotonic() < deadline, "the group makes no progress"
            time.sleep(0.005)

    def check(self) -> None:
        """Fails if the group failed."""
        if self.fault is not None:
            raise AssertionError(f"the group failed: {self.fault!r}") from self.fault

    def replicas(self, name: str) -> list[store_layout.AuditedReplica]:
        """The group under this name, frozen at a cut made now; each volume is frozen a little later than the
        one before."""
        self.check()
        future = asyncio.run_coroutine_threadsafe(self.group.make_cut(), self._loop)
        replicas = []
        for one in future.result(WAIT_MAX_S).replicas:
            time.sleep(min(self.group.pace_s / 3, FREEZE_DELAY_MAX_S))
            cut = VolumeCut(one.end, one.epochs)
            replicas.append(self.readers.show(name, one.name, self.group.root / one.name, cut))
        return replicas

    def stop(self) -> None:
        """Stops the volume readers and the group."""
        self.readers.stop()
        self.group.stop_requested = True
        self._thread.join(WAIT_MAX_S)
        assert not self._thread.is_alive(), "the group does not stop"
        self.check()


@contextmanager
def running_group(root: Path, seed: int, pace_s: float = 0.02) -> Iterator[BackgroundGroup]:
    """A group that is in use for the length of a block."""
    background = BackgroundGroup(RunningGroup(root, seed, pace_s))
    background.start()
    try:
        yield background
    finally:
        background.stop()
