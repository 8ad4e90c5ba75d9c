# pure: what goes in and out of the replicas core
"""Inputs and effects of `core`, as plain values."""

from __future__ import annotations

import msgspec

from epochmq_broker.replicas.identity import BrokerIdApplication, BrokerIdentity


class MasterView(msgspec.Struct, frozen=True):
    """What a controller says of the group. `master_id` and `address` are None without a master; `epoch` is 0,
    and `set_epoch` -1, when they were not said."""

    master_id: int | None = None
    address: str | None = None
    epoch: int = 0
    members: frozenset[int] = frozenset()
    set_epoch: int = -1


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Periods in milliseconds."""

    metadata_period_ms: int = 5000
    """syncBrokerMetadataPeriod"""
    controller_search_period_ms: int = 10_000
    """syncControllerMetadataPeriod"""


# What is asked of the leading controller --------------------------------------------------------------------


class NextBrokerIdQuestion(msgspec.Struct, frozen=True):
    """1012."""


class ApplyBrokerIdQuestion(msgspec.Struct, frozen=True):
    """1013."""

    application: BrokerIdApplication


class RegisterQuestion(msgspec.Struct, frozen=True):
    """1003."""

    broker_id: int


class ElectMasterQuestion(msgspec.Struct, frozen=True):
    """1002, on one's own behalf; `designate`: this replica and no other, in place of the present master, who
    asks, and writes no more under `fenced_epoch`."""

    broker_id: int
    designate: bool = False
    fenced_epoch: int | None = None


class ReplicaInfoQuestion(msgspec.Struct, frozen=True):
    """1004."""


class AlterSyncStateSetQuestion(msgspec.Struct, frozen=True):
    """1001."""

    broker_id: int
    epoch: int
    members: frozenset[int]
    set_epoch: int


ControllerQuestion = (
    NextBrokerIdQuestion
    | ApplyBrokerIdQuestion
    | RegisterQuestion
    | ElectMasterQuestion
    | ReplicaInfoQuestion
    | AlterSyncStateSetQuestion
)


# Answers ----------------------------------------------------------------------------------------------------


class BrokerIdGranted(msgspec.Struct, frozen=True):
    """The id applied for is ours."""


class FreeBrokerId(msgspec.Struct, frozen=True):
    """The id to apply for, and a code that nobody has used."""

    id: int
    check_code: str


class QuestionRejected(msgspec.Struct, frozen=True):
    """The controller says no."""

    code: int
    remark: str


class ReplyLost(msgspec.Struct, frozen=True):
    """No answer: the question may have taken effect."""

    why: str


ControllerReply = FreeBrokerId | BrokerIdGranted | MasterView | QuestionRejected | ReplyLost


# Inputs -----------------------------------------------------------------------------------------------------


class TimeAdvanced(msgspec.Struct, frozen=True):
    """Time has passed."""


class ControllerMetadata(msgspec.Struct, frozen=True):
    """A controller's answer to 1005. `leader` is the address that it gives, `leads` whether it says that it
    leads itself, `grants` whether it is one that grants leases, `term` the term it knows, if it says so."""

    address: str
    leader: str | None
    leads: bool
    grants: bool
    term: int | None = None


class SearchFinished(msgspec.Struct, frozen=True):
    """All controllers have been asked; those that answered."""

    found: tuple[ControllerMetadata, ...]


class ReplyReceived(msgspec.Struct, frozen=True):
    """What became of an `AskController`."""

    token: int
    reply: ControllerReply


class IdentitySaved(msgspec.Struct, frozen=True):
    """What a `SaveIdentity` effect wanted kept is on disk, or (`error`) is not."""

    what: BrokerIdApplication | BrokerIdentity
    error: str | None = None


class RoleNotification(msgspec.Struct, frozen=True):
    """A controller's notification (1008)."""

    view: MasterView


class RoleTaken(msgspec.Struct, frozen=True):
    """What became of a `TakeRole`."""

    view: MasterView
    error: str | None = None


class ProposalMade(msgspec.Struct, frozen=True):
    """Our master half wants another SyncStateSet."""

    members: frozenset[int]
    set_epoch: int


class LeaseMissing(msgspec.Struct, frozen=True):
    """No lease comes: who leads?"""


class LogCaughtUp(msgspec.Struct, frozen=True):
    """Our log lacks nothing that a living master may have acknowledged."""


ReplicaInput = (
    TimeAdvanced
    | SearchFinished
    | ReplyReceived
    | IdentitySaved
    | RoleNotification
    | RoleTaken
    | ProposalMade
    | LeaseMissing
    | LogCaughtUp
)


# Effects ----------------------------------------------------------------------------------------------------


class FindControllerLeader(msgspec.Struct, frozen=True):
    """Ask every controller who leads, and report with `SearchFinished`."""


class AskController(msgspec.Struct, frozen=True):
    """Ask the controller at `address`, and report with `ReplyReceived`."""

    token: int
    address: str
    question: ControllerQuestion


class SaveIdentity(msgspec.Struct, frozen=True):
    """Write an application or an identity durably, and report with `IdentitySaved`."""

    what: BrokerIdApplication | BrokerIdentity


class DropApplication(msgspec.Struct, frozen=True):
    """Forget the application on disk."""


class StopWriting(msgspec.Struct, frozen=True):
    """Write no more, at once: another broker is, or may be, the master."""


class TakeRole(msgspec.Struct, frozen=True):
    """Take the role that the view gives this broker, and report with `RoleTaken`."""

    view: MasterView
    broker_id: int


class GiveUpEpoch(msgspec.Struct, frozen=True):
    """The mastership of `epoch` is from before our log lost its end: keep that it is given up, and say so to
    the controllers."""

    epoch: int


class AdoptSyncStateSet(msgspec.Struct, frozen=True):
    """The controller's SyncStateSet."""

    members: frozenset[int]
    set_epoch: int


class ProposalRejected(msgspec.Struct, frozen=True):
    """The SyncStateSet proposed last was surely not taken."""


class ControllerLeaderFound(msgspec.Struct, frozen=True):
    """Which controller leads, and whether it grants leases (None: not known)."""

    address: str
    grants: bool | None


class WriteLogLine(msgspec.Struct, frozen=True):
    """A line for the log."""

    text: str
    warns: bool = False


ReplicaEffect = (
    FindControllerLeader
    | AskController
    | SaveIdentity
    | DropApplication
    | StopWriting
    | TakeRole
    | GiveUpEpoch
    | AdoptSyncStateSet
    | ProposalRejected
    | ControllerLeaderFound
    | WriteLogLine
)
