"""Tests how a broker gets its id and role, also when responses are late, lost or stale."""

from __future__ import annotations

import pytest

from epochmq_broker.membership.controlled.identity import BrokerIdApplication, BrokerIdentity
from epochmq_broker.membership.controlled.state_machine_types import (
    AdoptSyncStateSet,
    AlterSyncStateSetQuestion,
    ApplyBrokerIdQuestion,
    AskController,
    BrokerIdGranted,
    ControllerLeaderFound,
    ControllerMetadata,
    DropApplication,
    ElectMasterQuestion,
    FindControllerLeader,
    FreeBrokerId,
    IdentitySaved,
    LeaseMissing,
    MasterMayHaveChanged,
    MasterView,
    NextBrokerIdQuestion,
    ProposalMade,
    ProposalRejected,
    QuestionRejected,
    RegisterQuestion,
    ReplicaInfoQuestion,
    ReplyLost,
    ReplyReceived,
    RoleNotification,
    RoleTaken,
    SaveIdentity,
    SearchFinished,
    StopWriting,
    TakeRole,
    WriteLogLine,
)
from epochmq_protocol.codes import ResponseCode as Code
from tests.unit.broker.membership.controlled.state_machine_harness import (
    LEADER,
    OTHER,
    StateMachineHarness,
    view,
)

ME = BrokerIdentity("c", "g", 1)
APPLIED = BrokerIdApplication(ME, "10.0.1.1:10911;7")


# The ladder -------------------------------------------------------------------------------------------------


def test_a_new_broker_applies_for_an_id_saves_it_and_is_elected() -> None:
    harness = StateMachineHarness()
    assert harness.only(FindControllerLeader)
    harness.meet()
    assert harness.only(AskController).question == NextBrokerIdQuestion()
    harness.answer(FreeBrokerId(1, APPLIED.check_code))
    assert harness.only(SaveIdentity).what == APPLIED
    assert not harness.all(AskController), "nothing is asked before the application is on disk"
    harness.feed(IdentitySaved(APPLIED))
    assert harness.only(AskController).question == ApplyBrokerIdQuestion(APPLIED)
    harness.answer(BrokerIdGranted())
    assert harness.only(SaveIdentity).what == ME
    harness.feed(IdentitySaved(ME))
    assert harness.only(AskController).question == RegisterQuestion(1)
    harness.answer(MasterView())
    assert harness.only(AskController).question == ElectMasterQuestion(1)
    harness.answer(view(1, 1))
    assert harness.only(TakeRole).view.master_id == 1
    harness.take()
    assert harness.state_machine.role is not None
    assert harness.state_machine.role.leads


def test_after_a_kill_the_same_application_goes_on() -> None:
    """A broker killed before the response to its application applies for the same id with the same code.
    (#5745)"""
    harness = StateMachineHarness(application=APPLIED)
    harness.meet()
    assert harness.only(AskController).question == ApplyBrokerIdQuestion(APPLIED)


def test_after_a_kill_the_same_identity_registers() -> None:
    """The identity is the id in the store, and not the address. (#5745, #4808, #5989)"""
    harness = StateMachineHarness(identity=ME)
    harness.meet()
    assert harness.only(AskController).question == RegisterQuestion(1)


def test_an_id_of_another_broker_is_dropped_for_a_free_one() -> None:
    harness = StateMachineHarness(application=APPLIED)
    harness.meet()
    harness.answer(QuestionRejected(Code.CONTROLLER_BROKER_ID_INVALID, "taken"))
    assert harness.only(DropApplication)
    harness.pass_ms(1000)
    assert harness.only(AskController).question == NextBrokerIdQuestion()


def test_an_application_that_cannot_be_saved_is_not_sent() -> None:
    harness = StateMachineHarness()
    harness.meet()
    harness.answer(FreeBrokerId(1, APPLIED.check_code))
    harness.feed(IdentitySaved(APPLIED, "No space left on device"))
    assert "No space left" in harness.only(WriteLogLine).text
    harness.pass_ms(1000)
    assert harness.only(AskController).question == NextBrokerIdQuestion()


def test_an_identity_that_cannot_be_saved_is_applied_for_again() -> None:
    harness = StateMachineHarness(application=APPLIED)
    harness.meet()
    harness.answer(BrokerIdGranted())
    harness.feed(IdentitySaved(ME, "No space left on device"))
    harness.pass_ms(1000)
    assert harness.only(AskController).question == ApplyBrokerIdQuestion(APPLIED)


