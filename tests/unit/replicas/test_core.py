"""A broker's way to its id and its role, and what it does when answers are late, lost or stale."""

from __future__ import annotations

import pytest

from epochmq_broker.replicas.identity import Application, Identity
from epochmq_broker.replicas.types import (
    Adopt,
    Alter,
    ApplyId,
    Ask,
    Become,
    Drop,
    Elect,
    Fence,
    FreeId,
    Granted,
    Keep,
    Kept,
    Leader,
    Look,
    Lost,
    MasterView,
    Met,
    NextId,
    NotTaken,
    Proposed,
    Refused,
    Register,
    Replied,
    Said,
    Search,
    Searched,
    Starved,
    Taken,
    Told,
)
from epochmq_protocol.codes import ResponseCode as Code
from tests.unit.replicas.kit import LEADER, OTHER, Stage, view

ME = Identity("c", "g", 1)
APPLIED = Application(ME, "10.0.1.1:10911;7")


# The ladder -------------------------------------------------------------------------------------------------


def test_a_new_broker_asks_for_an_id_keeps_it_and_is_elected() -> None:
    stage = Stage()
    assert stage.only(Search)
    stage.meet()
    assert stage.only(Ask).question == NextId()
    stage.answer(FreeId(1, APPLIED.check_code))
    assert stage.only(Keep).what == APPLIED
    assert not stage.all(Ask), "nothing is asked before the application is on disk"
    stage.feed(Kept(APPLIED))
    assert stage.only(Ask).question == ApplyId(APPLIED)
    stage.answer(Granted())
    assert stage.only(Keep).what == ME
    stage.feed(Kept(ME))
    assert stage.only(Ask).question == Register(1)
    stage.answer(MasterView())
    assert stage.only(Ask).question == Elect(1)
    stage.answer(view(1, 1))
    assert stage.only(Become).view.master_id == 1
    stage.take()
    assert stage.core.role is not None
    assert stage.core.role.leads


def test_after_a_kill_the_same_application_goes_on() -> None:
    """Killed between applying and knowing the answer: the same id with the same code is ours. (#5745)"""
    stage = Stage(application=APPLIED)
    stage.meet()
    assert stage.only(Ask).question == ApplyId(APPLIED)


def test_after_a_kill_the_same_identity_registers() -> None:
    """An address is no identity: what counts is the id in the store. (#5745, #4808, #5989)"""
    stage = Stage(identity=ME)
    stage.meet()
    assert stage.only(Ask).question == Register(1)


def test_an_id_that_is_another_brokers_is_given_up_for_a_free_one() -> None:
    stage = Stage(application=APPLIED)
    stage.meet()
    stage.answer(Refused(Code.CONTROLLER_BROKER_ID_INVALID, "taken"))
    assert stage.only(Drop)
    stage.pass_ms(1000)
    assert stage.only(Ask).question == NextId()


def test_an_application_that_cannot_be_kept_is_not_sent() -> None:
    stage = Stage()
    stage.meet()
    stage.answer(FreeId(1, APPLIED.check_code))
    stage.feed(Kept(APPLIED, "No space left on device"))
    assert "No space left" in stage.only(Said).text
    stage.pass_ms(1000)
    assert stage.only(Ask).question == NextId()


def test_an_identity_that_cannot_be_kept_is_applied_for_again() -> None:
    stage = Stage(application=APPLIED)
    stage.meet()
    stage.answer(Granted())
    stage.feed(Kept(ME, "No space left on device"))
    stage.pass_ms(1000)
    assert stage.only(Ask).question == ApplyId(APPLIED)


def test_a_broker_that_is_not_registered_any_more_registers_again() -> None:
    """The controllers have forgotten the group, or were set up anew. (#4857)"""
    stage = Stage()
    stage.lead()
    stage.pass_ms(5100)
    assert stage.only(Ask).question == Look()
    stage.answer(Refused(Code.CONTROLLER_BROKER_METADATA_NOT_EXIST, "not existed"))
    stage.pass_ms(1000)
    assert stage.only(Ask).question == Register(1)


UNKNOWN = Refused(Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "1 hasn't been registered")


