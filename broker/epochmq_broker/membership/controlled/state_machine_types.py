# pure: inputs and effects of the replica state machine
"""Defines the inputs and effects of `state_machine` as plain values."""

from __future__ import annotations

import msgspec

from epochmq_broker.membership.controlled.identity import BrokerIdApplication, BrokerIdentity


class MasterView(msgspec.Struct, frozen=True):
    """What a controller knows of the group. `master_id` and `address` are None if the group has no master.
    `epoch` is 0, and `set_epoch` is -1, if the message does not carry them."""

    master_id: int | None = None
    address: str | None = None
    epoch: int = 0
    members: frozenset[int] = frozenset()
    set_epoch: int = -1
    least: int = 1
    """With how many members the set acknowledges messages, as the controllers have recorded it. While it has
    fewer, other replicas may be elected."""


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals in milliseconds."""

    metadata_period_ms: int = 5000
    """How often a registered broker asks who is master (syncBrokerMetadataPeriod)."""
    controller_search_period_ms: int = 10_000
    """How often it searches for the leading controller (syncControllerMetadataPeriod)."""


# Questions to the leading controller ------------------------------------------------------------------------


class NextBrokerIdQuestion(msgspec.Struct, frozen=True):
    """CONTROLLER_GET_NEXT_BROKER_ID (1012): which broker id is free?"""


class ApplyBrokerIdQuestion(msgspec.Struct, frozen=True):
    """CONTROLLER_APPLY_BROKER_ID (1013): reserve the id of this application."""

    application: BrokerIdApplication


class RegisterQuestion(msgspec.Struct, frozen=True):
    """CONTROLLER_REGISTER_BROKER (1003): record this broker's address and incarnation. `adopts`: an
    administrator has accepted this store for the broker id."""

    broker_id: int
    adopts: bool = False


class ElectMasterQuestion(msgspec.Struct, frozen=True):
    """CONTROLLER_ELECT_MASTER (1002): elect a master for the group. With `designate` the present master asks:
    elect `broker_id` and no other replica. The present master writes no more under `fenced_epoch`."""

    broker_id: int
    designate: bool = False
    fenced_epoch: int | None = None


class ReplicaInfoQuestion(msgspec.Struct, frozen=True):
    """CONTROLLER_GET_REPLICA_INFO (1004): who is master, and who is in sync?"""


class AlterSyncStateSetQuestion(msgspec.Struct, frozen=True):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001): replace the SyncStateSet of `set_epoch` by these members."""

    broker_id: int
    epoch: int
    members: frozenset[int]
    set_epoch: int
    least: int = 1
    """With how many members the new set acknowledges messages."""


ControllerQuestion = (
    NextBrokerIdQuestion
    | ApplyBrokerIdQuestion
    | RegisterQuestion
    | ElectMasterQuestion
    | ReplicaInfoQuestion
    | AlterSyncStateSetQuestion
)


# Responses --------------------------------------------------------------------------------------------------


class BrokerIdGranted(msgspec.Struct, frozen=True):
    """The broker id of the application now belongs to this broker."""


class FreeBrokerId(msgspec.Struct, frozen=True):
    """The id to apply for, and a check code for the application."""

    id: int
    check_code: str


class QuestionRejected(msgspec.Struct, frozen=True):
    """The controller rejected the question."""

    code: int
    remark: str


class ReplyLost(msgspec.Struct, frozen=True):
    """No response arrived: the question may still have taken effect."""

    why: str


ControllerReply = FreeBrokerId | BrokerIdGranted | MasterView | QuestionRejected | ReplyLost


# Inputs -----------------------------------------------------------------------------------------------------


class TimeAdvanced(msgspec.Struct, frozen=True):
    """Time has passed; the state machine does what is due."""


class ControllerMetadata(msgspec.Struct, frozen=True):
    """A controller's response to CONTROLLER_GET_METADATA_INFO (1005). `leader` is the leader's address as
    this controller knows it. `leads`: it claims to be the leader. `grants`: it is a controller that grants
    leases. `term` is its Raft term, None if it does not say."""

    address: str
    leader: str | None
    leads: bool
    grants: bool
    term: int | None = None


class SearchFinished(msgspec.Struct, frozen=True):
    """All controllers were asked; `found` holds those that responded in time."""

    found: tuple[ControllerMetadata, ...]


class ReplyReceived(msgspec.Struct, frozen=True):
    """The outcome of an `AskController` effect."""

    token: int
    reply: ControllerReply


