# pure: what each request may change
"""Decides each request (`ReplicasInfoManager`), in Java's order of checks and with Java's codes and remarks.

The rules change nothing: the events of a decision take effect when the Raft log has committed them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from epochmq_controller.replica_groups import (
    election_policy,
    group_adoption,
    incarnations,
    short_sets,
)
from epochmq_controller.replica_groups.election_policy import LiveInfoLookup, LivenessLookup
from epochmq_controller.replica_groups.events import (
    AlterSyncStateSetEvent,
    ApplyBrokerIdEvent,
    CleanBrokerDataEvent,
    ControllerEvent,
    ElectMasterEvent,
    UpdateBrokerAddressEvent,
)
from epochmq_controller.replica_groups.replicated_state import ReplicaGroup, ReplicaGroups
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.integers import LONG_MAX, LONG_MIN
from epochmq_protocol.replica_control import AdoptedGroup

ANY_BROKER = -1
"""The broker id in an election that the controller itself requests."""


@dataclass(frozen=True)
class ReplicaGroupView:
    """A group's master and SyncStateSet as a response contains them. Fields that Java omits are None."""

    master_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int | None = None
    member_addresses: dict[int, str] | None = None
    least: int = 1
    """With how many members the set acknowledges messages (`ReplicaGroup.min_in_sync_replicas`)."""


@dataclass(frozen=True)
class Decision:
    """The response to a request, and the events that must be committed before it is sent."""

    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    view: ReplicaGroupView | None = None
    events: list[ControllerEvent] = field(default_factory=list)
    wait_reason: str | None = None
    """Why an election waits for missing members."""
    remaining_epochs: int = 0
    """Of ADOPT_GROUP: how many epochs remain to be counted."""


def reject(code: ResponseCode, remark: str, view: ReplicaGroupView | None = None) -> Decision:
    """A decision that changes nothing."""
    return Decision(code, remark, view)


def reject_missing(what: str, expected: str) -> Decision:
    """A decision on a request without a field, for which Java throws a NullPointerException."""
    return reject(ResponseCode.SYSTEM_ERROR, f"{what}: missing, expected {expected}")