def test_a_forgotten_broker_applies_for_its_id_again_and_comes_back() -> None:
    """cleanBrokerMetadata forgets a dead broker, which is none. (#4857)"""
    stage = Stage(identity=ME)
    stage.meet()
    stage.answer(UNKNOWN)
    stage.pass_ms(500)
    assert stage.only(Ask).question == NextId()
    stage.answer(FreeId(4, "10.0.1.1:10911;9"))
    assert stage.only(Ask).question == ApplyId(Application(ME, "10.0.1.1:10911;9"))
    assert not stage.all(Keep), "who it is has not changed"
    stage.answer(Granted())
    assert stage.only(Ask).question == Register(1)
    stage.answer(view(2, 5))
    assert stage.only(Become).view == view(2, 5)


def test_a_forgotten_group_is_not_begun_anew_with_an_old_log() -> None:
    """Its epochs would begin at 1, and this log's are newer: said once, and looked at again and again."""
    stage = Stage(identity=ME)
    stage.meet()
    said: list[str] = []
    for _ in range(10):
        stage.answer(UNKNOWN)
        stage.pass_ms(2000)
        assert stage.only(Ask).question == NextId()
        stage.answer(FreeId(1, "10.0.1.1:10911;9"))
        said += [one.text for one in stage.all(Said)]
        stage.pass_ms(2000)
        assert stage.only(Ask).question == Register(1)
    assert len(said) == 1
    assert "do not know group g" in said[0]
    stage.answer(view(2, 5))
    assert stage.only(Become)


def test_an_id_that_is_another_brokers_by_now_is_not_taken() -> None:
    stage = Stage(identity=ME)
    stage.meet()
    stage.answer(UNKNOWN)
    stage.pass_ms(500)
    stage.answer(FreeId(4, "10.0.1.1:10911;9"))
    stage.answer(Refused(Code.CONTROLLER_BROKER_ID_INVALID, "taken"))
    assert "taken" in stage.only(Said).text
    assert not stage.all(Drop)
    stage.pass_ms(2000)
    assert stage.only(Ask).question == Register(1)


def test_a_failed_election_is_asked_for_again() -> None:
    """(#5712, #5009, #6382)"""
    stage = Stage(identity=ME)
    stage.meet()
    stage.answer(MasterView())
    for _ in range(4):
        assert stage.only(Ask).question == Elect(1)
        stage.answer(Refused(Code.CONTROLLER_ELECT_MASTER_FAILED, "nobody"))
        stage.pass_ms(2000)


# Controllers ------------------------------------------------------------------------------------------------


def test_a_lost_answer_looks_for_the_leader_and_asks_again() -> None:
    """(#10812, #5712)"""
    stage = Stage(identity=ME)
    stage.meet()
    stage.answer(Lost("closed"))
    stage.pass_ms(500)
    assert stage.only(Search)
    stage.feed(Searched((Met(OTHER, OTHER, True, True, 2),)))
    asked = stage.only(Ask)
    assert (asked.address, asked.question) == (OTHER, Register(1))


def test_of_two_that_say_they_lead_the_newer_term_wins() -> None:
    stage = Stage(identity=ME)
    stage.feed(Searched((Met(LEADER, LEADER, True, True, 5), Met(OTHER, OTHER, True, True, 6))))
    assert stage.only(Leader) == Leader(OTHER, True)


def test_a_leader_that_only_others_name_is_asked() -> None:
    """An asymmetric partition: the leader does not answer us in time, others know it. (#4800)"""
    stage = Stage(identity=ME)
    stage.feed(Searched((Met(OTHER, LEADER, False, True, 5),)))
    assert stage.only(Leader) == Leader(LEADER, None)
    assert stage.only(Ask).address == LEADER


def test_without_any_controller_it_keeps_looking() -> None:
    stage = Stage(identity=ME)
    for _ in range(5):
        stage.meet(None)
        stage.pass_ms(300)
        assert stage.only(Search)
    assert not stage.all(Ask)


def test_a_master_without_a_lease_looks_for_the_leader() -> None:
    stage = Stage()
    stage.lead()
    assert not stage.feed(Starved()), "one has just ended"
    stage.pass_ms(200)
    assert stage.only(Search)
    assert not stage.feed(Starved()), "one search at a time"


def test_controllers_that_have_lost_their_memory_are_named() -> None:
    """What they say is older than what this broker knows: it stays what it is, and says why."""
    stage = Stage()
    stage.lead(epoch=5)
    said: list[str] = []
    for _ in range(3):
        stage.pass_ms(5100)
        stage.answer(view(2, 1))
        assert not stage.all(Become)
        said += [one.text for one in stage.all(Said)]
    assert said == ["the controller speaks of epoch 1, but 5 has begun"]