def test_a_broker_that_is_not_registered_any_more_registers_again() -> None:
    """The controllers have forgotten the group, or lost their state. (#4857)"""
    harness = StateMachineHarness()
    harness.lead()
    harness.pass_ms(5100)
    assert harness.only(AskController).question == ReplicaInfoQuestion()
    harness.answer(QuestionRejected(Code.CONTROLLER_BROKER_METADATA_NOT_EXIST, "not existed"))
    harness.pass_ms(1000)
    assert harness.only(AskController).question == RegisterQuestion(1)


UNKNOWN = QuestionRejected(Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "1 hasn't been registered")


def test_a_forgotten_broker_applies_for_its_id_again_and_comes_back() -> None:
    """cleanBrokerMetadata has removed a broker that was taken for dead. (#4857)"""
    harness = StateMachineHarness(identity=ME)
    harness.meet()
    harness.answer(UNKNOWN)
    harness.pass_ms(500)
    assert harness.only(AskController).question == NextBrokerIdQuestion()
    harness.answer(FreeBrokerId(4, "10.0.1.1:10911;9"))
    assert harness.only(AskController).question == ApplyBrokerIdQuestion(
        BrokerIdApplication(ME, "10.0.1.1:10911;9")
    )
    assert not harness.all(SaveIdentity), "who it is has not changed"
    harness.answer(BrokerIdGranted())
    assert harness.only(AskController).question == RegisterQuestion(1)
    harness.answer(view(2, 5))
    assert harness.only(TakeRole).view == view(2, 5)


def test_a_forgotten_group_is_not_created_again_with_an_old_log() -> None:
    """Its epochs would start at 1, and this log's are newer. The broker logs that once, and retries."""
    harness = StateMachineHarness(identity=ME)
    harness.meet()
    log_lines: list[str] = []
    for _ in range(10):
        harness.answer(UNKNOWN)
        harness.pass_ms(2000)
        assert harness.only(AskController).question == NextBrokerIdQuestion()
        harness.answer(FreeBrokerId(1, "10.0.1.1:10911;9"))
        log_lines += [one.text for one in harness.all(WriteLogLine)]
        harness.pass_ms(2000)
        assert harness.only(AskController).question == RegisterQuestion(1)
    assert len(log_lines) == 1
    assert "do not know group g" in log_lines[0]
    harness.answer(view(2, 5))
    assert harness.only(TakeRole)


def test_an_id_that_is_another_brokers_by_now_is_not_taken() -> None:
    harness = StateMachineHarness(identity=ME)
    harness.meet()
    harness.answer(UNKNOWN)
    harness.pass_ms(500)
    harness.answer(FreeBrokerId(4, "10.0.1.1:10911;9"))
    harness.answer(QuestionRejected(Code.CONTROLLER_BROKER_ID_INVALID, "taken"))
    assert "taken" in harness.only(WriteLogLine).text
    assert not harness.all(DropApplication)
    harness.pass_ms(2000)
    assert harness.only(AskController).question == RegisterQuestion(1)


def test_a_failed_election_is_asked_for_again() -> None:
    """(#5712, #5009, #6382)"""
    harness = StateMachineHarness(identity=ME)
    harness.meet()
    harness.answer(MasterView())
    for _ in range(4):
        assert harness.only(AskController).question == ElectMasterQuestion(1)
        harness.answer(QuestionRejected(Code.CONTROLLER_ELECT_MASTER_FAILED, "nobody"))
        harness.pass_ms(2000)


# Controllers ------------------------------------------------------------------------------------------------


def test_after_a_lost_response_the_leader_is_searched_and_asked_again() -> None:
    """(#10812, #5712)"""
    harness = StateMachineHarness(identity=ME)
    harness.meet()
    harness.answer(ReplyLost("closed"))
    harness.pass_ms(500)
    assert harness.only(FindControllerLeader)
    harness.feed(SearchFinished((ControllerMetadata(OTHER, OTHER, True, True, 2),)))
    asked = harness.only(AskController)
    assert (asked.address, asked.question) == (OTHER, RegisterQuestion(1))


def test_after_a_rejection_by_a_controller_that_does_not_lead_the_leader_is_searched() -> None:
    harness = StateMachineHarness(identity=ME)
    harness.meet()
    harness.answer(QuestionRejected(Code.CONTROLLER_NOT_LEADER, "another one leads"))
    harness.pass_ms(500)
    assert harness.only(FindControllerLeader)
    assert not harness.all(AskController)


