# pure: requests about a group
"""Defines the requests about a replica group, and has each decided by its function in `rules`."""

from __future__ import annotations

import msgspec

from epochmq_controller.replica_groups import rules
from epochmq_controller.replica_groups.election_policy import LiveInfoLookup
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.rules import Decision
from epochmq_protocol.replica_control import AdoptedGroup


class _GroupRequest(msgspec.Struct, frozen=True):
    name: str
    """The group's broker name."""


class AlterSyncStateSetRequest(_GroupRequest, frozen=True):
    """1001: the master of `master_epoch` changes the SyncStateSet of `set_epoch`. None stands for a missing
    field."""

    master_id: int | None
    master_epoch: int | None
    new_set: frozenset[int] | None
    set_epoch: int
    least: int = 1
    """With how many members the new set acknowledges messages."""


class ElectMasterRequest(_GroupRequest, frozen=True):
    """1002: an election is requested."""

    broker_id: int = rules.ANY_BROKER
    """The replica that requests the election or, with `designate`, that is to become master. ANY_BROKER: the
    controller itself requests it."""
    designate: bool = False
    """Elect `broker_id` and no other replica."""
    fenced_epoch: int | None = None
    """If not None, the present master sends the request, and accepts no more writes under this epoch. The
    state machine compares it with the group's epoch (`fenced` of `decide`)."""
    in_doubt: bool = False
    """`broker_id` says that its log may lack acknowledged messages."""
    gives_way: bool = False
    """The master, although alive, gives way to an eligible member (`short_sets`)."""


class RegisterBrokerRequest(_GroupRequest, frozen=True):
    """1003: a replica registers. None stands for a missing field. `lineage`: the incarnations of its store,
    empty if it names none (`incarnations`). `adopts`: an administrator has accepted this store for the id."""

    cluster: str
    broker_id: int | None
    address: str | None
    lineage: str = ""
    adopts: bool = False


class GetReplicaInfoRequest(_GroupRequest, frozen=True):
    """1004: reads the master and the SyncStateSet."""


class CleanBrokerDataRequest(_GroupRequest, frozen=True):
    """1011: removes dead replicas (`ids`, separated by `;`) or, with `include_living`, the whole group."""

    cluster: str
    ids: str | None
    include_living: bool


class GetNextBrokerIdRequest(_GroupRequest, frozen=True):
    """1012: reads the id that a new replica should apply for. No rule decides it: its processor reads the
    table."""


class ApplyBrokerIdRequest(_GroupRequest, frozen=True):
    """1013: a replica applies for an id. With `check_code` it proves later that the id belongs to it."""

    cluster: str
    broker_id: int
    check_code: str


class AdoptGroupRequest(_GroupRequest, frozen=True):
    """20012: an administrator has a forgotten group rebuilt. `living`: the ids under which brokers of the
    group send heartbeats."""

    plan: AdoptedGroup
    living: frozenset[int]


ControllerRequest = (
    AlterSyncStateSetRequest
    | ElectMasterRequest
    | RegisterBrokerRequest
    | GetReplicaInfoRequest
    | CleanBrokerDataRequest
    | GetNextBrokerIdRequest
    | ApplyBrokerIdRequest
    | AdoptGroupRequest
)


def decide(
    request: ControllerRequest,
    groups: ReplicaGroups,
    alive: LiveInfoLookup,
    *,
    unclean: bool = False,
    fenced: bool = False,
) -> Decision:
    """Decides a request on the present groups, given which replicas are alive. `unclean`: replicas outside
    the SyncStateSet may be elected. `fenced`: the group's master has confirmed that it accepts no more writes
    under its present epoch."""
    name = request.name
    match request:
        case AlterSyncStateSetRequest(
            master_id=master_id, master_epoch=epoch, new_set=new_set, set_epoch=set_epoch, least=least
        ):
            return rules.alter_sync_state_set(
                groups, name, master_id, epoch, new_set, set_epoch, alive, least
            )
        case ElectMasterRequest(
            broker_id=broker_id, designate=designate, in_doubt=in_doubt, gives_way=gives_way
        ):
            return rules.elect_master(
                groups,
                name,
                broker_id,
                designate=designate,
                unclean=unclean,
                alive=alive,
                fenced=fenced,
                in_doubt=in_doubt,
                gives_way=gives_way,
            )
        case RegisterBrokerRequest(cluster=cluster, broker_id=broker_id, address=address):
            return rules.register_broker(
                groups,
                cluster,
                name,
                broker_id,
                address,
                alive,
                lineage=request.lineage,
                adopts=request.adopts,
            )
        case GetReplicaInfoRequest():
            return rules.replica_info(groups, name)
        case CleanBrokerDataRequest(cluster=cluster, ids=ids, include_living=include_living):
            return rules.clean_broker_data(
                groups, cluster, name, ids, include_living=include_living, alive=alive
            )
        case AdoptGroupRequest(plan=plan, living=living):
            return rules.adopt_group(groups, plan, alive, living)
        case GetNextBrokerIdRequest():
            return Decision()
        case ApplyBrokerIdRequest(cluster=cluster, broker_id=broker_id, check_code=check_code):
            return rules.apply_broker_id(groups, cluster, name, broker_id, check_code)
