"""Groups in use: each lives on in a thread of its own, through elections, lags and truncations, until it is
ended. Meanwhile cuts are made of it as the operator makes them, and readers hold its volumes at those."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from epochmq_broker.ha.service import Role
from epochmq_operator.audits.cut import GroupCut, cut_of
from epochmq_operator.plans.reported_states import ReportedBrokerState, ReportedState
from epochmq_spark import store_layout
from epochmq_spark.cut import VolumeCut
from tests.spark.seeded_groups import NAME, SeededGroup
from tests.spark.volume_readers import VolumeReaders
from tests.unit.ha.kit import Node

PATIENCE_S = 60
HELD_LATER_S = 0.1
SLOWER_BYTES = 256 * 1024
Answer = TypeVar("Answer")


class RunningGroup(SeededGroup):
    """A story without an end, of a group that confirms what all members have or, with an odd seed, what the
    master has. `pace_s` is how long it rests between its steps, at least: as long as they
    take, and longer as its log grows, so that whoever audits it comes to an end. `switches` and `truncations`
    count elections, and masters that were lost and came back to have their logs cut."""

    def __init__(self, root: Path, seed: int, pace_s: float = 0.02) -> None:
        super().__init__(root, seed, settings={"allAckInSyncStateSet": str(seed % 2 == 0).lower()})
        self.root = root
        self.pace_s = pace_s
        self.switches = self.truncations = 0
        self.ended = False
        self.last: tuple[object, ...] = ()  # what the last cut was made of

    async def live(self) -> None:
        """Until it is ended."""
        for node in self.nodes:
            await node.open()
        try:
            await self.elect(self.nodes[0])
            took_s = 0.0
            while not self.ended:
                self.write(self.master, self.rng.randrange(5, 60))
                await self.consume()
                await asyncio.sleep(max(self.pace_s, took_s) * (1 + self.master.end / SLOWER_BYTES))
                began = time.monotonic()
                chance = self.rng.random()
                if chance < 0.3:
                    await self.lose_a_master()
                    self.truncations += 1
                elif chance < 0.7:
                    await self.in_step()
                    await self.elect(self.rng.choice(self.nodes))
                    self.switches += 1
                took_s = time.monotonic() - began
        finally:
            for node in self.nodes:
                await node.close()

    async def consume(self) -> None:
        """Consumers are somewhere within what is confirmed; every replica has noted it. As a broker does, the
        master writes its queues before it writes how far consumers are."""
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

    async def cut(self) -> GroupCut:
        """A cut: what each says of itself, at a time of its own; then the epoch files; then once more."""

        async def each(ask: Callable[[Node], Answer]) -> dict[str, Answer]:
            said = {}
            for node in self.nodes:
                said[node.directory.name] = ask(node)
                await asyncio.sleep(0.003)
            return said

        while True:
            states: dict[str, ReportedState] = dict(await each(self.word))
            copies = await each(lambda node: (node.directory / store_layout.EPOCH_FILE).read_bytes())
            later: dict[str, ReportedState] = dict(await each(self.word))
            found = cut_of(tuple(states), states, copies, later, NAME)
            if isinstance(found, GroupCut):
                self.last = states, copies, later, found
                return found

    def word(self, node: Node) -> ReportedBrokerState:
        """What a broker's sidecar says of it."""
        ha = node.ha
        role = {Role.MASTER: "master", Role.REPLICA: "replica"}.get(ha.role, "none")
        sync = ha.sync_state
        return ReportedBrokerState(
            broker_name=NAME,
            broker_id=node.id,
            role=role,  # type: ignore[arg-type]
            master_epoch=self.led.get(node.id),
            sync_state_set=sorted(sync.members) if sync is not None else [],
            confirm_offset=ha.confirm_offset,
            confirmed_by_all=sync is not None and sync.all_ack,
            max_offset=node.end,
        )


class BackgroundGroup:
    """A story that goes on beside the test."""

    def __init__(self, story: RunningGroup) -> None:
        self.story = story
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self.fault: BaseException | None = None
        self.readers = VolumeReaders()

    def start(self) -> None:
        """Begins, and returns when something is confirmed."""
        self._thread.start()
        self.wait(lambda: self.story.epoch > 0 and self.story.master.ha.confirm_offset > 0)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self.story.live())
        except BaseException as error:
            self.fault = error
        finally:
            self._loop.close()

    def wait(self, condition: Any) -> None:
        """Until it is so; fails when the story has."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self.check()
            assert time.monotonic() < deadline, "the story does not go on"
            time.sleep(0.005)

    def check(self) -> None:
        """Fails when the story has."""
        if self.fault is not None:
            raise AssertionError(f"the story broke off: {self.fault!r}") from self.fault

    def replicas(self, name: str) -> list[store_layout.AuditedReplica]:
        """The group under this name, held as it is now; each volume at a time of its own."""
        self.check()
        future = asyncio.run_coroutine_threadsafe(self.story.cut(), self._loop)
        found = []
        for one in future.result(PATIENCE_S).replicas:
            time.sleep(min(self.story.pace_s / 3, HELD_LATER_S))  # each volume is held a little later
            cut = VolumeCut(one.end, one.epochs)
            found.append(self.readers.show(name, one.name, self.story.root / one.name, cut))
        return found

    def end(self) -> None:
        """Ends the readers, and the story."""
        self.readers.release()
        self.story.ended = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the story does not end"
        self.check()


@contextmanager
def running_group(root: Path, seed: int, pace_s: float = 0.02) -> Iterator[BackgroundGroup]:
    """A group that is in use for the length of a block."""
    life = BackgroundGroup(RunningGroup(root, seed, pace_s))
    life.start()
    try:
        yield life
    finally:
        life.end()
