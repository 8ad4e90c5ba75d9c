"""One controller, which leads, and the brokers of one group, as a story. The state machine is production's;
its Raft log commits at once.

    register 1 2 3                      brokers apply for their ids and register
    heartbeat 2 epoch=1 end=100 …       what a heartbeat says; `in-doubt`, `fenced=EPOCH`
    lease 1 epoch=1                     the master requests a write lease
    elect 2                             a broker requests an election
    join 1 members=1,2                  the master changes the SyncStateSet
    stop 1                              the connection of a broker closes
    wait 500                            milliseconds pass; live brokers repeat their heartbeats
    group                               prints the group
"""

from __future__ import annotations

from typing import Any

from epochmq_controller.replica_groups import events
from epochmq_controller.replica_groups.heartbeats import Heartbeat
from epochmq_controller.replica_groups.requests import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    ControllerRequest,
    ElectMasterRequest,
    RegisterBrokerRequest,
)
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import (
    ChannelClosed,
    CheckLeadership,
    ControllerEffect,
    ControllerInput,
    ControllerStateMachineSettings,
    EntryApplied,
    GroupRequestReceived,
    HeartbeatReceived,
    LeadershipChanged,
    LeadershipCheckCompleted,
    LogMessage,
    NotifyBroker,
    ProposalCompleted,
    ProposeEvents,
    RejectRequest,
    RespondToLeaseRequests,
    RespondToRequest,
    TimeAdvanced,
)
from tests.unit.transcripts.transcript import numbers, options_of, shown_set

CLUSTER, GROUP = "cluster", "orders"
STEP_MS = 50
HEARTBEAT_TIMEOUT_MS = 10_000


