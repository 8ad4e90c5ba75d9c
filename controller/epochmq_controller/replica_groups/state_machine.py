# pure: what a controller does
"""The state machine of a controller: `step(input, now_ms)` takes one input and returns effects.

The driver feeds it with requests, heartbeats, closed connections, committed entries of the Raft log, and the
results of proposals. It holds the state that the entries produce, which replicas are alive, and the write
leases. Its rules, beside those of `request_queues`:

- A controller decides only after it has applied the first entry of its own leadership, and so all entries
  that earlier leaders committed.
- A group whose live members may lack messages that a missing member holds waits for that member
  (`election_policy.electable_members`); `wait_reasons` says why.
- A master whose log is shorter than it has reported is replaced.
- A member that lacks bytes which every member had is not elected before those that may have them. What every
  member had is forgotten only when an election has succeeded, by whichever controller.
- The controller looks for groups without a master when a connection closes, when heartbeats stop, when a
  master reports that it is fenced, when its leadership begins, and at every scan. The scan finds all missed
  cases and retries failed elections.
"""

from __future__ import annotations

from epochmq_controller.replica_groups import events, rules
from epochmq_controller.replica_groups.controller_tables import ControllerTables
from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.leases import LeaseTable
from epochmq_controller.replica_groups.offset_confirmed_by_all import OffsetConfirmedByAll
from epochmq_controller.replica_groups.process_admission import ProcessAdmission, Refusal
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.request_queues import RequestQueues
from epochmq_controller.replica_groups.short_sets import ShortSets
from epochmq_controller.replica_groups.state_machine_types import (
    LEASE_OF_ANOTHER_MS,
    LEASE_OF_REFUSED_MS,
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
    LeaseRequest,
    ProposalCompleted,
    RespondToLeaseRequests,
    SnapshotRestored,
    TimeAdvanced,
)
from epochmq_protocol.errors import InvariantError, RemoteProtocolError


