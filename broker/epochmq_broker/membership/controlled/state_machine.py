# pure: what a broker does under controllers
"""The state machine that gives one broker under controllers its id and its role (RocketMQ's
`ReplicasManager`).

`step(input, now_ms)` takes one input and returns effects. The broker has one question to the leading
controller under way at a time. A kill or a lost response only repeats the present step:

1. Find the leading controller.
2. Get an id: ask which is free, save the application, apply, save the identity.
3. Register; the response may name the master. A broker that the controllers have forgotten
   (cleanBrokerMetadata) applies for its id again, as long as they know the group (#4857).
4. While the group has no master, ask for an election.
5. Then ask every few seconds who is master and who is in sync. Notifications only make that faster.

Beside these steps:

- The master view with the greatest epoch counts. A view of an older epoch changes nothing.
- The driver takes a role as a whole (`TakeRole`). Views that arrive meanwhile wait, and the newest is taken
  next. If another broker, or none, is the master now, this broker stops writing at once (`StopWriting`).
- A broker whose log may have lost its end gives up the mastership that it finds after the start
  (`ha.log_doubt`). Its heartbeats report that epoch as fenced, and it leads under a newer epoch only. If the
  response to its registration names another master or none, every mastership of a newer epoch was decided
  after the start. Unless its log is in doubt, it takes such a mastership.
- A proposed SyncStateSet is sent until its fate is known. If a response was lost and the next one is a
  rejection, the first proposal may have been accepted. The broker then registers again. EpochMQ's controllers
  raise the epoch of the set with it, so that no earlier proposal can be accepted any more (#5663).
- A broker whose id belongs to another store (`incarnation_file`) is refused at its registration. It leaves
  its role, and registers again every few seconds.
- A broker that has promised a master not to become master takes the role of a master only when the promise
  has ended. Until then it keeps its role, and so follows the former master (`write_promises`).

The module is longer than 600 lines because every step reads and changes the same state.
"""

from __future__ import annotations

import msgspec

from epochmq_broker.membership.controlled.controller_registration import ControllerRegistration
from epochmq_broker.membership.controlled.identity import BrokerIdApplication, BrokerIdentity
from epochmq_broker.membership.controlled.pending_change import (
    ChangePhase,
    PendingSyncStateSetChange,
    refused_replica,
)
from epochmq_broker.membership.controlled.state_machine_types import (
    AdoptSyncStateSet,
    AlterSyncStateSetQuestion,
    AskController,
    BrokerIdGranted,
    ControllerLeaderFound,
    ControllerMetadata,
    ControllerQuestion,
    ControllerReply,
    DistrustLog,
    ElectMasterQuestion,
    FindControllerLeader,
    FreeBrokerId,
    GiveUpEpoch,
    HeartbeatNotCounted,
    IdentityDiscarded,
    IdentitySaved,
    LeaseMissing,
    LeaveRole,
    LogCaughtUp,
    MasterMayHaveChanged,
    MasterView,
    ProposalMade,
    ProposalRejected,
    QuestionRejected,
    ReplicaEffect,
    ReplicaInfoQuestion,
    ReplicaInput,
    ReplicaSettings,
    ReplyLost,
    ReplyReceived,
    RoleNotification,
    RoleTaken,
    SearchFinished,
    StopWriting,
    StoreAdopted,
    TakeRole,
    TimeAdvanced,
    WriteLogLine,
)
from epochmq_broker.membership.controlled.write_promises import POLL_MS, ReplicaPromises
from epochmq_protocol.codes import ResponseCode as Code

PAUSE_MIN_MS, PAUSE_MAX_MS = 50, 2000
SEARCH_PAUSE_MS = 200
"""The least time between two searches for the leading controller."""
CHANGE_PAUSE_MS = 200
SUCCESSOR_CHECK_MS = 300
"""How soon to ask which broker was elected after a mastership was given up. A notification usually comes
first."""
ROLE_PAUSE_MS = 1000
"""How long after a failure a role is taken again."""
REGISTER_AGAIN_PAUSE_MS = 1000
"""The least time between two registrations because a controller does not count the heartbeats."""
TWIN_MAX_MS = 20_000
"""How long a broker may be refused because its former process seems alive, until its log is in doubt. A
process that has ended is dead for the controllers after the heartbeat timeout, 10 s by default. One that
lives longer may acknowledge messages that this store lacks."""