class ElectionStory:
    """The controller, and what the live brokers' heartbeats say."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._machine = ControllerStateMachine(ControllerStateMachineSettings(), self._now_ms)
        self._index = -1
        self._token = 0
        self._lines: list[str] = []
        self._channels: dict[int, object] = {}
        self._beats: dict[int, dict[str, Any]] = {}
        self._asked: dict[int, str] = {}
        self._feed(LeadershipChanged(1))
        self._apply(b"")

    def take_lines(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def check_invariants(self) -> None:
        self._machine.check_invariants()

    def run(self, command: str, arguments: list[str]) -> None:
        match command:
            case "register":
                for one in arguments:
                    self._register(int(one))
            case "heartbeat":
                self._heartbeat(int(arguments[0]), options_of(arguments[1:]))
            case "lease":
                broker_id, epoch = int(arguments[0]), int(options_of(arguments[1:])["epoch"])
                self._send_heartbeat(broker_id, lease_epoch=epoch)
            case "elect":
                broker_id = int(arguments[0])
                in_doubt = bool(self._beats.get(broker_id, {}).get("in_doubt"))
                self._ask(f"broker {broker_id}", ElectMasterRequest(GROUP, broker_id, in_doubt=in_doubt))
            case "join":
                self._join(int(arguments[0]), numbers(options_of(arguments[1:])["members"]))
            case "stop":
                broker_id = int(arguments[0])
                self._beats.pop(broker_id, None)
                self._feed(ChannelClosed(self._channels.pop(broker_id)))
            case "wait":
                self._wait(int(arguments[0]))
            case "group":
                self._show_group()
            case _:
                raise ValueError("no such command")

    # Brokers ------------------------------------------------------------------------------------------------

    def _register(self, broker_id: int) -> None:
        address = f"10.0.0.{broker_id}:10911"
        who = f"broker {broker_id}"
        self._ask(who, ApplyBrokerIdRequest(GROUP, CLUSTER, broker_id, f"{address};code"))
        self._ask(who, RegisterBrokerRequest(GROUP, CLUSTER, broker_id, address))

    def _heartbeat(self, broker_id: int, options: dict[str, str]) -> None:
        """`in-doubt`: the log may lack acknowledged messages. `fenced`: the broker accepts no more writes
        under this epoch."""
        self._beats[broker_id] = {
            "epoch": int(options.get("epoch", -1)),
            "max_offset": int(options.get("end", -1)),
            "in_doubt": "in-doubt" in options,
        }
        fenced = int(options["fenced"]) if "fenced" in options else None
        self._send_heartbeat(broker_id, fenced_epoch=fenced)

    def _send_heartbeat(self, broker_id: int, **more: Any) -> None:
        beat = Heartbeat(
            last_ms=self._now_ms,
            timeout_ms=HEARTBEAT_TIMEOUT_MS,
            channel=self._channels.setdefault(broker_id, object()),
            address=f"10.0.0.{broker_id}:10911",
            confirm_offset=0,
            election_priority=None,
            **self._beats[broker_id],
        )
        self._feed(HeartbeatReceived((CLUSTER, GROUP, broker_id), beat, lease_token=broker_id, **more))

    def _join(self, master_id: int, members: frozenset[int]) -> None:
        group = self._machine.groups.groups[GROUP]
        self._ask(
            f"master {master_id}",
            AlterSyncStateSetRequest(
                GROUP, master_id, group.master_epoch, members, group.sync_state_set_epoch
            ),
        )

    def _wait(self, duration_ms: int) -> None:
        end_ms = self._now_ms + duration_ms
        while self._now_ms < end_ms:
            self._now_ms += min(STEP_MS, end_ms - self._now_ms)
            for broker_id in self._beats:
                self._send_heartbeat(broker_id)
            self._feed(TimeAdvanced())

    # The controller -----------------------------------------------------------------------------------------

    def _ask(self, who: str, request: ControllerRequest) -> None:
        self._token += 1
        self._asked[self._token] = who
        self._feed(GroupRequestReceived(self._token, request))

    def _feed(self, event: ControllerInput) -> None:
        for effect in self._machine.step(event, self._now_ms):
            self._carry_out(effect)

    def _apply(self, body: bytes) -> None:
        self._index += 1
        event = events.decode(body)
        if event is not None:
            self._lines.append(f"the log commits: {_sentence(event)}")
        self._feed(EntryApplied(self._index, 1, body))

    def _carry_out(self, effect: ControllerEffect) -> None:
        match effect:
            case ProposeEvents(token=token, bodies=bodies):
                for body in bodies:
                    self._apply(body)
                self._feed(ProposalCompleted(token))
            case CheckLeadership(token=token):
                self._feed(LeadershipCheckCompleted(token, True))
            case RespondToRequest(token=token, decision=decision):
                if decision.code != 0:
                    self._lines.append(f"{self._asked[token]} is told: {decision.remark}")
            case RejectRequest(token=token, remark=remark):
                self._lines.append(f"{self._asked[token]} is told: {remark}")
            case RespondToLeaseRequests(tokens=tokens, lease_ms=lease_ms):
                for broker_id in tokens:
                    granted = (
                        f"gets a write lease for {lease_ms} ms" if lease_ms > 0 else "gets no write lease"
                    )
                    self._lines.append(f"broker {broker_id} {granted}")
            case NotifyBroker():
                pass
            case LogMessage(text=text):
                self._lines.append(f"controller: {text}")

    def _show_group(self) -> None:
        group = self._machine.groups.groups[GROUP]
        master = f"master {group.master_id}" if group.master_id is not None else "no master"
        self._lines.append(
            f"{master}, epoch {group.master_epoch}, SyncStateSet {shown_set(group.sync_state_set)}, "
            f"former members {shown_set(group.former_members)}"
        )


def _sentence(event: events.ControllerEvent) -> str:
    match event:
        case events.ApplyBrokerIdEvent(new_broker_id=broker_id):
            return f"id {broker_id} belongs to a replica of {event.broker_name}"
        case events.ElectMasterEvent(new_master_elected=True, new_master_broker_id=broker_id):
            return f"broker {broker_id} is master"
        case events.ElectMasterEvent():
            return "there is no master"
        case events.AlterSyncStateSetEvent(new_sync_state_set=members):
            return f"the SyncStateSet is {shown_set(members)}"
        case events.CleanBrokerDataEvent():
            return "replicas are removed"
        case events.UpdateBrokerAddressEvent(broker_id=broker_id):
            return f"broker {broker_id} has another address"
