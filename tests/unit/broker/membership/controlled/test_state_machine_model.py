"""Tests the replica state machine against a model of a controller, with late, lost and repeated messages.

Epochs never decrease, a proposal that was reported as rejected is never accepted later, and once the network
works again the broker has the role that the controller names."""

from __future__ import annotations

import random

import pytest

from epochmq_broker.membership.controlled.state_machine import ReplicaStateMachine
from epochmq_broker.membership.controlled.state_machine_types import (
    AdoptSyncStateSet,
    AlterSyncStateSetQuestion,
    ApplyBrokerIdQuestion,
    AskController,
    BrokerIdGranted,
    ControllerMetadata,
    ControllerQuestion,
    ControllerReply,
    ElectMasterQuestion,
    FindControllerLeader,
    FreeBrokerId,
    IdentitySaved,
    MasterView,
    NextBrokerIdQuestion,
    ProposalMade,
    ProposalRejected,
    QuestionRejected,
    RegisterQuestion,
    ReplicaEffect,
    ReplicaInfoQuestion,
    ReplicaSettings,
    ReplyLost,
    ReplyReceived,
    RoleNotification,
    RoleTaken,
    SaveIdentity,
    SearchFinished,
    StopWriting,
    TakeRole,
    TimeAdvanced,
)
from epochmq_broker.membership.controlled.write_promises import ReplicaPromises
from epochmq_protocol.codes import ResponseCode as Code

ADDRESS = "10.0.0.1:9878"
STEPS, CALM_MS = 250, 60_000


class Model:
    """What an EpochMQ controller knows of the group, and how it responds. Broker 1 is tested, broker 2 is
    another one."""

    def __init__(self) -> None:
        self.next_id = 1
        self.codes: dict[int, str] = {}
        self.master: int | None = None
        self.epoch = 0
        self.members: frozenset[int] = frozenset()
        self.set_epoch = 0

    def view(self) -> MasterView:
        address = None if self.master is None else f"10.0.1.{self.master}:10911"
        return MasterView(self.master, address, self.epoch, self.members, self.set_epoch)

    def elect(self, broker_id: int) -> None:
        self.master, self.epoch = broker_id, self.epoch + 1
        self.members, self.set_epoch = frozenset({broker_id}), self.set_epoch + 1

    def answer(self, question: ControllerQuestion) -> ControllerReply:
        match question:
            case NextBrokerIdQuestion():
                return FreeBrokerId(self.next_id, f"10.0.1.1:10911;{self.next_id}")
            case ApplyBrokerIdQuestion(application=application):
                wanted = application.identity.id
                if self.codes.setdefault(wanted, application.check_code) != application.check_code:
                    return QuestionRejected(Code.CONTROLLER_BROKER_ID_INVALID, "taken")
                self.next_id = max(self.next_id, wanted + 1)
                return BrokerIdGranted()
            case RegisterQuestion(broker_id=broker_id):
                if broker_id not in self.codes:
                    return QuestionRejected(Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "unknown")
                if broker_id == self.master:
                    self.set_epoch += 1
                return self.view()
            case ElectMasterQuestion(broker_id=broker_id):
                if self.master is None:
                    self.elect(broker_id)
                return self.view()
            case ReplicaInfoQuestion():
                return self.view()
            case AlterSyncStateSetQuestion():
                return self._alter(question)

    def _alter(self, asked: AlterSyncStateSetQuestion) -> ControllerReply:
        if asked.members == self.members:
            return QuestionRejected(Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "equal")
        if self.master != asked.broker_id:
            return QuestionRejected(Code.CONTROLLER_INVALID_MASTER, "not you")
        if self.epoch != asked.epoch:
            return QuestionRejected(Code.CONTROLLER_FENCED_MASTER_EPOCH, "not this epoch")
        if self.set_epoch != asked.set_epoch:
            return QuestionRejected(Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, "not this set")
        if 9 in asked.members:
            return QuestionRejected(Code.CONTROLLER_BROKER_NOT_ALIVE, "9 is dead")
        self.members, self.set_epoch = asked.members, self.set_epoch + 1
        return MasterView(members=self.members, set_epoch=self.set_epoch)