def alter_sync_state_set(
    groups: ReplicaGroups,
    name: str,
    master_id: int | None,
    master_epoch: int | None,
    new_set: frozenset[int] | None,
    set_epoch: int,
    alive: LiveInfoLookup,
    least: int = 1,
) -> Decision:
    """1001: the master changes the SyncStateSet, or with how many members (`least`) it acknowledges."""
    group = groups.get(name)
    if group is None:
        return reject(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed")
    if new_set is None:
        return reject_missing("body", '{"syncStateSet":[…],"syncStateSetEpoch":…}')
    if group.sync_state_set == new_set and group.min_in_sync_replicas == least:
        return reject(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        )
    rejecting = "Rejecting alter syncStateSet request because the"
    if group.master_id is None or group.master_id != master_id:
        return reject(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"{rejecting} current leader is:{{{group.master_id}}}, not {{{master_id}}}",
        )
    if master_epoch is None:
        return reject_missing("masterEpoch", "a 32-bit integer")
    if group.master_epoch != master_epoch:
        return reject(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"{rejecting} current master epoch is:{{{group.master_epoch}}}, not {{{master_epoch}}}",
        )
    if group.sync_state_set_epoch != set_epoch:
        return reject(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"{rejecting} current syncStateSet epoch is:{{{group.sync_state_set_epoch}}}, "
            f"not {{{set_epoch}}}",
        )
    for replica in sorted(new_set):
        if replica not in group.replicas:
            return reject(
                ResponseCode.CONTROLLER_INVALID_REPLICAS, f"{rejecting} replicas {{{replica}}} don't exist"
            )
        # A member that stays need not be alive for the controllers: the master has its acknowledgements, and
        # one that reaches the master alone must not block the removal of another one.
        if replica not in group.sync_state_set and alive(group.cluster_name, name, replica) is None:
            return reject(
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"{rejecting} replicas {{{replica}}} don't alive"
            )
    if group.master_id not in new_set:
        return reject(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"{rejecting} newSyncStateSet don't contains origin leader {{{group.master_id}}}",
        )
    view = ReplicaGroupView(
        sync_state_set=new_set, sync_state_set_epoch=group.sync_state_set_epoch + 1, least=least
    )
    return Decision(view=view, events=[AlterSyncStateSetEvent(name, new_set, _recorded(least))])


def _recorded(least: int) -> int | None:
    """The value in an event. 1 is left out: then the event is Java's, to the byte."""
    return least if least > 1 else None


def elect_master(
    groups: ReplicaGroups,
    name: str,
    broker_id: int,
    *,
    designate: bool,
    unclean: bool,
    alive: LiveInfoLookup,
    fenced: bool = False,
    in_doubt: bool = False,
    gives_way: bool = False,
) -> Decision:
    """1002: a replica, an administrator or, with ANY_BROKER, the controller requests an election.

    The first master of a group is the replica that requests the election. (Java checks nothing. Here the
    replica must be registered. A replica that an administrator names must also be alive: a dead first master
    would be the only member of the SyncStateSet, and no other replica could be elected.) If the master is
    alive, the response is 2011 with the master's data, which brokers treat as success. `fenced`: the master
    has confirmed that it accepts no more writes under its epoch. Another replica replaces it or, if no other
    can, the same one continues under a new epoch.

    Replicas whose logs are in doubt are passed over (`election_policy.electable_members`), unless an
    administrator names one (`designate`: elect `broker_id` and no other). `in_doubt`: the request says
    that the log of the requesting replica is in doubt. Its heartbeat, which says so too, may arrive later.
    `gives_way`: the master does, although it is alive, if a successor lives (`short_sets`).
    """
    group = groups.get(name)
    if group is None:
        return reject(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered")
    cluster = group.cluster_name
    chosen: int | None = None
    wait_reason: str | None = None
    if group.master_epoch == 0 and broker_id in group.replicas:
        chosen, wait_reason = _first_master(group, broker_id, alive, designate=designate, in_doubt=in_doubt)
    elif gives_way and (taking_over := short_sets.successors(group, alive)):
        chosen = election_policy.newest_log(cluster, name, taking_over, alive)
    elif designate or _master_stays(group, alive, fenced=fenced):
        chosen = election_policy.elect(
            cluster,
            name,
            (group.electable_members if designate else group.sync_state_set)
            | _more_complete_former_member(group, broker_id, alive),
            group.replicas if unclean else None,
            None if fenced else group.master_id,
            broker_id if designate else None,
            alive,
        )
    else:
        found = election_policy.electable_members(
            cluster, name, group.sync_state_set, alive, group.former_members, group.eligible_members
        )
        candidates = _without_fenced_master(group, found, alive, fenced=fenced)
        chosen, wait_reason = election_policy.newest_log(cluster, name, candidates, alive), found.wait_reason
        if chosen is None and unclean:
            chosen = election_policy.newest_log(cluster, name, group.replicas, alive)
    if chosen is None and wait_reason is None and group.master_epoch > 0:
        wait_reason = election_policy.nobody_electable(
            cluster, name, group.electable_members, group.replicas, alive, broker_id if designate else None
        )
    if chosen is not None and chosen == group.master_id and not fenced:
        return reject(
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            f"The old master {chosen} is still alive, not need to elect new master for broker {name}",
            ReplicaGroupView(
                chosen,
                group.master_address,
                group.master_epoch,
                group.sync_state_set,
                group.sync_state_set_epoch,
                least=group.min_in_sync_replicas,
            ),
        )
    if chosen is not None:
        least = _recorded(group.min_in_sync_replicas)
        elected = ElectMasterEvent(name, True, chosen, min_in_sync_replicas=least)
        return Decision(view=_view_after_election(group, chosen), events=[elected])
    if broker_id == ANY_BROKER:
        # A group that waits has no master that a second event could remove.
        events: list[ControllerEvent] = (
            [] if wait_reason and group.master_id is None else [ElectMasterEvent(name, False)]
        )
        remark = "Old master has down and failed to elect a new broker master"
        return Decision(
            ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
            _with_reason(remark, wait_reason),
            events=events,
            wait_reason=wait_reason,
        )
    remark = _with_reason("Failed to elect a new master", wait_reason)
    return Decision(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark, wait_reason=wait_reason)


def _more_complete_former_member(
    group: ReplicaGroup, broker_id: int, alive: LiveInfoLookup
) -> frozenset[int]:
    """The named replica, if it was a member before the election of the present master, which no replica has
    joined, and that master's log ends before what every member had: an order may put the replica in its
    place."""
    named = alive(group.cluster_name, group.broker_name, broker_id)
    if broker_id not in group.former_members or named is None or group.master_id is None:
        return frozenset()
    master = alive(group.cluster_name, group.broker_name, group.master_id)
    lacks = master is not None and master.max_offset < named.confirmed_by_all
    return frozenset({broker_id}) if lacks else frozenset()


def _with_reason(remark: str, wait_reason: str | None) -> str:
    return f"{remark}: {wait_reason}" if wait_reason else remark


def _first_master(
    group: ReplicaGroup, asker: int, alive: LiveInfoLookup, *, designate: bool, in_doubt: bool
) -> tuple[int | None, str | None]:
    """Returns the first master and None, or None and the wait reason. The requesting replica becomes master,
    unless its log is in doubt and another replica may have more."""
    cluster, name = group.cluster_name, group.broker_name
    info = alive(cluster, name, asker)
    if designate:
        return (asker if info is not None else None), None
    if not in_doubt and (info is None or not info.in_doubt):
        return asker, None
    found = election_policy.electable_members(cluster, name, group.replicas.keys() - {asker}, alive)
    others_trusted = any(
        one.has_trusted_log for other in found.members if (one := alive(cluster, name, other)) is not None
    )
    missing = sorted(other for other in group.replicas if other != asker and not alive(cluster, name, other))
    if others_trusted or missing:
        whom = "another replica, whose log is complete" if others_trusted else f"brokers {missing}"
        return None, f"broker {asker} may lack acknowledged messages; the group waits for {whom}"
    return election_policy.newest_log(cluster, name, group.replicas, alive) or asker, None


def _master_stays(group: ReplicaGroup, alive: LiveInfoLookup, *, fenced: bool) -> bool:
    """Whether the present master is alive, not fenced, and has all bytes that it has confirmed."""
    if group.master_id is None or fenced:
        return False
    info = alive(group.cluster_name, group.broker_name, group.master_id)
    return info is not None and not info.lacks_confirmed and group.master_id in group.sync_state_set


def _without_fenced_master(
    group: ReplicaGroup, found: election_policy.ElectionCandidates, alive: LiveInfoLookup, *, fenced: bool
) -> frozenset[int]:
    """The candidates without a fenced master, unless the logs of all members are in doubt: then its log may
    be the newest."""

    def has_trusted_log(one: int) -> bool:
        info = alive(group.cluster_name, group.broker_name, one)
        return info is not None and info.has_trusted_log

    members = (found.members & group.sync_state_set) | group.eligible_members
    others = frozenset(one for one in members if one != group.master_id and has_trusted_log(one))
    return others if fenced and others else found.members


def _view_after_election(group: ReplicaGroup, chosen: int) -> ReplicaGroupView:
    replica = group.replicas.get(chosen)
    return ReplicaGroupView(
        chosen,
        replica.address if replica is not None else None,
        group.master_epoch + 1,
        frozenset({chosen}),
        group.sync_state_set_epoch + 1,
        {broker_id: one.address for broker_id, one in sorted(group.replicas.items())},
        group.min_in_sync_replicas,
    )


def next_broker_id(groups: ReplicaGroups, name: str) -> int:
    """1012: the id that a new replica should apply for."""
    group = groups.get(name)
    return group.next_broker_id if group is not None else 1


def apply_broker_id(
    groups: ReplicaGroups, cluster: str, name: str, applied: int, check_code: str
) -> Decision:
    """1013: a replica applies for an id. It may apply again for the same id, if the response gets lost."""
    address = check_code.split(";")[0]
    event = ApplyBrokerIdEvent(name, cluster, address, applied, check_code)
    group = groups.get(name)
    if group is None:
        if applied == 1:
            return Decision(events=[event])
        return reject(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"Broker-set: {name} hasn't been registered in controller, "
            f"but broker try to apply brokerId: {applied}",
        )
    known = group.replicas.get(applied)
    if applied < 1:
        return reject(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"Fail to apply brokerId: {applied} in broker-set: {name}, ids begin with 1",
        )
    if known is None or known.register_check_code == check_code:
        return Decision(events=[event])
    return reject(
        ResponseCode.CONTROLLER_BROKER_ID_INVALID,
        f"Fail to apply brokerId: {applied} in broker-set: {name}",
    )


def register_broker(
    groups: ReplicaGroups,
    cluster: str,
    name: str,
    broker_id: int | None,
    address: str | None,
    alive: LiveInfoLookup,
    *,
    lineage: str = "",
    adopts: bool = False,
) -> Decision:
    """1003: a replica registers, and gets the master if it is alive. A process that must not act under the
    broker id is refused (`incarnations`). `adopts`: an administrator has accepted its store; then only
    another living process is a reason to refuse it."""
    group = groups.get(name)
    if group is None:
        return reject(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"Broker-set: {name} hasn't been registered in controller",
        )
    if broker_id is None:
        return reject_missing("brokerId", "a 64-bit integer")
    replica = group.replicas.get(broker_id)
    if replica is None:
        return reject(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}",
        )
    if not address:
        return reject_missing("brokerAddress", "host:port")
    living = alive(cluster, name, broker_id)
    verdict = incarnations.judge(replica.incarnation, lineage, address, living)
    is_other_alive = living is not None and incarnations.is_other_process(living, lineage, address)
    if verdict.is_refused and (is_other_alive or not adopts):
        return reject(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            incarnations.refusal_text(
                name,
                broker_id,
                verdict,
                address,
                living.address if living is not None else replica.address,
                is_alive=is_other_alive,
            ),
        )
    least = group.min_in_sync_replicas
    view = ReplicaGroupView(
        sync_state_set=group.sync_state_set, sync_state_set_epoch=group.sync_state_set_epoch, least=least
    )
    if group.master_id is not None and alive(cluster, name, group.master_id) is not None:
        view = ReplicaGroupView(
            group.master_id,
            group.master_address if group.master_id != broker_id else address,
            group.master_epoch,
            group.sync_state_set,
            group.sync_state_set_epoch,
            least=least,
        )
    events: list[ControllerEvent] = []
    own = incarnations.newest(lineage)
    if own and own != replica.incarnation:
        events.append(UpdateBrokerAddressEvent(name, cluster, address, broker_id, own))
    elif replica.address != address:
        events.append(UpdateBrokerAddressEvent(name, cluster, address, broker_id))
    if group.master_id == broker_id:
        # The master has restarted and forgotten the changes that it requested. A delayed one must not take
        # effect: the set's epoch increases, so that only changes that it requests from now on count.
        events.append(AlterSyncStateSetEvent(name, group.sync_state_set, _recorded(least)))
        view = replace(view, sync_state_set_epoch=group.sync_state_set_epoch + 1)
    return Decision(view=view, events=events)


def adopt_group(
    groups: ReplicaGroups, plan: AdoptedGroup, alive: LiveInfoLookup, living: Iterable[int]
) -> Decision:
    """20012: rebuilds a group that the controllers have forgotten (`group_adoption`)."""
    group = groups.get(plan.broker_name)
    problem = group_adoption.objection(plan, group, living)
    if problem is not None:
        return reject(ResponseCode.CONTROLLER_INVALID_REQUEST, problem)
    if alive(plan.cluster_name, plan.broker_name, plan.master_broker_id) is None:
        return reject(
            ResponseCode.SYSTEM_BUSY,
            f"the heartbeats of broker {plan.master_broker_id} do not reach the leading controller yet",
        )
    events, remaining = group_adoption.adoption_events(plan, group)
    return Decision(events=events, remaining_epochs=remaining)


def replica_info(groups: ReplicaGroups, name: str) -> Decision:
    """1004: reads the group's master and SyncStateSet."""
    group = groups.get(name)
    if group is None:
        return reject(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed")
    return Decision(
        view=ReplicaGroupView(
            group.master_id,
            group.master_address,
            group.master_epoch,
            group.sync_state_set,
            group.sync_state_set_epoch,
            least=group.min_in_sync_replicas,
        )
    )


_ID = re.compile(r"[+-]?[0-9]{1,19}")


def _parse_ids(text: str) -> frozenset[int]:
    """Parses ids separated by `;`, as Java does: empty parts at the end do not count. ValueError for a part
    that is no id."""
    found = set()
    for one in text.rstrip(";").split(";"):
        if not _ID.fullmatch(one) or not LONG_MIN <= int(one) <= LONG_MAX:
            raise ValueError(f"{one!r} is no id")
        found.add(int(one))
    return frozenset(found)


def clean_broker_data(
    groups: ReplicaGroups,
    cluster: str,
    name: str,
    ids: str | None,
    *,
    include_living: bool,
    alive: LiveInfoLookup,
) -> Decision:
    """1011: removes dead replicas. With `include_living` it removes the whole group and ignores `ids`, as
    Java does."""
    code = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    group = groups.get(name)
    chosen: frozenset[int] | None = None
    if not include_living:
        blank = ids is None or not ids.strip()
        if blank and group is not None and group.master_id is not None:
            return reject(code, f"Broker {name} is still alive, clean up failure")
        if not blank:
            assert ids is not None
            try:
                chosen = _parse_ids(ids)
            except ValueError as error:
                return reject(
                    code,
                    "Please set the option <brokerControllerIdsToClean> according to the format, "
                    f"exception: {error}",
                )
            for one in sorted(chosen):
                if alive(cluster, name, one) is not None:
                    return reject(code, f"Broker [{name},  {one}] is still alive, clean up failure")
    if group is None:
        return reject(code, f"Broker {name} is not existed,clean broker data failure.")
    return Decision(events=[CleanBrokerDataEvent(name, chosen)])


def groups_needing_election(groups: ReplicaGroups, lives: LivenessLookup) -> list[str]:
    """The groups whose master is dead while another replica is alive (`scanNeedReelectBrokerSets`), and the
    groups without a master of which a replica is alive (Java leaves these to their brokers). If it may not
    be elected, the election says why."""
    return [name for name, group in sorted(groups.groups.items()) if _needs_election(group, lives)]


def _needs_election(group: ReplicaGroup, lives: LivenessLookup) -> bool:
    def any_lives(replicas: Iterable[int]) -> bool:
        return any(lives(group.cluster_name, group.broker_name, one) for one in replicas)

    if group.master_id is not None:
        return not any_lives([group.master_id]) and any_lives(group.replicas)
    return group.master_epoch > 0 and any_lives(group.replicas)
