"""A broker whose id belongs to another store leaves its role, and returns to it when the controllers accept
it."""

from __future__ import annotations

from epochmq_broker.membership.controlled.identity import BrokerIdentity
from epochmq_broker.membership.controlled.state_machine import TWIN_MAX_MS
from epochmq_broker.membership.controlled.state_machine_types import (
    AskController,
    DistrustLog,
    HeartbeatNotCounted,
    IdentityDiscarded,
    LeaveRole,
    NextBrokerIdQuestion,
    QuestionRejected,
    RegisterQuestion,
    RoleNotification,
    StopWriting,
    StoreAdopted,
    TakeRole,
    WriteLogLine,
)
from epochmq_protocol.codes import ResponseCode
from tests.unit.broker.membership.controlled.state_machine_harness import StateMachineHarness, view

REFUSED = QuestionRejected(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "broker 1 runs at 10.0.0.9:10911")


def refused() -> StateMachineHarness:
    """A broker with an identity, whose first registration is refused."""
    harness = StateMachineHarness(BrokerIdentity("c", "g", 1))
    harness.meet()
    assert harness.only(AskController).question == RegisterQuestion(1)
    harness.answer(REFUSED)
    return harness


def test_a_refused_store_says_why_takes_no_role_and_registers_again() -> None:
    harness = refused()
    assert harness.state_machine.refusal == REFUSED.remark
    assert REFUSED.remark in harness.only(WriteLogLine).text
    harness.feed(RoleNotification(view(1, 3)))
    assert harness.all(TakeRole) == []
    harness.pass_ms(3000)
    assert {one.question for one in harness.all(AskController)} == {RegisterQuestion(1)}


def test_an_accepted_store_takes_its_role() -> None:
    harness = refused()
    harness.pass_ms(3000)
    harness.answer(view(2, 3))
    assert harness.state_machine.refusal is None
    assert harness.only(TakeRole).view == view(2, 3)


def test_a_master_whose_heartbeats_do_not_count_registers_and_leaves_its_role_if_refused() -> None:
    harness = StateMachineHarness()
    harness.lead()
    harness.pass_ms(1000)
    for question in harness.all(AskController):
        assert question.question != RegisterQuestion(1)
    harness.feed(HeartbeatNotCounted())
    assert harness.only(AskController).question == RegisterQuestion(1)
    harness.answer(REFUSED)
    assert harness.all(StopWriting)
    assert harness.all(LeaveRole)
    assert harness.state_machine.role is None


def test_a_store_that_is_refused_for_long_distrusts_its_log_once() -> None:
    harness = refused()
    found: list[object] = []
    for _ in range(2 * TWIN_MAX_MS // 1000):
        harness.pass_ms(2000)
        if harness.all(AskController):
            harness.answer(REFUSED)
            found += harness.all(DistrustLog)
    assert len(found) == 1


def test_an_adopted_store_says_so_when_it_registers() -> None:
    harness = refused()
    harness.feed(StoreAdopted())
    assert harness.only(AskController).question == RegisterQuestion(1, adopts=True)
    harness.answer(view(2, 3))
    assert harness.state_machine.refusal is None


def test_a_store_without_its_identity_asks_for_another_broker_id() -> None:
    harness = refused()
    harness.feed(IdentityDiscarded())
    assert harness.state_machine.identity is None
    assert harness.only(AskController).question == NextBrokerIdQuestion()