# Roles ------------------------------------------------------------------------------------------------------


def test_an_older_epoch_changes_nothing() -> None:
    stage = Stage()
    stage.lead(epoch=5)
    assert not stage.feed(Told(view(2, 4, set_epoch=9)))
    assert not stage.feed(Told(view(2, 0)))
    assert stage.core.role is not None
    assert stage.core.role.epoch == 5


def test_a_notification_of_a_newer_epoch_fences_at_once_and_changes_the_role() -> None:
    """(#6508, #6706)"""
    stage = Stage()
    stage.lead(epoch=5)
    effects = stage.feed(Told(view(2, 6)))
    assert isinstance(effects[0], Fence)
    assert stage.only(Become).view == view(2, 6)
    stage.take()
    assert stage.core.role is not None
    assert (stage.core.role.leads, stage.core.role.master_id) == (False, 2)


def test_what_is_heard_while_a_role_is_taken_waits_and_the_newest_is_next() -> None:
    stage = Stage()
    stage.lead(epoch=5)
    stage.feed(Told(view(2, 6)))
    first = stage.only(Become).view
    assert not stage.all(Ask)
    stage.feed(Told(view(3, 7)))
    stage.feed(Told(view(1, 8)))
    stage.feed(Told(view(3, 7)))
    assert not stage.all(Become)
    stage.feed(Taken(first))
    assert stage.only(Become).view == view(1, 8)


def test_a_role_that_cannot_be_taken_is_tried_again() -> None:
    stage = Stage()
    stage.identify()
    stage.answer(view(1, 3))
    stage.take("the disk is full")
    assert stage.core.role is None
    stage.pass_ms(1100)
    stage.take()
    assert stage.core.role is not None


def test_a_group_without_a_master_fences_its_old_one_and_elects() -> None:
    """The controllers found nobody; RocketMQ's leave such a group to its brokers."""
    stage = Stage()
    stage.lead(epoch=5)
    stage.feed(Told(view(None, 8)))
    assert stage.only(Fence)
    assert stage.only(Ask).question == Elect(1)
    stage.answer(view(1, 9))
    assert stage.only(Become).view.epoch == 9


def test_a_master_that_moved_is_followed_without_a_new_epoch() -> None:
    """(#5745: addresses change)"""
    stage = Stage()
    stage.identify()
    stage.answer(view(2, 3))
    stage.take()
    moved = MasterView(2, "10.0.1.77:10911", 3, frozenset({2}), 1)
    stage.feed(Told(moved))
    assert stage.only(Become).view == moved


def test_a_notification_before_there_is_an_id_waits_for_it() -> None:
    stage = Stage()
    stage.feed(Told(view(2, 3)))
    assert not stage.all(Become)
    stage.identify()
    assert stage.only(Become).view == view(2, 3)


# Who is in sync ---------------------------------------------------------------------------------------------


def propose(stage: Stage, members: set[int] = frozenset({1, 2}), set_epoch: int = 1) -> int:  # type: ignore[assignment]
    """Our master half proposes a set; the question's token."""
    stage.feed(Proposed(frozenset(members), set_epoch))
    asked = stage.only(Ask)
    assert asked.question == Alter(1, 1, frozenset(members), set_epoch)
    return asked.token


def taken(members: set[int], set_epoch: int) -> MasterView:
    """The controller's answer to a proposal."""
    return MasterView(members=frozenset(members), set_epoch=set_epoch)


def test_a_proposal_that_is_taken_is_adopted() -> None:
    stage = Stage()
    stage.lead()
    stage.feed(Replied(propose(stage), taken({1, 2}, 2)))
    assert stage.only(Adopt) == Adopt(frozenset({1, 2}), 2)


def test_a_proposal_made_while_the_role_is_taken_is_sent() -> None:
    stage = Stage()
    stage.identify()
    stage.answer(view(1, 3))
    role = stage.only(Become).view
    stage.feed(Proposed(frozenset({1, 2}), 1))
    asked = stage.only(Ask)
    assert asked.question == Alter(1, 3, frozenset({1, 2}), 1)
    stage.feed(Taken(role))
    stage.feed(Replied(asked.token, taken({1, 2}, 2)))
    assert stage.only(Adopt).set_epoch == 2


