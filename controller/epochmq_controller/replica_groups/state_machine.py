# pure: what a controller does
"""The desk at which a controller decides: `step(input, now_ms)` takes one input and returns effects.

The driver brings requests, heartbeats, closed connections, the entries that the Raft log has committed, and
what became of proposals. The desk holds the tables that the entries make, who is alive, and who was given the
right to write. Its rules:

- A request is decided on the tables as they are. Its events go into the log, and it is answered once they
  are applied.
- Requests of one group go one after another, each decided on what the one before it left; groups do not wait
  for each other. A proposal whose fate is open keeps its group waiting, also after its client was told that
  time is up: it may be committed at any moment, and the next decision must know.
- A controller decides only after the first entry of its own leadership is applied, and so everything that
  earlier leaders committed.
- A master is replaced only after its lease (see `leases`); at the end of that wait it is decided anew. A
  master that comes back meanwhile stays.
- A group whose living members may lack what a missing one has waits for it (`policy.electable`); `waiting`
  says why.
- A master whose log is shorter than what it has reported is replaced.
- Groups that lost their master are looked for when a connection closes, when heartbeats end, when a master
  says that it is fenced, when a leadership begins, and at every scan: whatever was missed, and every election
  that failed, is found there.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from epochmq_controller.replica_groups import events, requests, rules
from epochmq_controller.replica_groups.confirmed_offset import ConfirmedOffset
from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat, HeartbeatTable
from epochmq_controller.replica_groups.leases import LeapLimitedClock, LeaseTable
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.requests import (
    ControllerRequest,
    ElectMasterRequest,
    GetReplicaInfoRequest,
)
from epochmq_controller.replica_groups.rules import Decision
from epochmq_controller.replica_groups.state_machine_types import (
    ChannelClosed,
    CheckLeadership,
    ControllerEffect,
    ControllerInput,
    ControllerStateMachineSettings,
    EntryApplied,
    GroupRequestReceived,
    HeartbeatReceived,
    HeartbeatsReceived,
    LeadershipChanged,
    LeadershipCheckCompleted,
    LogMessage,
    NotifyBroker,
    ProposalCompleted,
    ProposeEvents,
    RejectRequest,
    RespondToLeaseRequest,
    RespondToRequest,
    SnapshotRestored,
    TimeAdvanced,
)
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RemoteProtocolError

NOT_LEADER = "The controller is not in leader state"
REQUEST_TIMEOUT_MS = 5000
"""A request not decided and committed by then is answered with an error; it may be committed later."""
REQUESTS_MAX = 50_000
"""Requests under way; one more is answered SYSTEM_BUSY."""

# One group's requests ---------------------------------------------------------------------------------------


class QueuedRequest(msgspec.Struct):
    """A request under way. `token` is None for what the desk asks itself, and once it was answered."""

    token: int | None
    request: ControllerRequest


class ReadyToDecide(msgspec.Struct, frozen=True):
    """The first job may be decided."""


class AwaitingLeaseEnd(msgspec.Struct, frozen=True):
    """The first job elects another master; it is decided anew when the present one's lease has run out."""


class AwaitingCommit(msgspec.Struct, frozen=True):
    """The first job's events are in the log, or may be."""

    decision: Decision


class AwaitingLeadershipCheck(msgspec.Struct, frozen=True):
    """The first job reads, and waits for the proof that we lead."""

    decision: Decision


QueueState = ReadyToDecide | AwaitingLeaseEnd | AwaitingCommit | AwaitingLeadershipCheck
READY_TO_DECIDE = ReadyToDecide()


class GroupRequestQueue(msgspec.Struct):
    """One group's jobs, first come first served."""

    jobs: deque[QueuedRequest]
    state: QueueState = READY_TO_DECIDE


class LeaseRequest(msgspec.Struct, frozen=True):
    """A lease asked for, until it is proven that we lead."""

    token: int
    name: str
    holder: int
    epoch: int
    arrived_ms: float