def test_of_two_controllers_that_claim_to_lead_the_newer_term_wins() -> None:
    harness = StateMachineHarness(identity=ME)
    harness.feed(
        SearchFinished(
            (
                ControllerMetadata(LEADER, LEADER, True, True, 5),
                ControllerMetadata(OTHER, OTHER, True, True, 6),
            )
        )
    )
    assert harness.only(ControllerLeaderFound) == ControllerLeaderFound(OTHER, True)


def test_a_leader_that_only_other_controllers_name_is_asked() -> None:
    """In an asymmetric partition the leader does not respond in time, but other controllers name it.
    (#4800)"""
    harness = StateMachineHarness(identity=ME)
    harness.feed(SearchFinished((ControllerMetadata(OTHER, LEADER, False, True, 5),)))
    assert harness.only(ControllerLeaderFound) == ControllerLeaderFound(LEADER, None)
    assert harness.only(AskController).address == LEADER


def test_without_any_controller_the_search_goes_on() -> None:
    harness = StateMachineHarness(identity=ME)
    for _ in range(5):
        harness.meet(None)
        harness.pass_ms(300)
        assert harness.only(FindControllerLeader)
    assert not harness.all(AskController)


def test_a_master_without_a_lease_searches_for_the_leader() -> None:
    harness = StateMachineHarness()
    harness.lead()
    assert not harness.feed(LeaseMissing()), "one has just ended"
    harness.pass_ms(200)
    assert harness.only(FindControllerLeader)
    assert not harness.feed(LeaseMissing()), "one search at a time"


def test_controllers_that_have_lost_their_state_are_reported() -> None:
    """Their epoch is older than this broker's: it keeps its role, and logs why."""
    harness = StateMachineHarness()
    harness.lead(epoch=5)
    log_lines: list[str] = []
    for _ in range(3):
        harness.pass_ms(5100)
        harness.answer(view(2, 1))
        assert not harness.all(TakeRole)
        log_lines += [one.text for one in harness.all(WriteLogLine)]
    assert log_lines == ["the controller reports epoch 1, but epoch 5 has begun"]


# Roles ------------------------------------------------------------------------------------------------------


def test_an_older_epoch_changes_nothing() -> None:
    harness = StateMachineHarness()
    harness.lead(epoch=5)
    assert not harness.feed(RoleNotification(view(2, 4, set_epoch=9)))
    assert not harness.feed(RoleNotification(view(2, 0)))
    assert harness.state_machine.role is not None
    assert harness.state_machine.role.epoch == 5


def test_a_notification_of_a_newer_epoch_stops_writing_and_changes_the_role() -> None:
    """(#6508, #6706)"""
    harness = StateMachineHarness()
    harness.lead(epoch=5)
    effects = harness.feed(RoleNotification(view(2, 6)))
    assert isinstance(effects[0], StopWriting)
    assert harness.only(TakeRole).view == view(2, 6)
    harness.take()
    assert harness.state_machine.role is not None
    assert (harness.state_machine.role.leads, harness.state_machine.role.master_id) == (False, 2)


def test_a_notification_of_an_unknown_sender_only_makes_the_broker_ask_at_a_bounded_rate() -> None:
    harness = StateMachineHarness()
    harness.lead(epoch=5)
    harness.pass_ms(100)
    questions = 0
    for _ in range(1000):
        harness.feed(MasterMayHaveChanged())
        if harness.all(AskController):
            questions += 1
            assert harness.only(AskController).question == ReplicaInfoQuestion()
            harness.answer(view(1, 5, {1}))
        harness.now_ms += 1
    assert 10 <= questions <= 21, "every 50 ms at most"
    effects = harness.feed(MasterMayHaveChanged()) + harness.pass_ms(100)
    (asked,) = (one for one in effects if isinstance(one, AskController))
    harness.feed(ReplyReceived(asked.token, view(2, 6)))
    assert harness.only(StopWriting)


def test_views_wait_while_a_role_is_taken_and_the_newest_is_next() -> None:
    harness = StateMachineHarness()
    harness.lead(epoch=5)
    harness.feed(RoleNotification(view(2, 6)))
    first = harness.only(TakeRole).view
    assert not harness.all(AskController)
    harness.feed(RoleNotification(view(3, 7)))
    harness.feed(RoleNotification(view(1, 8)))
    harness.feed(RoleNotification(view(3, 7)))
    assert not harness.all(TakeRole)
    harness.feed(RoleTaken(first))
    assert harness.only(TakeRole).view == view(1, 8)


def test_a_role_that_could_not_be_taken_is_taken_again() -> None:
    harness = StateMachineHarness()
    harness.identify()
    harness.answer(view(1, 3))
    harness.take("the disk is full")
    assert harness.state_machine.role is None
    harness.pass_ms(1100)
    harness.take()
    assert harness.state_machine.role is not None