class IdentitySaved(msgspec.Struct, frozen=True):
    """The outcome of a `SaveIdentity` effect: it is on disk, or `error` says why not."""

    what: BrokerIdApplication | BrokerIdentity
    error: str | None = None


class RoleNotification(msgspec.Struct, frozen=True):
    """A controller's notification that the role may have changed (1008)."""

    view: MasterView


class MasterMayHaveChanged(msgspec.Struct, frozen=True):
    """A notification whose sender is not known: a reason to ask the leading controller, nothing more."""


class RoleTaken(msgspec.Struct, frozen=True):
    """The outcome of a `TakeRole` effect."""

    view: MasterView
    error: str | None = None


class ProposalMade(msgspec.Struct, frozen=True):
    """The HA service of this master proposes another SyncStateSet, which acknowledges messages with `least`
    members."""

    members: frozenset[int]
    set_epoch: int
    least: int = 1


class LeaseMissing(msgspec.Struct, frozen=True):
    """A master gets no lease: another controller may be the leader."""


class LogCaughtUp(msgspec.Struct, frozen=True):
    """The log lacks nothing that a living master may have acknowledged: no epoch need be given up."""


class HeartbeatNotCounted(msgspec.Struct, frozen=True):
    """A controller does not count this broker's heartbeats: another store may have its broker id."""


class StoreAdopted(msgspec.Struct, frozen=True):
    """An administrator has accepted this store for its broker id. The log is in doubt on disk."""


class IdentityDiscarded(msgspec.Struct, frozen=True):
    """An administrator has taken the broker id from this store; the disk holds it no more."""


ReplicaInput = (
    TimeAdvanced
    | SearchFinished
    | ReplyReceived
    | IdentitySaved
    | RoleNotification
    | MasterMayHaveChanged
    | RoleTaken
    | ProposalMade
    | LeaseMissing
    | LogCaughtUp
    | HeartbeatNotCounted
    | StoreAdopted
    | IdentityDiscarded
)


# Effects ----------------------------------------------------------------------------------------------------


class FindControllerLeader(msgspec.Struct, frozen=True):
    """Ask every controller which one is the leader; report with `SearchFinished`."""


class AskController(msgspec.Struct, frozen=True):
    """Ask the controller at `address`; report with `ReplyReceived`."""

    token: int
    address: str
    question: ControllerQuestion


class SaveIdentity(msgspec.Struct, frozen=True):
    """Write an application or an identity durably; report with `IdentitySaved`."""

    what: BrokerIdApplication | BrokerIdentity


class DropApplication(msgspec.Struct, frozen=True):
    """Delete the application from the disk."""


class StopWriting(msgspec.Struct, frozen=True):
    """Stop writing at once: another broker is, or may be, the master."""


class LeaveRole(msgspec.Struct, frozen=True):
    """Leave the present role, and take none: the broker id belongs to another store. Writing has stopped."""


class DistrustLog(msgspec.Struct, frozen=True):
    """Put the log in doubt, durably: another process of the same store may have acknowledged messages that it
    lacks."""


class TakeRole(msgspec.Struct, frozen=True):
    """Take the role that the view gives this broker; report with `RoleTaken`."""

    view: MasterView
    broker_id: int


class GiveUpEpoch(msgspec.Struct, frozen=True):
    """Give up the mastership of `epoch` and of older ones, which is from before the log lost its end: save
    that, and report the epoch as fenced to the controllers if they name this broker its master."""

    epoch: int


class AdoptSyncStateSet(msgspec.Struct, frozen=True):
    """Use the controllers' SyncStateSet (`MasterView`)."""

    members: frozenset[int]
    set_epoch: int
    least: int = 1


class ProposalRejected(msgspec.Struct, frozen=True):
    """The controllers surely did not accept the last proposed SyncStateSet, and may have named the replica
    because of which they rejected it."""

    refused: int | None = None
    reason: str = ""


class ControllerLeaderFound(msgspec.Struct, frozen=True):
    """Which controller is the leader, and whether it grants leases (None: unknown)."""

    address: str
    grants: bool | None


class WriteLogLine(msgspec.Struct, frozen=True):
    """Write a log line, as a warning or for information."""

    text: str
    warns: bool = False


ReplicaEffect = (
    FindControllerLeader
    | AskController
    | SaveIdentity
    | DropApplication
    | StopWriting
    | LeaveRole
    | DistrustLog
    | TakeRole
    | GiveUpEpoch
    | AdoptSyncStateSet
    | ProposalRejected
    | ControllerLeaderFound
    | WriteLogLine
)