class ControllerStateMachine:
    """One controller's decisions. Times are the driver's monotonic clock, milliseconds."""

    def __init__(self, settings: ControllerStateMachineSettings, now_ms: int) -> None:
        self.settings = settings
        self.groups = ReplicaGroups()
        self.heartbeats = HeartbeatTable()
        self.leases: LeaseTable | None = None
        self.now_ms = now_ms
        self._clock = LeapLimitedClock(now_ms, settings.clock_step_ms)
        self._term: int | None = None
        self._lanes: dict[str, GroupRequestQueue] = {}
        self._awaiting: dict[str, float] = {}
        """Groups that await the end of a lease, on the patient clock."""
        self._soonest_ms = math.inf
        """None of them before this."""
        self._proposals: dict[int, str] = {}
        self._proofs: dict[int, list[LeaseRequest] | str] = {}
        self._lease_requests: list[LeaseRequest] = []
        """Of the heartbeats that this step takes."""
        self._timeouts: deque[tuple[int, int, str]] = deque()
        """(when, token, group) of the requests under way."""
        self._open: set[int] = set()
        """Tokens of requests not answered yet."""
        self._tokens = 0
        self._scan_brokers_ms = now_ms
        self._scan_masters_ms = now_ms
        self._effects: list[ControllerEffect] = []
        self.waiting: dict[str, str] = {}
        """Why a group has no master until a missing member returns or a person orders an election."""
        self._confirmed: dict[str, ConfirmedOffset] = {}

    # What it is ---------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this controller leads and has applied everything that earlier leaders committed."""
        return self.leases is not None

    def configure(self, settings: ControllerStateMachineSettings) -> None:
        """Goes by other settings. The length of leases changes with the next leadership: until then earlier
        promises count."""
        self.settings = settings

    def alive(self, cluster: str, name: str, broker_id: int) -> ReplicaLiveInfo | None:
        """What a living replica's heartbeats say, None for a dead one."""
        return self.heartbeats.live_info((cluster, name, broker_id), self.now_ms)

    def next_deadline_ms(self) -> int:
        """The moment, on the clock of `step`, by which the desk wants to be woken."""
        deadline_ms = self._scan_brokers_ms
        if self.leases is None:
            return deadline_ms
        deadline_ms = min(deadline_ms, self._scan_masters_ms)
        if self._timeouts:
            deadline_ms = min(deadline_ms, self._timeouts[0][0])
        if self.leases.last_end_ms > self._clock.ms:
            deadline_ms = min(deadline_ms, self.now_ms + self.settings.clock_step_ms // 2)
        if self._awaiting:
            wait_ms = max(0, math.ceil(self._soonest_ms - self._clock.ms))
            deadline_ms = min(deadline_ms, self.now_ms + wait_ms)
        return deadline_ms

    # The front door -----------------------------------------------------------------------------------------

    def step(self, event: ControllerInput, now_ms: int) -> list[ControllerEffect]:
        """Takes one input at a time that never goes back; returns effects to carry out in order."""
        self.now_ms = now_ms
        self._clock.advance_to(now_ms)
        match event:
            case TimeAdvanced():
                pass
            case HeartbeatReceived():
                self._heard(event)
                self._check_leadership_for_leases()
            case HeartbeatsReceived(heartbeats=heartbeats):
                for heartbeat in heartbeats:
                    self._heard(heartbeat)
                self._check_leadership_for_leases()
            case GroupRequestReceived(token=token, request=request):
                self._asked(token, request)
            case EntryApplied():
                self._applied(event)
            case SnapshotRestored(groups=groups):
                self.groups = groups
            case ProposalCompleted(token=token, error=error):
                self._settled(token, error)
            case LeadershipCheckCompleted(token=token, leads=leads):
                self._proven(token, leads)
            case ChannelClosed(channel=channel):
                self._gone(self.heartbeats.remove_channel(channel), "its connection closed")
            case LeadershipChanged(term=term):
                self._led(term)
        self._drive()
        effects, self._effects = self._effects, []
        return effects

    def _drive(self) -> None:
        """What time made necessary."""
        if self.now_ms >= self._scan_brokers_ms:
            self._scan_brokers_ms = self.now_ms + self.settings.scan_brokers_ms
            self._gone(self.heartbeats.remove_expired(self.now_ms), "it is silent")
        if self.leases is None:
            return
        if self.now_ms >= self._scan_masters_ms:
            self._scan_masters_ms = self.now_ms + self.settings.scan_masters_ms
            self.leases.drop_expired(self._clock.ms)
            for name in rules.groups_needing_election(self.groups, self.alive, unclean=self.settings.unclean):
                self._trigger(name)
            for name in [one for one in self.leases.fenced if self._is_fenced(one)]:
                self._trigger(name)
        if self._soonest_ms <= self._clock.ms:
            for name in [one for one, until_ms in self._awaiting.items() if until_ms <= self._clock.ms]:
                self._pump(name)
            self._soonest_ms = min(self._awaiting.values(), default=math.inf)
        while self._timeouts and (
            self._timeouts[0][0] <= self.now_ms or self._timeouts[0][1] not in self._open
        ):
            _, token, name = self._timeouts.popleft()
            if token in self._open:
                self._time_out(token, name)

    # Leading ------------------------------------------------------------------------------------------------

    def _led(self, term: int | None) -> None:
        """A leadership begins, or ends: then nobody knows what becomes of what was proposed."""
        self._term = term
        if term is not None or self.leases is None:
            return
        self.leases = None
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            for job in lane.jobs:
                open_fate = job is lane.jobs[0] and isinstance(lane.state, AwaitingCommit)
                code = ResponseCode.SYSTEM_ERROR if open_fate else ResponseCode.CONTROLLER_NOT_LEADER
                self._reject(job, code, NOT_LEADER + (", the outcome is open" if open_fate else ""))
        for awaiting in self._proofs.values():
            if isinstance(awaiting, list):
                self._effects.extend(RespondToLeaseRequest(one.token, 0) for one in awaiting)
        self._awaiting.clear()
        self._proposals.clear()
        self._proofs.clear()
        self._timeouts.clear()
        self._soonest_ms = math.inf
        self.waiting.clear()
        self._confirmed.clear()

    def _applied(self, entry: EntryApplied) -> None:
        try:
            event = events.decode(entry.body)
        except RemoteProtocolError as error:
            # Every controller skips it alike, so the tables stay equal.
            self._say(f"entry {entry.index} is no event and changes nothing: {error}", warns=True)
            return
        if event is not None:
            self.groups.apply(event)
            group = self.groups.get(event.broker_name)
            if isinstance(event, events.ElectMasterEvent) or group is None:
                self._confirmed.pop(event.broker_name, None)
            if group is None or group.master_id is not None:
                self.waiting.pop(event.broker_name, None)
            if self.leases is not None and group is None:
                self.leases.forget(event.broker_name)
        elif not entry.body and entry.term == self._term and self.leases is None:
            self._begin_to_lead(entry.term)

    def _begin_to_lead(self, term: int) -> None:
        """The first entry of this leadership is applied, and so is everything before it."""
        self.leases = LeaseTable(self.settings.lease_ms, self.settings.clock_step_ms, self._clock.ms)
        self._scan_masters_ms = self.now_ms
        self._say(f"leads since term {term}, with {len(self.groups.groups)} groups")

    # Requests -----------------------------------------------------------------------------------------------

    def _asked(self, token: int, request: ControllerRequest) -> None:
        job = QueuedRequest(token, request)
        self._open.add(token)
        if self.leases is None:
            self._reject(job, ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        elif isinstance(request, GetReplicaInfoRequest) and not self.settings.prove_reads:
            self._answer(job, requests.decide(request, self.groups, self.alive))
        elif len(self._open) > REQUESTS_MAX:
            self._reject(job, ResponseCode.SYSTEM_BUSY, f"{REQUESTS_MAX} requests are under way")
        else:
            self._timeouts.append((self.now_ms + REQUEST_TIMEOUT_MS, token, request.name))
            self._enqueue(job)
            if isinstance(request, ElectMasterRequest) and request.fenced_epoch is not None:
                self._hands_over(request.name, request.fenced_epoch)

    def _hands_over(self, name: str, epoch: int) -> None:
        """The master of this epoch has fenced itself for a successor of its choice: who waits for the end of
        its lease need not."""
        group = self.groups.get(name)
        if self.leases is not None and group is not None and group.master_epoch == epoch:
            self.leases.confirm_fenced(name, epoch)
            if name in self._awaiting:
                self._pump(name)

    def _enqueue(self, job: QueuedRequest) -> None:
        name = job.request.name
        lane = self._lanes.setdefault(name, GroupRequestQueue(deque()))
        lane.jobs.append(job)
        if lane.state is READY_TO_DECIDE and len(lane.jobs) == 1:
            self._pump(name)

    def _trigger(self, name: str) -> None:
        """Elects a master for a group that has lost its own, unless that is under way."""
        lane = self._lanes.get(name)
        wanted = ElectMasterRequest(name)
        if lane is None or all(job.request != wanted for job in lane.jobs):
            self._enqueue(QueuedRequest(None, wanted))

    def _pump(self, name: str) -> None:
        """Decides a group's jobs until one has to wait."""
        lane = self._lanes[name]
        while lane.jobs and isinstance(lane.state, ReadyToDecide | AwaitingLeaseEnd):
            if not self._begin(lane, lane.jobs[0]):
                return
            lane.jobs.popleft()
        if not lane.jobs:
            del self._lanes[name]

    def _begin(self, lane: GroupRequestQueue, job: QueuedRequest) -> bool:
        """Decides a job; whether that was all."""
        name, settings = job.request.name, self.settings
        self._stop_waiting(lane, name)
        fenced = self._is_fenced(name)
        decision = requests.decide(
            job.request, self.groups, self.alive, unclean=settings.unclean, fenced=fenced
        )
        if isinstance(job.request, ElectMasterRequest):
            self._note_waiting(name, decision.wait_reason)
            if self._must_wait(lane, name, decision):
                return False
        if decision.events:
            lane.state = AwaitingCommit(decision)
            self._tokens += 1
            self._proposals[self._tokens] = name
            bodies = tuple(events.encode(event) for event in decision.events)
            self._effects.append(ProposeEvents(self._tokens, bodies))
            return False
        if settings.prove_reads and job.token is not None:
            lane.state = AwaitingLeadershipCheck(decision)
            self._prove(name)
            return False
        self._answer(job, decision)
        return True

    def _must_wait(self, lane: GroupRequestQueue, name: str, decision: Decision) -> bool:
        """From here on no lease is granted to the group, until its election is done. Another master is made
        only when no lease is out."""
        group, leases = self.groups.get(name), self.leases
        if decision.code != ResponseCode.SUCCESS or group is None or leases is None:
            return False
        leases.electing.add(name)
        until_ms = leases.lease_end_ms(name, group.master_epoch)
        if until_ms <= self._clock.ms:
            return False
        lane.state = AwaitingLeaseEnd()
        self._awaiting[name] = until_ms
        self._soonest_ms = min(self._soonest_ms, until_ms)
        return True

    def _note_waiting(self, name: str, why: str | None) -> None:
        """Once for each reason: the group is looked at again at every scan."""
        if why == self.waiting.get(name):
            return
        if why is None:
            del self.waiting[name]
        else:
            self.waiting[name] = why
            self._say(f"group {name} {why}", warns=True)

    def _stop_waiting(self, lane: GroupRequestQueue, name: str) -> None:
        lane.state = READY_TO_DECIDE
        self._awaiting.pop(name, None)
        if self.leases is not None:
            self.leases.electing.discard(name)

    def _settled(self, token: int, error: str | None) -> None:
        name = self._proposals.pop(token, None)
        if name is None:
            return  # of an earlier leadership
        lane = self._lanes[name]
        assert isinstance(lane.state, AwaitingCommit)
        job, decision = lane.jobs.popleft(), lane.state.decision
        self._stop_waiting(lane, name)
        if error is not None:
            self._reject(job, ResponseCode.SYSTEM_ERROR, f"the events were not committed: {error}")
        else:
            self._answer(job, decision)
            if isinstance(job.request, ElectMasterRequest):
                self._elected(name, decision)
        self._pump(name)

    def _time_out(self, token: int, name: str) -> None:
        """Time is up for a request; one whose events are in the log keeps its group waiting."""
        lane = self._lanes[name]
        job = next(job for job in lane.jobs if job.token == token)
        self._reject(job, ResponseCode.SYSTEM_ERROR, "the events were not committed: no quorum in time")
        if job is lane.jobs[0] and isinstance(lane.state, AwaitingCommit | AwaitingLeadershipCheck):
            return
        was_first = job is lane.jobs[0]
        lane.jobs = deque(one for one in lane.jobs if one is not job)
        if was_first:
            self._stop_waiting(lane, name)
            self._pump(name)

    def _answer(self, job: QueuedRequest, decision: Decision) -> None:
        if job.token is not None:
            self._open.discard(job.token)
            self._effects.append(RespondToRequest(job.token, decision))
            job.token = None

    def _reject(self, job: QueuedRequest, code: ResponseCode, remark: str) -> None:
        if job.token is not None:
            self._open.discard(job.token)
            self._effects.append(RejectRequest(job.token, code, remark))
            job.token = None
        else:
            self._say(f"{job.request.name}: no election now, the next scan tries again: {remark}", warns=True)

    # Elections ----------------------------------------------------------------------------------------------

    def _gone(self, replicas: list[BrokerIdentityInfo], why: str) -> None:
        """Replicas are dead; those that were masters are replaced."""
        for cluster, name, broker_id in replicas:
            self._say(f"broker {broker_id} of {name} ({cluster}) is gone: {why}", warns=True)
            group = self.groups.get(name)
            if self.leases is not None and group is not None and group.master_id == broker_id:
                self._trigger(name)

    def _elected(self, name: str, decision: Decision) -> None:
        """Tells the group's living members of their new master."""
        group, view = self.groups.get(name), decision.view
        if decision.code != ResponseCode.SUCCESS or view is None or group is None:
            if decision.wait_reason is None:
                self._say(f"group {name} has no master: {decision.remark}", warns=True)
            return
        self._say(f"group {name}: master is {view.master_id} of epoch {view.master_epoch}")
        if self.settings.notify:
            for broker_id, replica in group.replicas.items():
                if self.alive(group.cluster_name, name, broker_id) is not None:
                    self._effects.append(NotifyBroker(replica.address, view))

    # Heartbeats and leases ----------------------------------------------------------------------------------

    def _heard(self, event: HeartbeatReceived) -> None:
        _, name, broker_id = event.replica
        group, leases = self.groups.get(name), self.leases
        if leases is not None and group is not None and broker_id in group.sync_state_set:
            self._compare(name, event.heartbeat)
        self.heartbeats.record(event.replica, event.heartbeat)
        if leases is not None and group is not None and group.master_id == broker_id:
            if event.heartbeat.lacks_confirmed:
                self._trigger(name)
            if event.fenced_epoch is not None and self._is_master(name, broker_id, event.fenced_epoch):
                leases.confirm_fenced(name, event.fenced_epoch)
                self._trigger(name)
            if name in self._awaiting:
                self._pump(name)  # it is back, or fenced
        if event.lease_epoch is None:
            return
        if leases is None or not self._may_lease(name, broker_id, event.lease_epoch):
            self._effects.append(RespondToLeaseRequest(event.lease_token, 0))
            return
        self._lease_requests.append(
            LeaseRequest(event.lease_token, name, broker_id, event.lease_epoch, self._clock.ms)
        )

    def _check_leadership_for_leases(self) -> None:
        if self._lease_requests:
            self._prove(self._lease_requests)
            self._lease_requests = []

    def _compare(self, name: str, beat: Heartbeat) -> None:
        """A member's heartbeat beside what every member had."""
        known = self._confirmed.get(name)
        beat.lacks_confirmed = known is not None and known.is_ahead_of(beat.max_offset)
        if beat.confirmed_by_all >= 0 and not beat.lacks_confirmed:
            if known is None:
                known = self._confirmed[name] = ConfirmedOffset()
            known.record(beat.confirmed_by_all)

    def _is_master(self, name: str, broker_id: int, epoch: int) -> bool:
        group = self.groups.get(name)
        return group is not None and (group.master_id, group.master_epoch) == (broker_id, epoch)

    def _is_fenced(self, name: str) -> bool:
        group, leases = self.groups.get(name), self.leases
        return group is not None and leases is not None and leases.is_fenced(name, group.master_epoch)

    def _may_lease(self, name: str, broker_id: int, epoch: int) -> bool:
        leases = self.leases
        return leases is not None and name not in leases.electing and self._is_master(name, broker_id, epoch)

    def _prove(self, what: list[LeaseRequest] | str) -> None:
        self._tokens += 1
        self._proofs[self._tokens] = what
        self._effects.append(CheckLeadership(self._tokens))

    def _proven(self, token: int, leads: bool) -> None:
        match self._proofs.pop(token, None):
            case list() as lease_requests:
                for one in lease_requests:
                    self._grant(one, leads)
            case str() as name:
                lane = self._lanes[name]
                assert isinstance(lane.state, AwaitingLeadershipCheck)
                job, decision = lane.jobs.popleft(), lane.state.decision
                lane.state = READY_TO_DECIDE
                if leads:
                    self._answer(job, decision)
                else:
                    self._reject(job, ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
                self._pump(name)
            case None:
                pass  # of an earlier leadership

    def _grant(self, request: LeaseRequest, leads: bool) -> None:
        """Entries applied since the request came may have changed the master."""
        granted = (
            leads
            and self.leases is not None
            and self._is_master(request.name, request.holder, request.epoch)
            and self.leases.grant(request.name, request.holder, request.epoch, request.arrived_ms)
        )
        lease_ms = self.leases.duration_ms if granted and self.leases is not None else 0
        self._effects.append(RespondToLeaseRequest(request.token, lease_ms))

    def _say(self, text: str, *, warns: bool = False) -> None:
        self._effects.append(LogMessage(text, warns))
