"""A master that names its successor: fenced and elected in one request, without a wait for its lease."""

from __future__ import annotations

import pytest

from epochmq_controller.replicas.desk import Desk
from epochmq_controller.replicas.events import (
    AlterSyncStateSet,
    ApplyBrokerId,
    ElectMaster,
    Event,
    decode,
    encode,
)
from epochmq_controller.replicas.heartbeats import Heartbeat
from epochmq_controller.replicas.requests import Elect
from epochmq_controller.replicas.types import (
    Answer,
    Applied,
    Asked,
    Effect,
    Heard,
    Input,
    Leased,
    Led,
    Propose,
    Prove,
    Proven,
    Settings,
    Settled,
)
from epochmq_protocol.codes import ResponseCode

NAME = "b"


class Stage:
    """A leading controller; the group has replicas 1, 2 and 3, all in sync, and 1 is master of epoch 1."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.desk = Desk(Settings(lease_ms=600), 0)
        self.index = 0
        self.desk.step(Led(1), 0)
        self.apply(b"")
        for broker_id in (1, 2, 3):
            self.commit(ApplyBrokerId(NAME, "c", f"10.0.0.{broker_id}:10911", broker_id, "code"))
        self.commit(ElectMaster(NAME, True, 1))
        self.commit(AlterSyncStateSet(NAME, frozenset({1, 2, 3})))
        self.later(5000)
        for broker_id in (1, 2, 3):
            self.beat(broker_id)

    def feed(self, event: Input) -> list[Effect]:
        return self.desk.step(event, self.now_ms)

    def later(self, ms: int) -> None:
        """Time passes, watched."""
        for _ in range(ms // 10):
            self.now_ms += 10
            self.desk.step(Led(1), self.now_ms)

    def apply(self, body: bytes) -> None:
        self.feed(Applied(self.index, 1, body))
        self.index += 1

    def commit(self, event: Event) -> None:
        self.apply(encode(event))

    def beat(
        self, broker_id: int, lease_epoch: int | None = None, *, fenced: int | None = None
    ) -> list[Effect]:
        beat = Heartbeat(self.now_ms, 60_000, broker_id, f"10.0.0.{broker_id}:10911", 1, 0, 0, None)
        return self.feed(Heard(("c", NAME, broker_id), beat, fenced, lease_epoch, 77))

    def lease(self, broker_id: int, epoch: int) -> int:
        """For how long this replica gets a lease, ms."""
        for effect in self.beat(broker_id, epoch):
            if isinstance(effect, Leased):
                return effect.lease_ms
            if isinstance(effect, Prove):
                (granted,) = self.feed(Proven((effect.token,), True))
                assert isinstance(granted, Leased)
                return granted.lease_ms
        raise AssertionError("no answer")

    def elect(self, request: Elect) -> list[Event | None]:
        """The events that a request to elect puts into the log at once."""
        self.effects = self.feed(Asked(5, request))
        return [decode(body) for one in self.effects if isinstance(one, Propose) for body in one.bodies]


def test_a_designated_replica_waits_for_the_lease_of_a_master_that_says_nothing() -> None:
    stage = Stage()
    assert stage.lease(1, 1) == 600
    assert stage.elect(Elect(NAME, 3, True)) == []


@pytest.mark.parametrize("waiting", [False, True], ids=["at once", "behind a trigger"])
def test_a_master_that_fences_itself_is_succeeded_by_its_choice_at_once(waiting: bool) -> None:
    stage = Stage()
    assert stage.lease(1, 1) == 600
    if waiting:
        assert stage.elect(Elect(NAME, 3, True)) == []
    assert stage.elect(Elect(NAME, 3, True, fenced_epoch=1)) == [ElectMaster(NAME, True, 3)]
    assert stage.lease(1, 1) == 0
    token = next(one.token for one in stage.effects if isinstance(one, Propose))
    stage.commit(ElectMaster(NAME, True, 3))
    answers = [one for one in stage.feed(Settled(token)) if isinstance(one, Answer)]
    assert answers[0].verdict.code == ResponseCode.SUCCESS
    assert stage.lease(1, 1) == 0
    assert stage.lease(3, 2) == 600


def test_only_the_master_of_this_epoch_is_believed() -> None:
    stage = Stage()
    assert stage.lease(1, 1) == 600
    for epoch in (0, 2):
        assert stage.elect(Elect(NAME, 3, True, fenced_epoch=epoch)) == []
    assert stage.elect(Elect("unknown", 3, True, fenced_epoch=1)) == []


def test_a_successor_that_cannot_be_elected_leaves_the_choice_to_the_next_look() -> None:
    stage = Stage()
    assert stage.lease(1, 1) == 600
    assert stage.elect(Elect(NAME, 4, True, fenced_epoch=1)) == []
    (answer,) = [one for one in stage.effects if isinstance(one, Answer)]
    assert answer.verdict.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    proposed = [one for one in stage.beat(1, fenced=1) if isinstance(one, Propose)]
    assert [decode(one.bodies[0]) for one in proposed] == [ElectMaster(NAME, True, 2)]
