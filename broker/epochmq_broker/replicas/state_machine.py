# pure: what a broker does under controllers
"""A broker's way to its id and its role: `step(input, now_ms)` takes one input and returns effects
(`ReplicasManager`).

The ladder, one question to the leading controller at a time, each rung climbed again from wherever a kill or
a lost answer left it:

1. find the leading controller;
2. get an id: ask which is free, keep the application, apply, keep the identity;
3. register; the answer may name the master. A broker that was forgotten (cleanBrokerMetadata) applies for
   its id again, while there is a group to come back to (#4857);
4. while nobody leads the group: ask for an election;
5. then look every few seconds who is master and who is in sync. Notifications only make that faster.

The rules beside it:

- The master with the greatest epoch is the master; whatever names an older epoch changes nothing.
- A role is taken in one go (`TakeRole`); what is heard meanwhile waits, and the newest is taken next. That
  somebody else is master, or nobody, is acted upon at once: `StopWriting`.
- A broker whose log may have lost its end gives up the mastership it comes back to (`ha.log_doubt`): the
  controllers are told, as if it were fenced, and it leads under a newer epoch only.
- A proposed SyncStateSet is sent until its fate is known. When an answer was lost and the next is a refusal,
  the first may have been taken: this broker registers anew, upon which a controller of ours raises the set's
  epoch, so that nothing asked before can come true any more (#5663).
"""

from __future__ import annotations

import enum

import msgspec

from epochmq_broker.replicas.identity import BrokerIdApplication, BrokerIdentity
from epochmq_broker.replicas.state_machine_types import (
    AdoptSyncStateSet,
    AlterSyncStateSetQuestion,
    ApplyBrokerIdQuestion,
    AskController,
    BrokerIdGranted,
    ControllerLeaderFound,
    ControllerMetadata,
    ControllerQuestion,
    ControllerReply,
    DropApplication,
    ElectMasterQuestion,
    FindControllerLeader,
    FreeBrokerId,
    GiveUpEpoch,
    IdentitySaved,
    LeaseMissing,
    LogCaughtUp,
    MasterView,
    NextBrokerIdQuestion,
    ProposalMade,
    ProposalRejected,
    QuestionRejected,
    RegisterQuestion,
    ReplicaEffect,
    ReplicaInfoQuestion,
    ReplicaInput,
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
    WriteLogLine,
)
from epochmq_protocol.codes import ResponseCode as Code

PAUSE_MIN_MS, PAUSE_MAX_MS = 50, 2000
SEARCH_PAUSE_MS = 200
"""The least time between two searches for the leading controller."""
ALTER_PAUSE_MS = 200
GIVE_UP_LOOK_MS = 300
"""How soon to look who was elected in our place; a notification usually says it before."""
ROLE_PAUSE_MS = 1000
"""How long after a role could not be taken it is tried again."""

STALE_MASTER = (Code.CONTROLLER_FENCED_MASTER_EPOCH, Code.CONTROLLER_INVALID_MASTER)
SURELY_NOT_TAKEN = (Code.CONTROLLER_INVALID_REPLICAS, Code.CONTROLLER_BROKER_NOT_ALIVE)
UNREGISTERED = (Code.CONTROLLER_BROKER_METADATA_NOT_EXIST, Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)


class EpochRole(msgspec.Struct, frozen=True):
    """What this broker is under `epoch`: the master, or a replica of `master_id` at `address`."""

    epoch: int
    master_id: int
    address: str | None
    leads: bool


class RegistrationPhase(enum.Enum):
    """How far this broker has come on its way to being a registered member of its group."""

    NEEDS_ID = "asks for a free id"
    SAVING_APPLICATION = "the application for an id is being saved"
    APPLYING = "applies for the id of its application"
    SAVING_IDENTITY = "the id was granted, the identity is being saved"
    UNREGISTERED = "has an id and registers"
    REGISTERED = "is registered"
    FORGOTTEN = "the controllers know the group, but not this broker: asks for a free id"
    REAPPLYING = "forgotten, applies for its own id again"