class ControllerStateMachine:
    """One controller's decisions. Times are milliseconds of the driver's monotonic clock."""

    def __init__(self, settings: ControllerStateMachineSettings, now_ms: int) -> None:
        self._state = ControllerTables(settings, now_ms)
        self._queues = RequestQueues(self._state)
        self._term: int | None = None
        self._lease_requests: dict[int, list[LeaseRequest]] = {}
        """Lease requests that wait for a leadership check, by its token."""
        self._new_lease_requests: list[LeaseRequest] = []
        """Lease requests of the heartbeats in this step."""
        self._refused_leases: list[object] = []
        """The tokens of lease requests in this step that need no leadership check."""
        self._admission = ProcessAdmission(self._state)
        self._short_sets = ShortSets()
        self._scan_brokers_ms = now_ms
        self._scan_masters_ms = now_ms

    # State --------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> ReplicaGroups:
        """The replica groups, as the applied entries have made them."""
        return self._state.groups

    @property
    def leads(self) -> bool:
        """Whether this controller leads and has applied all entries that earlier leaders committed."""
        return self._state.leases is not None

    @property
    def wait_reasons(self) -> dict[str, str]:
        """Why groups get no master until missing members return, by group."""
        return self._queues.wait_reasons

    @property
    def earlier_leases_may_last(self) -> bool:
        """Whether masters may still hold leases of an earlier leader (`LeaseTable`)."""
        leases = self._state.leases
        return leases is None or self._state.clock.ms < leases.unknown_leases_until_ms

    def living_ids(self, name: str) -> frozenset[int]:
        """The ids under which brokers of this name send heartbeats, also of a group that is not known."""
        return self._state.heartbeats.living_ids(name, self._state.now_ms)

    def refuses(self, replica: BrokerIdentityInfo, heartbeat: Heartbeat) -> bool:
        """Whether the sender of a heartbeat must not act under its broker id (`incarnations`)."""
        return self._admission.verdict(replica, heartbeat).is_refused

    def refused_processes(self, name: str) -> list[tuple[int, Refusal]]:
        """The processes of a group that are refused at present, with the broker ids that they claim."""
        return self._admission.refused(name)

    def configure(self, settings: ControllerStateMachineSettings) -> None:
        """Changes the settings. The duration of leases changes with the next leadership, because leases that
        are granted keep theirs."""
        self._state.settings = settings

    def alive(self, cluster: str, name: str, broker_id: int) -> ReplicaLiveInfo | None:
        """What the heartbeats of a live replica say, None for a dead one."""
        return self._state.alive(cluster, name, broker_id)

    def check_invariants(self) -> None:
        """Raises InvariantError if the groups, leases or confirmed offsets contradict their rules. O(replicas
        of all groups)."""
        self._state.groups.check_invariants()
        self.check_leases()

    def check_leases(self) -> None:
        """The same without the groups, which only entries of the Raft log change. O(groups)."""
        self._state.check_leases()
        for confirmed in self._state.confirmed.values():
            confirmed.check_invariants()

    # Steps --------------------------------------------------------------------------------------------------

    def step(self, event: ControllerInput, now_ms: int) -> list[ControllerEffect]:
        """Takes one input. `now_ms` never decreases. Returns effects to carry out in order."""
        state = self._state
        state.now_ms = now_ms
        state.clock.advance_to(now_ms)
        match event:
            case TimeAdvanced():
                pass
            case HeartbeatReceived():
                self._on_heartbeat(event)
                self._check_leadership()
            case HeartbeatsReceived(heartbeats=heartbeats):
                for heartbeat in heartbeats:
                    self._on_heartbeat(heartbeat)
                self._check_leadership()
            case GroupRequestReceived(token=token, request=request):
                self._queues.add(token, request)
            case EntryApplied():
                self._on_entry(event)
            case SnapshotRestored(groups=groups):
                state.groups = groups
            case ProposalCompleted(token=token, error=error):
                self._queues.complete_proposal(token, error)
            case LeadershipCheckCompleted(token=token, leads=leads):
                self._complete_check(token, leads=leads)
            case ChannelClosed(channel=channel):
                self._on_closed(state.heartbeats.remove_channel(channel))
            case LeadershipChanged(term=term):
                self._on_leadership(term)
        self._advance()
        effects, state.effects = state.effects, []
        return effects

    def _advance(self) -> None:
        """Does what time makes necessary."""
        state = self._state
        if state.now_ms >= self._scan_brokers_ms:
            self._scan_brokers_ms = state.now_ms + state.settings.scan_brokers_ms
            self._on_dead(state.heartbeats.remove_expired(state.now_ms), "it sent no heartbeat in time")
        if state.leases is None:
            return
        if state.now_ms >= self._scan_masters_ms:
            self._scan_masters_ms = state.now_ms + state.settings.scan_masters_ms
            state.leases.drop_expired(state.clock.ms)
            lacking = rules.groups_needing_election(state.groups, state.lives)
            for name in lacking:
                self._queues.trigger_election(name)
            for name in self._short_sets.masters_to_replace(state.groups, state.alive, state.now_ms):
                state.log(
                    f"group {name}: too few replicas are in sync with its master for too long; it gives way",
                    is_warning=True,
                )
                self._queues.trigger_election(name, gives_way=True)
            for name in [one for one in state.leases.fenced_epochs if state.is_fenced(one)]:
                self._queues.trigger_election(name)
        self._queues.advance()

    def next_deadline_ms(self) -> int:
        """When the next step is needed, on the clock of `step`."""
        state = self._state
        deadline_ms = self._scan_brokers_ms
        if state.leases is None:
            return deadline_ms
        deadline_ms = min(deadline_ms, self._scan_masters_ms)
        if state.leases.last_end_ms > state.clock.ms:
            deadline_ms = min(deadline_ms, state.now_ms + state.settings.clock_step_ms // 2)
        queues_ms = self._queues.next_deadline_ms()
        return deadline_ms if queues_ms is None else min(deadline_ms, queues_ms)

    # Leadership ---------------------------------------------------------------------------------------------

    def _on_leadership(self, term: int | None) -> None:
        self._term = term
        if term is not None or self._state.leases is None:
            return
        self._state.leases = None
        self._queues.abort()
        self._short_sets.clear()
        tokens = [request.token for requests in self._lease_requests.values() for request in requests]
        self._respond_to_lease_requests(tokens, 0)
        self._lease_requests.clear()
        self._state.confirmed.clear()

    def _on_entry(self, entry: EntryApplied) -> None:
        state = self._state
        try:
            event = events.decode(entry.body)
        except RemoteProtocolError as error:
            # Every controller ignores it, so their states stay equal.
            state.log(f"entry {entry.index} holds no event and changes nothing: {error}", is_warning=True)
            return
        if event is not None:
            state.groups.apply(event)
            name, group = event.broker_name, state.groups.get(event.broker_name)
            if isinstance(event, events.ElectMasterEvent) or group is None:
                state.confirmed.pop(name, None)
                self._recall_confirmed(name)
            if group is None or group.master_id is not None:
                self._queues.wait_reasons.pop(name, None)
            if group is None:
                state.ended_masters.pop(name, None)
                if state.leases is not None:
                    state.leases.forget(name)
        elif not entry.body and entry.term == self._term and state.leases is None:
            self._begin_to_lead(entry.term)

    def _begin_to_lead(self, term: int) -> None:
        """The first entry of this leadership is applied, and so are all entries before it."""
        state = self._state
        state.leases = LeaseTable(state.settings.lease_ms, state.settings.clock_step_ms, state.clock.ms)
        self._scan_masters_ms = state.now_ms
        for name in state.groups.groups:
            self._recall_confirmed(name)
        state.log(f"this controller leads since term {term}, with {len(state.groups.groups)} groups")
        try:
            state.groups.check_invariants()
        except InvariantError as error:
            # Every controller has applied the same events and holds the same groups, so none would lead if
            # this one refused. The rules at the fields also hold for events of RocketMQ's controllers, except
            # that those elect a first master that is not registered.
            state.log(f"the replicated state breaks a rule: {error}", is_warning=True)

    # Replicas -----------------------------------------------------------------------------------------------

    def _on_closed(self, replicas: list[BrokerIdentityInfo]) -> None:
        """The connection of these replicas has closed."""
        state = self._state
        for _, name, broker_id in replicas:
            group = state.groups.get(name)
            if group is not None and group.master_id == broker_id:
                state.ended_masters[name] = group.master_epoch
        self._on_dead(replicas, "its connection closed")

    def _on_dead(self, replicas: list[BrokerIdentityInfo], reason: str) -> None:
        """Replaces dead replicas that were masters."""
        state = self._state
        for cluster, name, broker_id in replicas:
            is_heard = state.lives(cluster, name, broker_id)
            how = "is heard by its replicas only" if is_heard else "is dead"
            state.log(f"broker {broker_id} of group {name} ({cluster}) {how}: {reason}", is_warning=True)
            group = state.groups.get(name)
            if state.leases is None or group is None or group.master_id != broker_id or is_heard:
                continue
            self._queues.trigger_election(name)

    def _on_heartbeat(self, event: HeartbeatReceived) -> None:
        state = self._state
        _, name, broker_id = event.replica
        verdict = self._admission.verdict(event.replica, event.heartbeat)
        if verdict.is_refused:
            self._admission.log_refusal(event.replica, event.heartbeat, verdict)
        if verdict.is_refused or (
            event.lease_epoch is not None and not self._admission.grants_leases(event.replica, verdict)
        ):
            if event.lease_epoch is not None:
                state.emit(RespondToLeaseRequests([event.lease_token], LEASE_OF_REFUSED_MS))
            return
        group, leases = state.groups.groups.get(name), state.leases
        if leases is not None and group is not None:
            if broker_id in group.sync_state_set:
                self._compare_with_confirmed(name, event.heartbeat)
            elif (known := state.confirmed.get(name)) is not None and (
                broker_id in group.former_members | group.eligible_members
            ):
                event.heartbeat.lacks_confirmed = known.is_ahead_of(event.heartbeat.max_offset)
        state.heartbeats.record(event.replica, event.heartbeat)
        if group is not None and group.master_id == broker_id:
            state.ended_masters.pop(name, None)
        if leases is not None and group is not None and group.master_id == broker_id:
            if event.heartbeat.lacks_confirmed:
                self._queues.trigger_election(name)
            if event.fenced_epoch is not None and state.is_master(name, broker_id, event.fenced_epoch):
                leases.confirm_fenced(name, event.fenced_epoch)
                self._queues.trigger_election(name)
            self._queues.retry_election(name)  # the master is back, or fenced
        epoch = event.lease_epoch
        if epoch is None:
            return
        if leases is not None and not state.is_master(name, broker_id, epoch):
            state.emit(RespondToLeaseRequests([event.lease_token], LEASE_OF_ANOTHER_MS))
        elif leases is None or name in leases.electing:
            self._refused_leases.append(event.lease_token)
        else:
            self._new_lease_requests.append(
                LeaseRequest(event.lease_token, name, broker_id, epoch, state.clock.ms)
            )

    def _recall_confirmed(self, name: str) -> None:
        """Takes over the offset that a group without a master keeps, and compares the logs of its living
        members with it."""
        state, group = self._state, self._state.groups.get(name)
        if state.leases is None or group is None or group.confirmed_offset < 0:
            return
        kept = group.confirmed_offset
        known = state.confirmed[name] = OffsetConfirmedByAll(kept, kept)
        for member in group.electable_members | group.former_members:
            beat = state.heartbeats.table.get((group.cluster_name, name, member))
            if beat is not None:
                beat.lacks_confirmed = known.is_ahead_of(beat.max_offset)

    def _compare_with_confirmed(self, name: str, heartbeat: Heartbeat) -> None:
        """Compares the log of a SyncStateSet member with the offset that all members had."""
        known = self._state.confirmed.get(name)
        heartbeat.lacks_confirmed = known is not None and known.is_ahead_of(heartbeat.max_offset)
        if heartbeat.confirmed_by_all >= 0 and not heartbeat.lacks_confirmed:
            if known is None:
                known = self._state.confirmed[name] = OffsetConfirmedByAll()
            known.record(heartbeat.confirmed_by_all)

    # Leases -------------------------------------------------------------------------------------------------

    def _check_leadership(self) -> None:
        """Checks the leadership once for all lease requests of this step, and answers those that get no lease
        in any case."""
        refused, self._refused_leases = self._refused_leases, []
        self._respond_to_lease_requests(refused, 0)
        if self._new_lease_requests:
            token = self._state.next_token()
            self._lease_requests[token], self._new_lease_requests = self._new_lease_requests, []
            self._state.emit(CheckLeadership(token))

    def _complete_check(self, token: int, *, leads: bool) -> None:
        lease_requests = self._lease_requests.pop(token, None)
        if lease_requests is None:
            self._queues.complete_check(token, leads=leads)
            return
        leases = self._state.leases
        granted: list[object] = []
        refused: list[object] = []
        for request in lease_requests:
            if leads and leases is not None and self._grant(leases, request):
                granted.append(request.token)
            else:
                refused.append(request.token)
        self._respond_to_lease_requests(granted, leases.duration_ms if leases is not None else 0)
        self._respond_to_lease_requests(refused, 0)

    def _grant(self, leases: LeaseTable, request: LeaseRequest) -> bool:
        """Grants a lease. Entries that were applied since the request arrived may have changed the master."""
        name, holder, epoch = request.name, request.holder, request.epoch
        is_master = self._state.is_master(name, holder, epoch)
        return is_master and leases.grant(name, holder, epoch, request.arrived_ms)

    def _respond_to_lease_requests(self, tokens: list[object], lease_ms: int) -> None:
        if tokens:
            self._state.emit(RespondToLeaseRequests(tokens, lease_ms))