class World:
    """One state machine, one model, and the messages between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.model = Model()
        self.now_ms = 0
        self.state_machine = ReplicaStateMachine(
            "c",
            "g",
            ReplicaSettings(metadata_period_ms=1000, controller_search_period_ms=2000),
            0,
            promises=ReplicaPromises(0),
        )
        self.asked: list[AskController] = []
        self.late: list[ControllerQuestion] = []
        self.becoming: list[TakeRole] = []
        self.searching = False
        self.roles: list[int] = []
        self.set: tuple[frozenset[int], int] = (frozenset(), -1)
        self.wish: tuple[frozenset[int], int] | None = None
        self.fenced = False
        self.feed(TimeAdvanced())

    def feed(self, event: object) -> None:
        for effect in self.state_machine.step(event, self.now_ms):  # type: ignore[arg-type]
            self.carry_out(effect)

    def carry_out(self, effect: ReplicaEffect) -> None:
        match effect:
            case AskController():
                self.asked.append(effect)
            case FindControllerLeader():
                self.searching = True
            case SaveIdentity(what=what):
                self.feed(IdentitySaved(what))
            case TakeRole():
                self.becoming.append(effect)
            case StopWriting():
                self.fenced = True
            case AdoptSyncStateSet(members=members, set_epoch=set_epoch):
                assert set_epoch > self.set[1], "only a newer set is handed on"
                self.set, self.wish = (members, set_epoch), None
            case ProposalRejected():
                self.not_taken()
            case _:
                pass

    def not_taken(self) -> None:
        if self.wish is None:
            return  # of before the present role: the master half has forgotten it, too
        members, set_epoch = self.wish
        self.wish = None
        still = [one for one in self.late if isinstance(one, AlterSyncStateSetQuestion)]
        still += [one.question for one in self.asked if isinstance(one.question, AlterSyncStateSetQuestion)]
        for one in still:
            same = (one.members, one.set_epoch) == (members, set_epoch)
            assert not (same and self.model.set_epoch == set_epoch), "it may still be taken"

    # What may happen

    def step(self) -> None:
        acts = [self.pass_time] * 3
        acts += [self.reply, self.reply, self.lose] if self.asked else []
        acts += [self.deliver_late] if self.late else []
        acts += [self.search] * 2 if self.searching else []
        acts += [self.take] * 2 if self.becoming else []
        acts += (
            [self.propose] if self.state_machine.role is not None and self.state_machine.role.leads else []
        )
        acts += [self.forget] if self.model.codes and self.random.random() < 0.02 else []
        acts += [self.elect_another, self.tell] if self.model.epoch and self.random.random() < 0.2 else []
        self.random.choice(acts)()

    def pass_time(self) -> None:
        self.now_ms += self.random.choice((1, 50, 300, 1500))
        self.feed(TimeAdvanced())

    def reply(self) -> None:
        ask = self.asked.pop(0)
        self.feed(ReplyReceived(ask.token, self.model.answer(ask.question)))

    def lose(self) -> None:
        """Loses the question, or delays it, or loses only its response."""
        ask = self.asked.pop(0)
        match self.random.choice(("question", "late", "answer")):
            case "late":
                self.late.append(ask.question)
            case "answer":
                self.model.answer(ask.question)
        self.feed(ReplyReceived(ask.token, ReplyLost("closed")))

    def deliver_late(self) -> None:
        self.model.answer(self.late.pop(self.random.randrange(len(self.late))))

    def search(self) -> None:
        self.searching = False
        met = (ControllerMetadata(ADDRESS, ADDRESS, True, True, 1),) if self.random.random() < 0.8 else ()
        self.feed(SearchFinished(met))

    def take(self) -> None:
        """Takes the role as the driver does, or fails to."""
        become = self.becoming.pop(0)
        if self.random.random() < 0.2:
            self.feed(RoleTaken(become.view, "no"))
            return
        assert not self.roles or become.view.epoch >= self.roles[-1]
        self.roles.append(become.view.epoch)
        if become.view.master_id != 1 or become.view.set_epoch > self.set[1]:
            self.wish = None  # (`SyncState.adopt`)
        self.set = (become.view.members, become.view.set_epoch)
        self.fenced = False
        self.feed(RoleTaken(become.view))

    def propose(self) -> None:
        if self.wish is None and not self.becoming:
            members = frozenset({1, self.random.choice((2, 3, 9))})
            if members != self.set[0]:
                self.wish = (members, self.set[1])
                self.feed(ProposalMade(members, self.set[1]))

    def elect_another(self) -> None:
        self.model.elect(self.random.choice((1, 2)))

    def forget(self) -> None:
        """Removes the broker from the model (cleanBrokerMetadata)."""
        self.model.codes.pop(1, None)
        if self.model.master == 1:
            self.model.master = None

    def tell(self) -> None:
        self.feed(RoleNotification(self.model.view()))

    def calm(self) -> None:
        """From now on no message is lost, and nothing new happens."""
        self.late.clear()
        end_ms = self.now_ms + CALM_MS
        while self.now_ms < end_ms:
            while self.asked or self.becoming or self.searching:
                if self.searching:
                    self.searching = False
                    self.feed(SearchFinished((ControllerMetadata(ADDRESS, ADDRESS, True, True, 1),)))
                if self.becoming:
                    become = self.becoming.pop(0)
                    self.wish = None
                    self.set = (become.view.members, become.view.set_epoch)
                    self.feed(RoleTaken(become.view))
                if self.asked:
                    self.reply()
            self.now_ms = max(self.state_machine.next_deadline_ms(), self.now_ms + 1)
            self.feed(TimeAdvanced())


@pytest.mark.parametrize("seed", range(80))
def test_it_becomes_what_the_controller_says(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.calm()
    role, model = world.state_machine.role, world.model
    assert role is not None
    assert (role.epoch, role.master_id) == (model.epoch, model.master)
    assert role.leads == (model.master == 1) == (world.state_machine.identity is not None and role.leads)
    if role.leads:
        assert world.set == (model.members, model.set_epoch)
        assert world.wish is None