def test_a_proposal_without_an_answer_is_sent_again_and_not_forgotten() -> None:
    """Its answer got lost: it may have been taken, so its members count until that is known. (#5663)"""
    stage = Stage()
    stage.lead()
    stage.feed(Replied(propose(stage), Lost("closed")))
    assert not stage.all(NotTaken)
    stage.pass_ms(300)
    stage.meet(OTHER)
    again = next(one for one in stage.all(Ask) if isinstance(one.question, Alter))
    assert again.question == Alter(1, 1, frozenset({1, 2}), 1)
    stage.feed(Replied(again.token, taken({1, 2}, 2)))
    assert stage.only(Adopt)


@pytest.mark.parametrize(
    "code",
    [
        Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        Code.CONTROLLER_BROKER_NOT_ALIVE,
    ],
)
def test_a_refusal_after_a_lost_answer_is_cleared_by_registering_anew(code: Code) -> None:
    """The first may have been taken. Registering raises the set's epoch, so nothing asked before counts.
    (#5663)"""
    stage = Stage()
    stage.lead()
    stage.feed(Replied(propose(stage), Lost("closed")))
    stage.pass_ms(300)
    stage.meet()
    again = next(one for one in stage.all(Ask) if isinstance(one.question, Alter))
    stage.feed(Replied(again.token, Refused(code, "no")))
    assert not stage.all(NotTaken)
    assert stage.only(Ask).question == Register(1)
    stage.answer(view(1, 1, {1, 2}, 3))
    assert stage.only(Adopt) == Adopt(frozenset({1, 2}), 3)
    assert not stage.all(NotTaken)


def test_registering_under_a_java_controller_raises_no_epoch_and_the_proposal_is_over() -> None:
    stage = Stage()
    stage.lead()
    stage.feed(Replied(propose(stage), Refused(Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "equal")))
    stage.answer(view(1, 1, {1}, 1))
    assert stage.only(NotTaken)


def test_a_sure_refusal_ends_the_proposal_but_not_at_once() -> None:
    """A dead replica would be proposed again with every acknowledgement."""
    stage = Stage()
    stage.lead()
    stage.feed(Replied(propose(stage), Refused(Code.CONTROLLER_BROKER_NOT_ALIVE, "2 is dead")))
    assert not stage.all(NotTaken)
    stage.pass_ms(250)
    assert stage.only(NotTaken)
    assert not [one for one in stage.all(Ask) if isinstance(one.question, Alter)]


@pytest.mark.parametrize("code", [Code.CONTROLLER_FENCED_MASTER_EPOCH, Code.CONTROLLER_INVALID_MASTER])
def test_a_proposal_of_a_former_master_makes_it_look(code: Code) -> None:
    stage = Stage()
    stage.lead()
    stage.feed(Replied(propose(stage), Refused(code, "no")))
    assert stage.only(Ask).question == Look()
    stage.answer(view(2, 2))
    assert stage.only(Fence)
    stage.take()
    assert not [one for one in stage.pass_ms(1000) if isinstance(one, Ask)], "the proposal is forgotten"


def test_a_proposal_of_an_epoch_before_the_one_that_is_led_is_over() -> None:
    """The same master got a new epoch, whose role could not be taken at first. Its set was adopted meanwhile,
    and the change that was proposed then names the old epoch: nobody else would say what became of it."""
    stage = Stage()
    stage.lead(epoch=1)
    stage.feed(Told(view(1, 3, {1}, 11)))
    role = stage.only(Become).view
    stage.feed(Taken(role, "the disk is full"))
    propose(stage, {1, 2}, 11)
    stage.pass_ms(1100)
    stage.feed(Taken(stage.only(Become).view))
    assert stage.only(NotTaken)


def test_a_newer_set_that_is_seen_by_looking_is_adopted_once() -> None:
    """(#6342: the controller's set is taken as it is)"""
    stage = Stage()
    stage.lead(set_epoch=4)
    stage.pass_ms(5100)
    stage.answer(view(1, 1, {1, 3}, 6))
    assert stage.only(Adopt) == Adopt(frozenset({1, 3}), 6)
    stage.feed(Told(view(1, 1, {1, 3}, 6)))
    assert not stage.all(Adopt)
    stage.feed(Told(view(1, 1, {1}, 5)))
    assert not stage.all(Adopt)


def test_time_alone_never_busies_it() -> None:
    """Whatever state it is in, a minute without any answer costs a bounded number of questions."""
    for stage in (Stage(), Stage(identity=ME), Stage(application=APPLIED)):
        stage.meet()
        effects = stage.pass_ms(60_000)
        assert len(effects) <= 10
