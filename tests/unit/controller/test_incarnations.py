"""A broker id belongs to one process: a restart of the same store succeeds its former process, a copy and an
older store are refused."""

from __future__ import annotations

import pytest

from epochmq_controller.replica_groups import rules, snapshot
from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.events import ApplyBrokerIdEvent, ElectMasterEvent, decode, encode
from epochmq_controller.replica_groups.heartbeats import Heartbeat
from epochmq_controller.replica_groups.incarnations import IncarnationVerdict, judge
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.rules import Decision
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import (
    LEASE_OF_REFUSED_MS,
    CheckLeadership,
    ControllerEffect,
    ControllerInput,
    ControllerStateMachineSettings,
    EntryApplied,
    HeartbeatReceived,
    LeadershipChanged,
    LeadershipCheckCompleted,
    LogMessage,
    RespondToLeaseRequests,
)
from epochmq_protocol.codes import ResponseCode

HERE, THERE = "10.0.0.2:10911", "10.0.0.9:10911"
REGISTERED, SUCCESSOR = IncarnationVerdict.REGISTERED, IncarnationVerdict.SUCCESSOR
TWIN, OUTDATED = IncarnationVerdict.TWIN, IncarnationVerdict.OUTDATED


def live(address: str, lineage: str) -> ReplicaLiveInfo:
    return ReplicaLiveInfo(address=address, lineage=lineage)


@pytest.mark.parametrize(
    ("registered", "lineage", "living", "expected"),
    [
        ("", "", None, REGISTERED),  # RocketMQ's brokers
        ("x1", "", live(HERE, "x1"), REGISTERED),
        ("x1", "x1,x0", live(THERE, "x9"), REGISTERED),
        ("", "x1", None, SUCCESSOR),
        ("x1", "x2,x1", None, SUCCESSOR),
        ("x1", "x3,x2,x1", live(HERE, "x1"), SUCCESSOR),  # its own former process
        ("x1", "x2,x1", live(THERE, "x1"), TWIN),
        ("", "x2", live(THERE, "y1"), TWIN),
        ("x1", "x2,x0", None, OUTDATED),
        ("x1", "x2,x0", live(THERE, "x1"), OUTDATED),
        ("x1", "x10", None, OUTDATED),
    ],
)
def test_verdicts(
    registered: str, lineage: str, living: ReplicaLiveInfo | None, expected: IncarnationVerdict
) -> None:
    assert judge(registered, lineage, HERE, living) is expected


class Groups:
    """Group b with broker 2, and what its heartbeats say."""

    def __init__(self) -> None:
        self.groups = ReplicaGroups()
        self.groups.apply(ApplyBrokerIdEvent("b", "c", HERE, 1, "code"))
        self.groups.apply(ApplyBrokerIdEvent("b", "c", HERE, 2, "code"))
        self.living: ReplicaLiveInfo | None = None

    def register(self, lineage: str, address: str = HERE, *, adopts: bool = False) -> Decision:
        decision = rules.register_broker(
            self.groups, "c", "b", 2, address, lambda *_: self.living, lineage=lineage, adopts=adopts
        )
        for event in decision.events:
            self.groups.apply(decode(encode(event)))  # type: ignore[arg-type]
        return decision

    @property
    def registered(self) -> str:
        group = self.groups.get("b")
        assert group is not None
        return group.replicas[2].incarnation


def test_a_registration_records_the_incarnation_and_a_snapshot_keeps_it() -> None:
    made = Groups()
    assert made.register("x1").code == ResponseCode.SUCCESS
    assert made.registered == "x1"
    assert made.register("x1").events == []
    kept = snapshot.decode(snapshot.encode(made.groups)).get("b")
    assert kept is not None
    assert (kept.replicas[1].incarnation, kept.replicas[2].incarnation) == ("", "x1")
    assert made.register("x2,x1").code == ResponseCode.SUCCESS
    assert made.registered == "x2"


def test_an_older_store_is_refused_until_a_person_adopts_it() -> None:
    made = Groups()
    made.register("x1")
    made.register("x2,x1")
    refused = made.register("y1,x1", THERE)
    assert refused.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    assert refused.remark is not None
    for part in (HERE, THERE, "`epochmq replica adopt b/2`", "`epochmq replica discard b/2`"):
        assert part in refused.remark
    assert made.register("y1,x1", THERE, adopts=True).code == ResponseCode.SUCCESS
    assert made.registered == "y1"
    assert made.register("x2,x1").code == ResponseCode.CONTROLLER_BROKER_ID_INVALID