def test_in_a_group_without_a_master_the_old_one_stops_writing_and_asks_for_an_election() -> None:
    """The controllers found no candidate; RocketMQ's wait until a broker of the group asks for an
    election."""
    harness = StateMachineHarness()
    harness.lead(epoch=5)
    harness.feed(RoleNotification(view(None, 8)))
    assert harness.only(StopWriting)
    assert harness.only(AskController).question == ElectMasterQuestion(1)
    harness.answer(view(1, 9))
    assert harness.only(TakeRole).view.epoch == 9


def test_a_master_that_moved_is_followed_without_a_new_epoch() -> None:
    """(#5745: addresses change)"""
    harness = StateMachineHarness()
    harness.identify()
    harness.answer(view(2, 3))
    harness.take()
    moved = MasterView(2, "10.0.1.77:10911", 3, frozenset({2}), 1)
    harness.feed(RoleNotification(moved))
    assert harness.only(TakeRole).view == moved


def test_a_notification_before_there_is_an_id_waits_for_it() -> None:
    harness = StateMachineHarness()
    harness.feed(RoleNotification(view(2, 3)))
    assert not harness.all(TakeRole)
    harness.identify()
    assert harness.only(TakeRole).view == view(2, 3)


# Who is in sync ---------------------------------------------------------------------------------------------


def propose(harness: StateMachineHarness, members: set[int] = frozenset({1, 2}), set_epoch: int = 1) -> int:  # type: ignore[assignment]
    """Proposes a SyncStateSet; returns the token of the question."""
    harness.feed(ProposalMade(frozenset(members), set_epoch))
    asked = harness.only(AskController)
    assert asked.question == AlterSyncStateSetQuestion(1, 1, frozenset(members), set_epoch)
    return asked.token


def taken(members: set[int], set_epoch: int) -> MasterView:
    """The controller's response to an accepted proposal."""
    return MasterView(members=frozenset(members), set_epoch=set_epoch)


def test_an_accepted_proposal_is_adopted() -> None:
    harness = StateMachineHarness()
    harness.lead()
    harness.feed(ReplyReceived(propose(harness), taken({1, 2}, 2)))
    assert harness.only(AdoptSyncStateSet) == AdoptSyncStateSet(frozenset({1, 2}), 2)


def test_a_proposal_made_while_the_role_is_taken_is_sent() -> None:
    harness = StateMachineHarness()
    harness.identify()
    harness.answer(view(1, 3))
    role = harness.only(TakeRole).view
    harness.feed(ProposalMade(frozenset({1, 2}), 1))
    asked = harness.only(AskController)
    assert asked.question == AlterSyncStateSetQuestion(1, 3, frozenset({1, 2}), 1)
    harness.feed(RoleTaken(role))
    harness.feed(ReplyReceived(asked.token, taken({1, 2}, 2)))
    assert harness.only(AdoptSyncStateSet).set_epoch == 2


def test_a_proposal_without_a_response_is_sent_again() -> None:
    """Its response was lost, so it may have been accepted, and its members count until that is known.
    (#5663)"""
    harness = StateMachineHarness()
    harness.lead()
    harness.feed(ReplyReceived(propose(harness), ReplyLost("closed")))
    assert not harness.all(ProposalRejected)
    harness.pass_ms(300)
    harness.meet(OTHER)
    again = next(
        one for one in harness.all(AskController) if isinstance(one.question, AlterSyncStateSetQuestion)
    )
    assert again.question == AlterSyncStateSetQuestion(1, 1, frozenset({1, 2}), 1)
    harness.feed(ReplyReceived(again.token, taken({1, 2}, 2)))
    assert harness.only(AdoptSyncStateSet)


@pytest.mark.parametrize(
    "code",
    [
        Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        Code.CONTROLLER_BROKER_NOT_ALIVE,
    ],
)
def test_a_rejection_after_a_lost_response_is_resolved_by_registering_again(code: Code) -> None:
    """The first one may have been accepted. A registration raises the set's epoch, so that no earlier
    proposal counts. (#5663)"""
    harness = StateMachineHarness()
    harness.lead()
    harness.feed(ReplyReceived(propose(harness), ReplyLost("closed")))
    harness.pass_ms(300)
    harness.meet()
    again = next(
        one for one in harness.all(AskController) if isinstance(one.question, AlterSyncStateSetQuestion)
    )
    harness.feed(ReplyReceived(again.token, QuestionRejected(code, "no")))
    assert not harness.all(ProposalRejected)
    assert harness.only(AskController).question == RegisterQuestion(1)
    harness.answer(view(1, 1, {1, 2}, 3))
    assert harness.only(AdoptSyncStateSet) == AdoptSyncStateSet(frozenset({1, 2}), 3)
    assert not harness.all(ProposalRejected)


