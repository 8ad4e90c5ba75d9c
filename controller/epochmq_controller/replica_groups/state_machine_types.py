# pure: what goes into a controller's desk and what comes out
"""Inputs and effects of the desk (see `desk`), and its settings. Times are milliseconds of one monotonic
clock."""

from __future__ import annotations

import msgspec

from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.requests import ControllerRequest
from epochmq_controller.replica_groups.rules import Decision, ReplicaGroupView
from epochmq_protocol.codes import ResponseCode

CLOCK_STEP_MIN_MS = 20


class ControllerStateMachineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What of the controller's settings the desk goes by."""

    lease_ms: int = 600
    scan_brokers_ms: int = 500
    scan_masters_ms: int = 1000
    unclean: bool = False
    prove_reads: bool = False
    """Prove leadership by a quorum round trip before a request that changes nothing is answered."""
    notify: bool = True

    @property
    def clock_step_ms(self) -> int:
        """The most that the patient clock counts between two looks; the desk wants to be woken twice as
        often while leases are out."""
        return max(CLOCK_STEP_MIN_MS, self.lease_ms // 12)


# Inputs -----------------------------------------------------------------------------------------------------


class TimeAdvanced(msgspec.Struct, frozen=True):
    """Time has passed."""


class GroupRequestReceived(msgspec.Struct, frozen=True):
    """A request; its answer is an `RespondToRequest` or `RejectRequest` with the same token."""

    token: int
    request: ControllerRequest


class HeartbeatReceived(msgspec.Struct, frozen=True):
    """A heartbeat. `lease_token`: it asks for a lease under `lease_epoch`, to be answered by
    `RespondToLeaseRequest`. `fenced_epoch`: the sender accepts no more writes under this master epoch."""

    replica: BrokerIdentityInfo
    heartbeat: Heartbeat
    fenced_epoch: int | None = None
    lease_epoch: int | None = None
    lease_token: int = -1


class HeartbeatsReceived(msgspec.Struct, frozen=True):
    """Several heartbeats, in the order in which they came. One check of leadership serves their requests for
    leases."""

    heartbeats: list[HeartbeatReceived]


class ChannelClosed(msgspec.Struct, frozen=True):
    """A connection has ended."""

    channel: object


class LeadershipChanged(msgspec.Struct, frozen=True):
    """This controller's Raft peer leads `term`, or, with None, does not lead."""

    term: int | None


class EntryApplied(msgspec.Struct, frozen=True):
    """A committed entry of the log, in order."""

    index: int
    term: int
    body: bytes


class SnapshotRestored(msgspec.Struct, frozen=True):
    """A snapshot has taken the place of all entries applied so far."""

    groups: ReplicaGroups


class ProposalCompleted(msgspec.Struct, frozen=True):
    """A `ProposeEvents` is committed and applied, or (`error`) was refused or its fate is open."""

    token: int
    error: str | None = None


class LeadershipCheckCompleted(msgspec.Struct, frozen=True):
    """A `CheckLeadership` has succeeded, or failed."""

    token: int
    leads: bool


ControllerInput = (
    TimeAdvanced
    | GroupRequestReceived
    | HeartbeatReceived
    | HeartbeatsReceived
    | ChannelClosed
    | LeadershipChanged
    | EntryApplied
    | SnapshotRestored
    | ProposalCompleted
    | LeadershipCheckCompleted
)


# Effects ----------------------------------------------------------------------------------------------------


class ProposeEvents(msgspec.Struct, frozen=True):
    """Append these entries to the log, and report with `ProposalCompleted`. The report may fail to come only
    when this controller has stopped to lead."""

    token: int
    bodies: tuple[bytes, ...]


class CheckLeadership(msgspec.Struct, frozen=True):
    """Show by a quorum round trip that begins after this effect that we lead, apply what is committed, and
    report with `LeadershipCheckCompleted`."""

    token: int


class RespondToRequest(msgspec.Struct, frozen=True):
    """The answer to a request."""

    token: int
    decision: Decision


class RejectRequest(msgspec.Struct, frozen=True):
    """The request was not decided, or its outcome is open."""

    token: int
    code: ResponseCode
    remark: str


class RespondToLeaseRequest(msgspec.Struct, frozen=True):
    """Whether a lease is granted, `lease_ms` from the moment it was asked for; 0: it is not."""

    token: int
    lease_ms: int


class NotifyBroker(msgspec.Struct, frozen=True):
    """Tell the broker at `address` who its group's master is."""

    address: str
    view: ReplicaGroupView


class LogMessage(msgspec.Struct, frozen=True):
    """A line for the log."""

    text: str
    warns: bool = False


ControllerEffect = (
    ProposeEvents
    | CheckLeadership
    | RespondToRequest
    | RejectRequest
    | RespondToLeaseRequest
    | NotifyBroker
    | LogMessage
)