STALE_MASTER = (Code.CONTROLLER_FENCED_MASTER_EPOCH, Code.CONTROLLER_INVALID_MASTER)
SURELY_NOT_ACCEPTED = (Code.CONTROLLER_INVALID_REPLICAS, Code.CONTROLLER_BROKER_NOT_ALIVE)


class EpochRole(msgspec.Struct, frozen=True):
    """The role of this broker under `epoch`: the master (`leads`), or a replica of `master_id`, which serves
    clients at `address`."""

    epoch: int
    master_id: int
    address: str | None
    leads: bool


class ReplicaStateMachine:
    """The decisions of one broker. Times are milliseconds of the driver's monotonic clock."""

    def __init__(
        self,
        cluster: str,
        name: str,
        settings: ReplicaSettings,
        now_ms: int,
        *,
        promises: ReplicaPromises,
        identity: BrokerIdentity | None = None,
        application: BrokerIdApplication | None = None,
        gives_up: bool = False,
        given_up_epoch: int = 0,
        in_doubt: bool = False,
    ) -> None:
        """`promises`: those that this process has given, since its start. `gives_up`: the first mastership of
        its own that it hears of may be from before its log lost its end, and is to be given up.
        `given_up_epoch`: it leads only under an epoch newer than this one. `in_doubt`: its log may lack
        acknowledged messages, and controllers that elect it soon after the start may not know that."""
        self.settings = settings
        self.role: EpochRole | None = None
        self.leader: str | None = None
        self.now_ms = now_ms
        self.promises = promises
        self._effects: list[ReplicaEffect] = []
        self._registration = ControllerRegistration(
            cluster, name, identity, application, self._effects.append
        )
        self._must_give_up = gives_up
        self._log_in_doubt = in_doubt
        self._given_up_epoch = given_up_epoch
        self.latest_master_view: MasterView | None = None
        """The master view with the greatest epoch, and SyncStateSet epoch, so far."""
        self._set_epoch = -1
        """The epoch of the newest SyncStateSet that was handed to the driver."""
        self._taking_epoch: int | None = None
        self._role_due_ms = now_ms
        self._pending_change: PendingSyncStateSetChange | None = None
        self._question_token: int | None = None
        self._next_ms = now_ms
        self._pause_ms = PAUSE_MIN_MS
        self._searching = False
        self._search_ms = now_ms
        self._searched_ms = now_ms - SEARCH_PAUSE_MS
        self._metadata_due_ms = now_ms
        self._metadata_asked_ms = now_ms
        self._tokens = 0
        self._last_warning = ""
        self._registered_ms = now_ms
        """When this broker registered last."""
        self._refused_since_ms: int | None = None
        self._distrusts_log = False
        """Whether the log was put in doubt because of the present refusal."""

    @property
    def identity(self) -> BrokerIdentity | None:
        """The identity that the controllers gave to this broker; None before that."""
        return self._registration.identity

    @property
    def refusal(self) -> str | None:
        """Why the controllers refuse this store; None while they do not."""
        return self._registration.refusal

    @property
    def adopts_store(self) -> bool:
        """Whether an administrator has adopted this store, and the controllers have not responded."""
        return self._registration.adopts

    @property
    def is_registered(self) -> bool:
        """Whether the controllers have registered this broker, as far as it knows."""
        return self._registration.is_registered

    @property
    def gives_up_epoch(self) -> int | None:
        """The epoch that this broker has given up, while the controllers still name it the master of that
        epoch; None otherwise."""
        latest = self.latest_master_view
        if latest is None or self.identity is None or latest.master_id != self.identity.id:
            return None
        return latest.epoch if latest.epoch <= self._given_up_epoch else None

    def next_deadline_ms(self) -> int:
        """When the next `TimeAdvanced` is due at the latest."""
        deadline_ms = self._search_ms if not self._searching else self.now_ms + 1000
        if self.leader is not None:
            if self._question_token is None:
                due_ms = (
                    self._next_ms
                    if self._next_question() is not None
                    else max(self._metadata_due_ms, self._next_ms)
                )
                deadline_ms = min(deadline_ms, due_ms)
            change = self._pending_change
            if change is not None and change.waits_for_question:
                deadline_ms = min(deadline_ms, change.due_ms)
        if self._taking_epoch is None and (view := self._role_to_take()) is not None:
            # The clock of a promise counts only when it is read.
            due_ms = self.now_ms + POLL_MS // 2 if self._waits_for_promises(view) else self._role_due_ms
            deadline_ms = min(deadline_ms, due_ms)
        return deadline_ms

    @property
    def follows(self) -> EpochRole | None:
        """The master to which this broker may promise not to become master: it is a replica of this one, and
        knows no later epoch. None if there is none."""
        role, latest = self.role, self.latest_master_view
        if role is None or role.leads or latest is None or self._taking_epoch is not None:
            return None
        if (latest.epoch, latest.master_id) != (role.epoch, role.master_id) or self.refusal is not None:
            return None
        return role

    def knows_set_of(self, epoch: int | None) -> bool:
        """Whether this broker is the master of the epoch and knows its SyncStateSet: a process must have
        registered, because an earlier one may have changed the set."""
        return self.role is not None and self.role.epoch == epoch and self.role.leads and self.is_registered

    @property
    def elected_epoch(self) -> int | None:
        """The epoch for which this broker was elected, while it waits for the end of its promises; None
        otherwise."""
        view = self._role_to_take() if self._taking_epoch is None else None
        return view.epoch if view is not None and self._waits_for_promises(view) else None

    def _waits_for_promises(self, view: MasterView) -> bool:
        """Whether this broker must not take the role yet: it has promised not to become master."""
        assert self.identity is not None
        return view.master_id == self.identity.id and self.promises.left_ms(self.now_ms) > 0

    # Inputs -------------------------------------------------------------------------------------------------

    def step(self, event: ReplicaInput, now_ms: int) -> list[ReplicaEffect]:
        """Takes one input; returns effects to carry out in order."""
        self.now_ms = now_ms
        match event:
            case TimeAdvanced():
                pass
            case SearchFinished(found=found):
                self._search_finished(found)
            case ReplyReceived(token=token, reply=reply):
                self._reply_received(token, reply)
            case IdentitySaved(what=what, error=None):
                self._registration.saved(what)
            case IdentitySaved(what=what, error=error):
                self._registration.save_failed(what)
                self._retry_later(f"the broker's id could not be saved: {error}")
            case RoleNotification(view=view):
                self._note_master_view(view)
            case MasterMayHaveChanged():
                soon_ms = max(now_ms, self._metadata_asked_ms + PAUSE_MIN_MS)
                self._metadata_due_ms = min(self._metadata_due_ms, soon_ms)
            case RoleTaken(view=view, error=error):
                self._role_taken(view, error)
            case ProposalMade():
                self._change_proposed(event)
            case LogCaughtUp():
                self._must_give_up = self._log_in_doubt = False
            case HeartbeatNotCounted():
                if now_ms - self._registered_ms >= REGISTER_AGAIN_PAUSE_MS:
                    self._registered_ms = self._next_ms = now_ms
                    self._registration.register_again()
            case StoreAdopted():
                self._registration.adopts, self._must_give_up, self._log_in_doubt = True, True, True
                self._next_ms, self._pause_ms = now_ms, PAUSE_MIN_MS
            case IdentityDiscarded():
                self._leave_role()
                self._registration.discard_identity()
                self.latest_master_view, self._refused_since_ms, self._must_give_up = None, None, True
                self._next_ms, self._pause_ms = now_ms, PAUSE_MIN_MS
            case LeaseMissing():
                self._search_ms = min(self._search_ms, max(now_ms, self._searched_ms + SEARCH_PAUSE_MS))
        self._act()
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def _act(self) -> None:
        now_ms = self.now_ms
        if not self._searching and now_ms >= self._search_ms:
            self._searching = True
            self._effects.append(FindControllerLeader())
        view = self._role_to_take()
        if (
            view is not None
            and self._taking_epoch is None
            and now_ms >= self._role_due_ms
            and not self._waits_for_promises(view)
        ):
            assert self.identity is not None
            self._taking_epoch = view.epoch
            self._effects.append(TakeRole(view, self.identity.id))
        if self.leader is None:
            return
        if self._question_token is None and now_ms >= self._next_ms:
            self._ask_next()
        change = self._pending_change
        if change is not None and change.waits_for_question and now_ms >= change.due_ms:
            self._send_pending_change(change)

    # The leading controller ---------------------------------------------------------------------------------

    def _search_finished(self, found: tuple[ControllerMetadata, ...]) -> None:
        self._searching = False
        self._searched_ms = self.now_ms
        self._search_ms = self.now_ms + self.settings.controller_search_period_ms
        leaders = [one for one in found if one.leads]
        if leaders:
            chosen = max(leaders, key=lambda one: -1 if one.term is None else one.term)
            # A leader that was replaced may not know it yet: the newer term wins.
            self._leader_found(chosen.address, chosen.grants)
            return
        named = [one.leader for one in found if one.leader]
        if named:
            self._leader_found(max(sorted(set(named)), key=named.count), None)
            return
        self._forget_leader(f"{len(found)} controllers responded, none knows a leader")

    def _leader_found(self, address: str, grants: bool | None) -> None:
        self._last_warning = ""
        if address != self.leader:
            self.leader = address
            self._effects.append(WriteLogLine(f"the leading controller is {address}"))
            self._next_ms, self._pause_ms = self.now_ms, PAUSE_MIN_MS
        self._effects.append(ControllerLeaderFound(address, grants))

    def _forget_leader(self, why: str) -> None:
        self.leader = None
        self._warn_once(f"no leading controller: {why}")
        self._search_ms = self.now_ms + SEARCH_PAUSE_MS

    # Questions to the leading controller --------------------------------------------------------------------

    def _next_question(self) -> ControllerQuestion | None:
        """The next question on the way to a role; None while there is none to ask."""
        question = self._registration.next_question()
        if question is not None or not self._registration.is_registered:
            return question
        assert self.identity is not None
        latest = self.latest_master_view
        has_master = latest is not None and latest.master_id is not None
        return None if has_master else ElectMasterQuestion(self.identity.id)

    def _ask_next(self) -> None:
        question = self._next_question()
        if question is None:
            if self.identity is None or self.now_ms < self._metadata_due_ms:
                return
            question = ReplicaInfoQuestion()
            self._metadata_asked_ms = self.now_ms
        self._question_token = self._ask(question)

    def _ask(self, question: ControllerQuestion) -> int:
        assert self.leader is not None
        self._tokens += 1
        self._effects.append(AskController(self._tokens, self.leader, question))
        return self._tokens

    def _reply_received(self, token: int, reply: ControllerReply) -> None:
        change = self._pending_change
        if change is not None and change.token == token:
            change.token = None
            self._change_replied(change, reply)
        elif token == self._question_token:
            self._question_token = None
            self._question_replied(reply)
        # Otherwise the response is about a proposal that no longer matters.

    def _question_replied(self, reply: ControllerReply) -> None:
        match reply:
            case ReplyLost(why=why):
                self._forget_leader(why)
                self._retry_later(f"a question to the leading controller failed: {why}")
                return
            case QuestionRejected(code=Code.CONTROLLER_NOT_LEADER, remark=remark):
                self._forget_leader(remark)
                self._retry_later(None)
                return
            case QuestionRejected():
                is_expected = self._registration.rejected(reply)
                if self.refusal is not None:
                    self._refused()
                why = f"the controller rejected the request: {reply.remark} (code {reply.code})"
                self._retry_later(None if is_expected else why)
                return
        if not isinstance(reply, FreeBrokerId):
            self._pause_ms = PAUSE_MIN_MS
        self._next_ms = self.now_ms
        match reply:
            case FreeBrokerId():
                error = self._registration.take_free_id(reply)
                if error is not None:
                    self._retry_later(error)
            case BrokerIdGranted():
                self._registration.id_granted()
            case MasterView():
                self._master_view_received(reply)

    def _master_view_received(self, view: MasterView) -> None:
        """The response to a registration, an election or a question about the group."""
        was_registered = self._registration.is_registered
        self._registration.registered()
        if not was_registered:
            self._registered_ms, self._refused_since_ms, self._distrusts_log = self.now_ms, None, False
            self._forget_former_mastership(view)
        self._metadata_due_ms = self.now_ms + self.settings.metadata_period_ms
        self._note_master_view(view)
        if self.gives_up_epoch is not None:
            self._metadata_due_ms = min(self._metadata_due_ms, self.now_ms + SUCCESSOR_CHECK_MS)
        change = self._pending_change
        if change is not None and change.phase is ChangePhase.REREGISTERING and not was_registered:
            self._registered_again(change, view)
        latest = self.latest_master_view
        if latest is not None and 0 < view.epoch < latest.epoch:
            self._warn_once(f"the controller reports epoch {view.epoch}, but epoch {latest.epoch} has begun")
        if was_registered and (latest is None or latest.master_id is None):
            self._retry_later(None)  # no broker can be elected now

    def _forget_former_mastership(self, view: MasterView) -> None:
        """The response to a registration. If it names another master or none, the masterships from before the
        start are those up to its epoch."""
        assert self.identity is not None
        is_master = view.master_id == self.identity.id
        if self._must_give_up and not self._log_in_doubt and not is_master and view.epoch >= 1:
            self._give_up(view.epoch)

    def _give_up(self, epoch: int) -> None:
        self._must_give_up, self._given_up_epoch = False, max(self._given_up_epoch, epoch)
        self._effects.append(GiveUpEpoch(epoch))

    def _retry_later(self, why: str | None) -> None:
        self._next_ms = self.now_ms + self._pause_ms
        self._pause_ms = min(self._pause_ms * 2, PAUSE_MAX_MS)
        if why is not None:
            self._warn_once(why)

    # Roles --------------------------------------------------------------------------------------------------

    def _note_master_view(self, view: MasterView) -> None:
        """Takes over what a controller says of the master, unless a newer view is known."""
        latest = self.latest_master_view
        if view.epoch < 1:
            return
        if latest is not None and (view.epoch, view.set_epoch) < (
            latest.epoch,
            latest.set_epoch,
        ):
            return
        self.latest_master_view = view
        role = self.role
        if self.identity is None:
            return
        if self._must_give_up and view.master_id == self.identity.id:
            self._metadata_due_ms = min(self._metadata_due_ms, self.now_ms + SUCCESSOR_CHECK_MS)
            self._give_up(view.epoch)
        if role is not None and role.leads and view.epoch > role.epoch and view.master_id != self.identity.id:
            self._effects.append(StopWriting())
        if role is not None and view.epoch == role.epoch:
            self._note_sync_state_set(view)

    def _note_sync_state_set(self, view: MasterView) -> None:
        role = self.role
        if role is None or not role.leads or view.set_epoch <= self._set_epoch:
            return
        self._set_epoch = view.set_epoch
        self._pending_change = None
        self._effects.append(AdoptSyncStateSet(view.members, view.set_epoch, view.least))

    def _role_to_take(self) -> MasterView | None:
        """The master view whose role this broker has to take now; None if it has the right one."""
        latest, role = self.latest_master_view, self.role
        if latest is None or latest.master_id is None or self.identity is None:
            return None
        if self.gives_up_epoch is not None or self.refusal is not None:
            return None
        if role is None or latest.epoch > role.epoch:
            return latest
        moved = not role.leads and latest.epoch == role.epoch and latest.address != role.address
        return latest if moved and latest.address else None

    def _role_taken(self, view: MasterView, error: str | None) -> None:
        self._taking_epoch = None
        if error is not None:
            self._role_due_ms = self.now_ms + ROLE_PAUSE_MS
            self._warn_once(f"the broker could not take its role of epoch {view.epoch}: {error}")
            return
        if self.refusal is not None or self.identity is None:
            self._effects += [StopWriting(), LeaveRole()]
            return
        assert view.master_id is not None
        leads = view.master_id == self.identity.id
        self.role = EpochRole(view.epoch, view.master_id, view.address, leads)
        self._set_epoch = view.set_epoch if leads else -1
        if self._pending_change is not None and self._pending_change.epoch != view.epoch:
            self._pending_change = None
            if leads:
                # The controllers reject a change of an older epoch since the election. If the SyncStateSet is
                # the one that was known before, no other input ends the wait for a response.
                self._effects.append(ProposalRejected())
        if self.latest_master_view is not None and self.latest_master_view.epoch == view.epoch:
            self._note_sync_state_set(self.latest_master_view)

    def _refused(self) -> None:
        """The controllers have refused this store: another process has its broker id."""
        if self._refused_since_ms is None:
            self._refused_since_ms = self.now_ms
        if not self._distrusts_log and self.now_ms - self._refused_since_ms >= TWIN_MAX_MS:
            self._distrusts_log = self._log_in_doubt = True
            self._effects.append(DistrustLog())
        self._leave_role()

    def _leave_role(self) -> None:
        if self.role is not None:
            self.role, self._set_epoch, self._pending_change = None, -1, None
            self._effects += [StopWriting(), LeaveRole()]

    # SyncStateSet -------------------------------------------------------------------------------------------

    def _change_proposed(self, made: ProposalMade) -> None:
        epoch = (
            self._taking_epoch
            if self._taking_epoch is not None
            else self.role.epoch
            if self.role is not None
            else None
        )
        if epoch is not None:
            self._pending_change = PendingSyncStateSetChange(
                made.members, made.set_epoch, epoch, made.least, due_ms=self.now_ms
            )

    def _change_replied(self, change: PendingSyncStateSetChange, reply: ControllerReply) -> None:
        change.due_ms = self.now_ms + CHANGE_PAUSE_MS
        match reply:
            case MasterView(members=members, set_epoch=set_epoch, least=least) if set_epoch >= 0:
                self._pending_change = None
                self._set_epoch = max(self._set_epoch, set_epoch)
                self._effects.append(AdoptSyncStateSet(members, set_epoch, least))
            case ReplyLost(why=why):
                change.phase = ChangePhase.UNCERTAIN
                self._forget_leader(why)
            case QuestionRejected(code=Code.CONTROLLER_NOT_LEADER, remark=remark):
                self._forget_leader(remark)
            case QuestionRejected(code=Code.SYSTEM_ERROR | Code.SYSTEM_BUSY):
                change.phase = ChangePhase.UNCERTAIN  # the controllers may have it in their log
            case QuestionRejected(code=code) if code in STALE_MASTER:
                self._metadata_due_ms = self._next_ms = self.now_ms
            case QuestionRejected(code=code, remark=remark) if (
                code in SURELY_NOT_ACCEPTED and change.phase is ChangePhase.PROPOSED
            ):
                self._effects.append(
                    WriteLogLine(
                        f"the controller rejected the SyncStateSet {sorted(change.members)}: {remark}"
                    )
                )
                change.phase, change.remark = ChangePhase.REJECTED, remark
            case _:
                change.phase = ChangePhase.REREGISTERING
                self._registration.register_again()
                self._next_ms = self.now_ms

    def _send_pending_change(self, change: PendingSyncStateSetChange) -> None:
        if change.phase is ChangePhase.REJECTED:
            # Only now: after it, every acknowledgement of a replica may make the next proposal.
            self._pending_change = None
            self._effects.append(ProposalRejected(refused_replica(change.remark), change.remark))
            return
        assert self.identity is not None
        change.token = self._ask(
            AlterSyncStateSetQuestion(
                self.identity.id, change.epoch, change.members, change.set_epoch, change.least
            )
        )

    def _registered_again(self, change: PendingSyncStateSetChange, view: MasterView) -> None:
        """After a new registration no change of an older SyncStateSet epoch can be accepted any more."""
        self._pending_change = None
        is_ours = self.identity is not None and self.identity.id in view.members
        if is_ours and view.epoch in (0, change.epoch) and view.set_epoch > self._set_epoch:
            self._set_epoch = view.set_epoch
            self._effects.append(AdoptSyncStateSet(view.members, view.set_epoch, view.least))
        else:
            self._effects.append(ProposalRejected())

    # Log lines ----------------------------------------------------------------------------------------------

    def _warn_once(self, text: str) -> None:
        """Writes a warning, unless it is the same as the last one."""
        if text != self._last_warning:
            self._last_warning = text
            self._effects.append(WriteLogLine(text, warns=True))