class ChangePhase(enum.Enum):
    """What is known of a proposed SyncStateSet."""

    PROPOSED = "every response so far was clear"
    UNCERTAIN = "a question about it got no clear response: it may have been accepted"
    REREGISTERING = "registering again will show what became of it"
    REJECTED = "it was surely not accepted"


class PendingSyncStateSetChange(msgspec.Struct):
    """A SyncStateSet that was proposed under the master epoch `epoch`, on top of the set of `set_epoch`.
    `token` names the question that is under way, None while none is; the next one is due at `due_ms`."""

    members: frozenset[int]
    set_epoch: int
    epoch: int
    phase: ChangePhase = ChangePhase.PROPOSED
    token: int | None = None
    due_ms: int = 0

    @property
    def waits_for_question(self) -> bool:
        """Whether the next step, at `due_ms`, is a question about it, or to report its rejection."""
        return self.token is None and self.phase is not ChangePhase.REREGISTERING


class ReplicaStateMachine:
    """One broker's decisions. Times are the driver's monotonic clock, milliseconds."""

    def __init__(
        self,
        cluster: str,
        name: str,
        settings: ReplicaSettings,
        now_ms: int,
        *,
        identity: BrokerIdentity | None = None,
        application: BrokerIdApplication | None = None,
        gives_up: bool = False,
        given_up_epoch: int = 0,
    ) -> None:
        """`gives_up`: the first mastership of its own that it hears of is from before its log lost its end.
        `given_up_epoch`: no mastership of this epoch or an older one is taken."""
        self.settings = settings
        self.identity = identity
        self.application = application
        self.role: EpochRole | None = None
        self.leader: str | None = None
        self.now_ms = now_ms
        self._cluster, self._name = cluster, name
        self._registration = (
            RegistrationPhase.UNREGISTERED
            if identity is not None
            else RegistrationPhase.NEEDS_ID
            if application is None
            else RegistrationPhase.APPLYING
        )
        self._gives_up = gives_up
        self._given_up_epoch = given_up_epoch
        self._latest_master_view: MasterView | None = None
        """The newest that was said of the master; its epoch is known."""
        self._set_epoch = -1
        """That of the newest SyncStateSet handed on."""
        self._changing: int | None = None
        self._role_due_ms = now_ms
        self._pending_change: PendingSyncStateSetChange | None = None
        self._asked: int | None = None
        self._next_ms = now_ms
        self._pause_ms = PAUSE_MIN_MS
        self._searching = False
        self._search_ms = now_ms
        self._searched_ms = now_ms - SEARCH_PAUSE_MS
        self._look_ms = now_ms
        self._tokens = 0
        self._complaint = ""
        self._effects: list[ReplicaEffect] = []

    @property
    def is_ready(self) -> bool:
        """Whether this broker has a role."""
        return self.role is not None

    @property
    def latest_master_view(self) -> MasterView | None:
        """The newest that was said of the master."""
        return self._latest_master_view

    @property
    def gives_up_epoch(self) -> int | None:
        """The epoch of the mastership that the controllers take for ours and that is given up."""
        latest_master_view = self._latest_master_view
        if (
            latest_master_view is None
            or self.identity is None
            or latest_master_view.master_id != self.identity.id
        ):
            return None
        return latest_master_view.epoch if latest_master_view.epoch <= self._given_up_epoch else None

    def next_deadline_ms(self) -> int:
        """The moment by which the core wants to be woken."""
        deadline_ms = self._search_ms if not self._searching else self.now_ms + 1000
        if self.leader is not None:
            if self._asked is None:
                due_ms = (
                    self._next_ms if self._next_question() is not None else max(self._look_ms, self._next_ms)
                )
                deadline_ms = min(deadline_ms, due_ms)
            change = self._pending_change
            if change is not None and change.waits_for_question:
                deadline_ms = min(deadline_ms, change.due_ms)
        if self._changing is None and self._wants_role() is not None:
            deadline_ms = min(deadline_ms, self._role_due_ms)
        return deadline_ms

    # The front door -----------------------------------------------------------------------------------------

    def step(self, event: ReplicaInput, now_ms: int) -> list[ReplicaEffect]:
        """Takes one input; returns effects to carry out in order."""
        self.now_ms = now_ms
        match event:
            case TimeAdvanced():
                pass
            case SearchFinished(found=found):
                self._searched(found)
            case ReplyReceived(token=token, reply=reply):
                self._replied(token, reply)
            case IdentitySaved(what=what, error=error):
                self._was_kept(what, error)
            case RoleNotification(view=view):
                self._learn(view)
            case RoleTaken(view=view, error=error):
                self._taken(view, error)
            case ProposalMade(members=members, set_epoch=set_epoch):
                self._proposed(members, set_epoch)
            case LogCaughtUp():
                self._gives_up = False
            case LeaseMissing():
                self._search_ms = min(self._search_ms, max(now_ms, self._searched_ms + SEARCH_PAUSE_MS))
        self._drive()
        effects, self._effects = self._effects, []
        return effects

    def _drive(self) -> None:
        now_ms = self.now_ms
        if not self._searching and now_ms >= self._search_ms:
            self._searching = True
            self._effects.append(FindControllerLeader())
        view = self._wants_role()
        if view is not None and self._changing is None and now_ms >= self._role_due_ms:
            assert self.identity is not None
            self._changing = view.epoch
            self._effects.append(TakeRole(view, self.identity.id))
        if self.leader is None:
            return
        if self._asked is None and now_ms >= self._next_ms:
            self._ask_next()
        change = self._pending_change
        if change is not None and change.waits_for_question and now_ms >= change.due_ms:
            self._send_pending_change(change)

    # Who leads the controllers ------------------------------------------------------------------------------

    def _searched(self, found: tuple[ControllerMetadata, ...]) -> None:
        self._searching = False
        self._searched_ms = self.now_ms
        self._search_ms = self.now_ms + self.settings.controller_search_period_ms
        leaders = [one for one in found if one.leads]
        if leaders:
            chosen = max(leaders, key=lambda one: -1 if one.term is None else one.term)
            # A leader that has lost its followers may not know it yet: a newer term wins.
            self._follow(chosen.address, chosen.grants)
            return
        named = [one.leader for one in found if one.leader]
        if named:
            self._follow(max(sorted(set(named)), key=named.count), None)
            return
        self._lose_leader(f"{len(found)} controllers answer, none knows a leader")

    def _follow(self, address: str, grants: bool | None) -> None:
        self._complaint = ""
        if address != self.leader:
            self.leader = address
            self._say(f"the leading controller is {address}")
            self._next_ms, self._pause_ms = self.now_ms, PAUSE_MIN_MS
        self._effects.append(ControllerLeaderFound(address, grants))

    def _lose_leader(self, why: str) -> None:
        self.leader = None
        self._complain(f"no leading controller: {why}")
        self._search_ms = self.now_ms + SEARCH_PAUSE_MS

    # The ladder ---------------------------------------------------------------------------------------------

    def _next_question(self) -> ControllerQuestion | None:
        """The next question on the way to a role; None when all is known."""
        match self._registration:
            case RegistrationPhase.NEEDS_ID | RegistrationPhase.FORGOTTEN:
                return NextBrokerIdQuestion()
            case RegistrationPhase.APPLYING | RegistrationPhase.REAPPLYING:
                assert self.application is not None
                return ApplyBrokerIdQuestion(self.application)
            case RegistrationPhase.SAVING_APPLICATION | RegistrationPhase.SAVING_IDENTITY:
                return None
            case RegistrationPhase.UNREGISTERED:
                assert self.identity is not None
                return RegisterQuestion(self.identity.id)
            case RegistrationPhase.REGISTERED:
                assert self.identity is not None
                latest = self._latest_master_view
                has_master = latest is not None and latest.master_id is not None
                return None if has_master else ElectMasterQuestion(self.identity.id)

    def _ask_next(self) -> None:
        question = self._next_question()
        if question is None:
            if self.identity is None or self.now_ms < self._look_ms:
                return
            question = ReplicaInfoQuestion()
        self._asked = self._ask(question)

    def _ask(self, question: ControllerQuestion) -> int:
        assert self.leader is not None
        self._tokens += 1
        self._effects.append(AskController(self._tokens, self.leader, question))
        return self._tokens

    def _replied(self, token: int, reply: ControllerReply) -> None:
        change = self._pending_change
        if change is not None and change.token == token:
            change.token = None
            self._alter_replied(change, reply)
        elif token == self._asked:
            self._asked = None
            self._question_replied(reply)
        # else: about a proposal that does not matter any more

    def _question_replied(self, reply: ControllerReply) -> None:
        match reply:
            case ReplyLost(why=why):
                self._lose_leader(why)
                self._wait(f"asking the controller failed: {why}")
                return
            case QuestionRejected(code=Code.CONTROLLER_NOT_LEADER, remark=remark):
                self._lose_leader(remark)
                self._wait(None)
                return
            case QuestionRejected():
                self._refused(reply)
                return
        if not isinstance(reply, FreeBrokerId):
            self._pause_ms = PAUSE_MIN_MS
        self._next_ms = self.now_ms
        match reply:
            case FreeBrokerId(id=free, check_code=code) if self.identity is not None:
                self._apply_again(self.identity, free, code)
            case BrokerIdGranted() if self.identity is not None:
                self._registration, self.application = RegistrationPhase.UNREGISTERED, None
            case FreeBrokerId(id=free, check_code=code):
                self.application = BrokerIdApplication(BrokerIdentity(self._cluster, self._name, free), code)
                self._registration = RegistrationPhase.SAVING_APPLICATION
                self._effects.append(SaveIdentity(self.application))
            case BrokerIdGranted():
                assert self.application is not None
                self._effects.append(SaveIdentity(self.application.identity))
                self._registration = RegistrationPhase.SAVING_IDENTITY
            case MasterView():
                self._viewed(reply)

    def _apply_again(self, identity: BrokerIdentity, free: int, check_code: str) -> None:
        """The id is ours, and nobody else's while the controllers do not know it. A group without any id is a
        new one, whose epochs begin anew: this log is of another."""
        if free > 1:
            self.application = BrokerIdApplication(identity, check_code)
            self._registration = RegistrationPhase.REAPPLYING
            return
        self._registration = RegistrationPhase.UNREGISTERED
        self._wait(
            f"the controllers do not know group {self._name}, of which this store is broker {identity.id}: "
            "restore the controllers' storage, or clear this store"
        )

    def _viewed(self, view: MasterView) -> None:
        """An answer to Register, Elect or Look."""
        was_registered = self._registration is RegistrationPhase.REGISTERED
        self._registration = RegistrationPhase.REGISTERED
        self._look_ms = self.now_ms + self.settings.metadata_period_ms
        self._learn(view)
        if self.gives_up_epoch is not None:
            self._look_ms = min(self._look_ms, self.now_ms + GIVE_UP_LOOK_MS)
        change = self._pending_change
        if change is not None and change.phase is ChangePhase.REREGISTERING and not was_registered:
            self._resynced(change, view)
        latest_master_view = self._latest_master_view
        if latest_master_view is not None and 0 < view.epoch < latest_master_view.epoch:
            self._complain(
                f"the controller speaks of epoch {view.epoch}, but {latest_master_view.epoch} has begun"
            )
        if was_registered and (latest_master_view is None or latest_master_view.master_id is None):
            self._wait(None)  # nobody can be elected now

    def _refused(self, reply: QuestionRejected) -> None:
        phase = self._registration
        if reply.code in UNREGISTERED and phase is RegistrationPhase.REGISTERED:
            self._registration = RegistrationPhase.UNREGISTERED
            self._wait(None)
            return
        if reply.code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED and self.identity is not None:
            if phase is RegistrationPhase.UNREGISTERED:
                self._registration = RegistrationPhase.FORGOTTEN
            self._wait(None)
            return
        if phase in (RegistrationPhase.FORGOTTEN, RegistrationPhase.REAPPLYING):
            self._registration, self.application = RegistrationPhase.UNREGISTERED, None
        elif reply.code == Code.CONTROLLER_BROKER_ID_INVALID and self.application is not None:
            self._say(f"id {self.application.identity.id} is another broker's: {reply.remark}")
            self._registration, self.application = RegistrationPhase.NEEDS_ID, None
            self._effects.append(DropApplication())
        self._wait(f"the controller refuses: {reply.remark} ({reply.code})")

    def _wait(self, why: str | None) -> None:
        self._next_ms = self.now_ms + self._pause_ms
        self._pause_ms = min(self._pause_ms * 2, PAUSE_MAX_MS)
        if why is not None:
            self._complain(why)

    def _was_kept(self, what: BrokerIdApplication | BrokerIdentity, error: str | None) -> None:
        if error is not None:
            if isinstance(what, BrokerIdApplication):
                self._registration, self.application = RegistrationPhase.NEEDS_ID, None
            else:
                self._registration = RegistrationPhase.APPLYING
            self._wait(f"the broker's id cannot be kept: {error}")
            return
        if isinstance(what, BrokerIdApplication):
            self._registration = RegistrationPhase.APPLYING
        else:
            self.identity, self.application = what, None
            self._registration = RegistrationPhase.UNREGISTERED
            self._say(f"this is broker {what.id} of {what.name}")

    # Roles --------------------------------------------------------------------------------------------------

    def _learn(self, view: MasterView) -> None:
        """Somebody says who is master."""
        latest_master_view = self._latest_master_view
        if view.epoch < 1:
            return
        if latest_master_view is not None and (view.epoch, view.set_epoch) < (
            latest_master_view.epoch,
            latest_master_view.set_epoch,
        ):
            return
        self._latest_master_view = view
        role = self.role
        if self.identity is None:
            return
        if self._gives_up and view.master_id == self.identity.id:
            self._gives_up, self._given_up_epoch = False, max(self._given_up_epoch, view.epoch)
            self._look_ms = min(self._look_ms, self.now_ms + GIVE_UP_LOOK_MS)
            self._effects.append(GiveUpEpoch(view.epoch))
        if role is not None and role.leads and view.epoch > role.epoch and view.master_id != self.identity.id:
            self._effects.append(StopWriting())
        if role is not None and view.epoch == role.epoch:
            self._look_at_set(view)

    def _look_at_set(self, view: MasterView) -> None:
        role = self.role
        if role is None or not role.leads or view.set_epoch <= self._set_epoch:
            return
        self._set_epoch = view.set_epoch
        self._pending_change = None
        self._effects.append(AdoptSyncStateSet(view.members, view.set_epoch))

    def _wants_role(self) -> MasterView | None:
        """The view whose role is to be taken."""
        latest_master_view, role = self._latest_master_view, self.role
        if latest_master_view is None or latest_master_view.master_id is None or self.identity is None:
            return None
        if self.gives_up_epoch is not None:
            return None
        if role is None or latest_master_view.epoch > role.epoch:
            return latest_master_view
        moved = (
            not role.leads
            and latest_master_view.epoch == role.epoch
            and latest_master_view.address != role.address
        )
        return latest_master_view if moved and latest_master_view.address else None

    def _taken(self, view: MasterView, error: str | None) -> None:
        self._changing = None
        if error is not None:
            self._role_due_ms = self.now_ms + ROLE_PAUSE_MS
            self._complain(f"the role of epoch {view.epoch} cannot be taken: {error}")
            return
        assert view.master_id is not None
        assert self.identity is not None
        leads = view.master_id == self.identity.id
        self.role = EpochRole(view.epoch, view.master_id, view.address, leads)
        self._set_epoch = view.set_epoch if leads else -1
        if self._pending_change is not None and self._pending_change.epoch != view.epoch:
            self._pending_change = None
            if leads:
                # Asked under an older epoch, it is refused from the election on. The SyncStateSet may be the
                # one that was known before, and then nothing else ends the wait for an answer.
                self._effects.append(ProposalRejected())
        if self._latest_master_view is not None and self._latest_master_view.epoch == view.epoch:
            self._look_at_set(self._latest_master_view)

    # Who is in sync -----------------------------------------------------------------------------------------

    def _proposed(self, members: frozenset[int], set_epoch: int) -> None:
        epoch = (
            self._changing
            if self._changing is not None
            else self.role.epoch
            if self.role is not None
            else None
        )
        if epoch is not None:
            self._pending_change = PendingSyncStateSetChange(members, set_epoch, epoch, due_ms=self.now_ms)

    def _alter_replied(self, change: PendingSyncStateSetChange, reply: ControllerReply) -> None:
        change.due_ms = self.now_ms + ALTER_PAUSE_MS
        match reply:
            case MasterView(members=members, set_epoch=set_epoch) if set_epoch >= 0:
                self._pending_change = None
                self._set_epoch = max(self._set_epoch, set_epoch)
                self._effects.append(AdoptSyncStateSet(members, set_epoch))
            case ReplyLost(why=why):
                change.phase = ChangePhase.UNCERTAIN
                self._lose_leader(why)
            case QuestionRejected(code=Code.CONTROLLER_NOT_LEADER, remark=remark):
                self._lose_leader(remark)
            case QuestionRejected(code=Code.SYSTEM_ERROR | Code.SYSTEM_BUSY):
                change.phase = ChangePhase.UNCERTAIN  # in the controllers' log, perhaps
            case QuestionRejected(code=code) if code in STALE_MASTER:
                self._look_ms = self._next_ms = self.now_ms
            case QuestionRejected(code=code, remark=remark) if (
                code in SURELY_NOT_TAKEN and change.phase is ChangePhase.PROPOSED
            ):
                self._say(f"the SyncStateSet {sorted(change.members)} is refused: {remark}")
                change.phase = ChangePhase.REJECTED
            case _:
                change.phase = ChangePhase.REREGISTERING
                if self._registration is RegistrationPhase.REGISTERED:
                    self._registration = RegistrationPhase.UNREGISTERED
                self._next_ms = self.now_ms

    def _send_pending_change(self, change: PendingSyncStateSetChange) -> None:
        if change.phase is ChangePhase.REJECTED:
            # Not sooner: the next proposal follows the next acknowledgement.
            self._pending_change = None
            self._effects.append(ProposalRejected())
            return
        assert self.identity is not None
        change.token = self._ask(
            AlterSyncStateSetQuestion(self.identity.id, change.epoch, change.members, change.set_epoch)
        )

    def _resynced(self, change: PendingSyncStateSetChange, view: MasterView) -> None:
        """Registered anew: nothing that was asked under an older epoch of the set can be taken any more."""
        self._pending_change = None
        if view.set_epoch > self._set_epoch:
            self._set_epoch = view.set_epoch
            self._effects.append(AdoptSyncStateSet(view.members, view.set_epoch))
        else:
            self._effects.append(ProposalRejected())

    # Saying -------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._effects.append(WriteLogLine(text))

    def _complain(self, text: str) -> None:
        """Once; what goes on and on is not said again."""
        if text != self._complaint:
            self._complaint = text
            self._effects.append(WriteLogLine(text, warns=True))