@pytest.mark.parametrize("adopts", [False, True])
def test_a_copy_is_refused_while_the_other_process_lives(adopts: bool) -> None:
    made = Groups()
    made.register("x1")
    made.living = live(HERE, "x1")
    refused = made.register("y1,x1", THERE, adopts=adopts)
    assert refused.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    assert HERE in (refused.remark or "")
    assert THERE in (refused.remark or "")
    assert made.registered == "x1"


class Leader:
    """A leading controller with a group of which broker 2 is the master of epoch 1."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.state_machine = ControllerStateMachine(ControllerStateMachineSettings(), self.now_ms)
        self.index = 0
        self.feed(LeadershipChanged(1))
        self.apply(encode(ApplyBrokerIdEvent("b", "c", HERE, 2, "code")))
        for event in rules.register_broker(
            self.state_machine.groups, "c", "b", 2, HERE, lambda *_: None, lineage="x1"
        ).events:
            self.apply(encode(event))
        self.apply(encode(ElectMasterEvent("b", True, 2)))
        self.apply(b"")

    def feed(self, event: ControllerInput) -> list[ControllerEffect]:
        effects = self.state_machine.step(event, self.now_ms)
        for effect in effects.copy():
            if isinstance(effect, CheckLeadership):
                effects += self.feed(LeadershipCheckCompleted(effect.token, True))
        return effects

    def apply(self, body: bytes) -> None:
        self.index += 1
        self.feed(EntryApplied(self.index, 1, body))

    def beat(self, address: str, lineage: str, lease: int | None = 1) -> list[ControllerEffect]:
        beat = Heartbeat(self.now_ms, 60_000, address, address, 1, 0, 0, None, lineage=lineage)
        return self.feed(HeartbeatReceived(("c", "b", 2), beat, None, lease, address))

    @property
    def address(self) -> str:
        """The address of the living process."""
        info = self.state_machine.alive("c", "b", 2)
        return info.address if info is not None else ""


def lease_of(effects: list[ControllerEffect]) -> int:
    (found,) = [one.lease_ms for one in effects if isinstance(one, RespondToLeaseRequests)]
    return found


@pytest.mark.parametrize("lineage", ["y1,x1", "y1,x0"])
def test_a_second_process_gets_no_lease_and_its_heartbeats_do_not_count(lineage: str) -> None:
    leader = Leader()
    assert lease_of(leader.beat(HERE, "x1")) > 0
    effects = leader.beat(THERE, lineage)
    assert lease_of(effects) == LEASE_OF_REFUSED_MS
    (line,) = [one.text for one in effects if isinstance(one, LogMessage)]
    assert HERE in line
    assert THERE in line
    assert leader.address == HERE
    assert not [one for one in leader.beat(THERE, lineage) if isinstance(one, LogMessage)]
    assert lease_of(leader.beat(HERE, "x1")) > 0


def test_a_restarted_process_gets_its_first_lease_after_it_has_registered() -> None:
    leader = Leader()
    assert lease_of(leader.beat(HERE, "x2,x1")) == LEASE_OF_REFUSED_MS
    decision = rules.register_broker(
        leader.state_machine.groups, "c", "b", 2, HERE, leader.state_machine.alive, lineage="x2,x1"
    )
    for event in decision.events:
        leader.apply(encode(event))
    assert lease_of(leader.beat(HERE, "x2,x1")) > 0


def test_brokers_without_incarnations_are_as_ever() -> None:
    leader = Leader()
    assert lease_of(leader.beat(HERE, "")) > 0


def test_a_refused_process_is_named_with_what_to_do_while_it_sends_heartbeats() -> None:
    leader = Leader()
    leader.beat(HERE, "x1")
    leader.beat(THERE, "y1,x1")
    leader.now_ms += 10_000
    leader.beat(HERE, "x1")
    leader.beat(THERE, "y1,x1")
    leader.now_ms += 10_000
    leader.beat(HERE, "x1")
    ((broker_id, refusal),) = leader.state_machine.refused_processes("b")
    assert (broker_id, refusal.address) == (2, THERE)
    assert "`epochmq replica discard b/2`" in refusal.text
    assert leader.state_machine.refused_processes("other") == []
    leader.now_ms += 10_000
    leader.beat(HERE, "x1")
    assert leader.state_machine.refused_processes("b") == []