def test_after_registering_with_a_rocketmq_controller_the_proposal_counts_as_rejected() -> None:
    harness = StateMachineHarness()
    harness.lead()
    harness.feed(
        ReplyReceived(
            propose(harness), QuestionRejected(Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "equal")
        )
    )
    harness.answer(view(1, 1, {1}, 1))
    assert harness.only(ProposalRejected)


def test_a_sure_rejection_ends_the_proposal_after_a_pause() -> None:
    """Otherwise a dead replica would be proposed again with every acknowledgement."""
    harness = StateMachineHarness()
    harness.lead()
    harness.feed(
        ReplyReceived(propose(harness), QuestionRejected(Code.CONTROLLER_BROKER_NOT_ALIVE, "2 is dead"))
    )
    assert not harness.all(ProposalRejected)
    harness.pass_ms(250)
    assert harness.only(ProposalRejected)
    assert not [
        one for one in harness.all(AskController) if isinstance(one.question, AlterSyncStateSetQuestion)
    ]


@pytest.mark.parametrize(
    ("remark", "refused"),
    [
        ("Rejecting alter syncStateSet request because the replicas {2} don't alive", 2),
        ("Rejecting alter syncStateSet request because the replicas {17} don't exist", 17),
        ("replicas {x} don't alive", None),
        ("", None),
    ],
)
def test_a_sure_rejection_says_which_replica_was_refused_and_why(remark: str, refused: int | None) -> None:
    harness = StateMachineHarness()
    harness.lead()
    harness.feed(ReplyReceived(propose(harness), QuestionRejected(Code.CONTROLLER_BROKER_NOT_ALIVE, remark)))
    harness.pass_ms(250)
    assert harness.only(ProposalRejected) == ProposalRejected(refused, remark)


@pytest.mark.parametrize("code", [Code.CONTROLLER_FENCED_MASTER_EPOCH, Code.CONTROLLER_INVALID_MASTER])
def test_a_rejected_former_master_asks_who_is_master(code: Code) -> None:
    harness = StateMachineHarness()
    harness.lead()
    harness.feed(ReplyReceived(propose(harness), QuestionRejected(code, "no")))
    assert harness.only(AskController).question == ReplicaInfoQuestion()
    harness.answer(view(2, 2))
    assert harness.only(StopWriting)
    harness.take()
    assert not [one for one in harness.pass_ms(1000) if isinstance(one, AskController)], (
        "the proposal is forgotten"
    )


def test_a_proposal_of_an_older_epoch_counts_as_rejected() -> None:
    """The same master got a new epoch, and could not take its role at first. The change that it proposed
    meanwhile names the old epoch, and no response would tell its fate."""
    harness = StateMachineHarness()
    harness.lead(epoch=1)
    harness.feed(RoleNotification(view(1, 3, {1}, 11)))
    role = harness.only(TakeRole).view
    harness.feed(RoleTaken(role, "the disk is full"))
    propose(harness, {1, 2}, 11)
    harness.pass_ms(1100)
    harness.feed(RoleTaken(harness.only(TakeRole).view))
    assert harness.only(ProposalRejected)


def test_a_newer_set_found_by_polling_is_adopted_once() -> None:
    """(#6342: the controllers' set is used as it is)"""
    harness = StateMachineHarness()
    harness.lead(set_epoch=4)
    harness.pass_ms(5100)
    harness.answer(view(1, 1, {1, 3}, 6))
    assert harness.only(AdoptSyncStateSet) == AdoptSyncStateSet(frozenset({1, 3}), 6)
    harness.feed(RoleNotification(view(1, 1, {1, 3}, 6)))
    assert not harness.all(AdoptSyncStateSet)
    harness.feed(RoleNotification(view(1, 1, {1}, 5)))
    assert not harness.all(AdoptSyncStateSet)


def test_time_alone_causes_a_bounded_number_of_questions() -> None:
    """In every phase, a minute without any response causes a bounded number of questions."""
    for harness in (
        StateMachineHarness(),
        StateMachineHarness(identity=ME),
        StateMachineHarness(application=APPLIED),
    ):
        harness.meet()
        effects = harness.pass_ms(60_000)
        assert len(effects) <= 10
