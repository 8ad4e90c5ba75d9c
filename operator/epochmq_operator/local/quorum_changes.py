"""Changes the numbers of controllers, and of brokers of DLedger groups, to those of the resources, one at a
time, and sends running brokers the new addresses of controllers. The steps are those of `quorum_steps`. What
must survive a kill of the supervisor is in quorums.json before the first step: how many members run, and that
a change has begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from epochmq_operator.local.keeper import PodKeeper
from epochmq_operator.local.state_directory import QuorumRecord, StateDirectory
from epochmq_operator.pod_rendering import (
    broker_pod_name,
    controller_pod_name,
    inner_client_credentials,
)
from epochmq_operator.pods import (
    Component,
    Pod,
)
from epochmq_operator.quorum_steps import (
    AddMember,
    ObservedMembers,
    QuorumStep,
    RemoveMember,
    StartMember,
    Wait,
    founders_of,
    member_id,
    next_quorum_step,
)
from epochmq_operator.resources import ControllerGroup, GroupResource, Resources, is_raft_group
from epochmq_operator.status_model import PodPhase
from epochmq_protocol import properties
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.signatures import sign
from epochmq_protocol.transport import RemotingClient
from epochmq_protocol.transport.group_members import (
    BROKERS,
    CHANGE_TIMEOUT_S,
    CONTROLLERS,
    MemberChange,
    MembersClient,
    MembersError,
)

log = logging.getLogger(__name__)

PAUSE_S = 0.2
"""The delay between two attempts."""
ANSWER_MS = 3000


def initial_quorums(
    state: StateDirectory, resources: Resources, running: Collection[str]
) -> dict[str, QuorumRecord]:
    """The record of each ControllerGroup, and of each group in the mode DLedger. A group without data begins
    with as many members as the resource says. One with data and without a record has as many as have data.
    `running` are the names of the groups whose pods run already."""
    known = state.quorums()
    records: dict[str, QuorumRecord] = {}
    for group in raft_groups(resources):
        is_controllers = isinstance(group, ControllerGroup)
        count = (state.controllers_with_data if is_controllers else state.peers_with_data)(group.name)
        record = known.get(group.name)
        if record is None or (count is None and group.name not in running):
            begins_with = group.spec.replicas if count is None else count
            record = QuorumRecord(running=begins_with, founders=begins_with)
        records[group.name] = record
    return known | records


def raft_groups(resources: Resources) -> list[GroupResource]:
    """The groups whose replicas are the members of a Raft group."""
    return [group for group in resources.groups if is_raft_group(group)]


def members_client(group: GroupResource) -> MembersClient:
    """What asks the members of this group, and changes them."""
    return CONTROLLERS if isinstance(group, ControllerGroup) else BROKERS


def peer_address(group: GroupResource, pod: Pod) -> str:
    """The address at which the members of the group know this one."""
    return pod.port("remoting" if isinstance(group, ControllerGroup) else "dledger")


@dataclass(frozen=True, slots=True)
class QuorumChangesContext:
    """What the changes use of the supervisor. `keepers` returns the keeper of each pod by the pod's name.
    `apply` starts and stops pods as quorums.json says."""

    state: StateDirectory
    client: RemotingClient
    keepers: Callable[[], Mapping[str, PodKeeper]]
    apply: Callable[[], Awaitable[None]]
    changed: Callable[[], None]


class QuorumChanges:
    """The changes of all Raft groups of a run. `lines` describes the present steps, one line for each
    group that changes."""

    def __init__(self, context: QuorumChangesContext) -> None:
        self._context = context
        self._lines: dict[str, str] = {}
        self._new_addresses: dict[str, dict[str, str]] = {}
        self._faults: dict[str, str] = {}

    @property
    def lines(self) -> list[str]:
        """The present steps, one line for each group that changes."""
        return list(self._lines.values())

    @property
    def pending(self) -> bool:
        """Whether `run` has anything to do."""
        return bool(self._lines or self._new_addresses)

    def add_addresses(self, pod: str, addresses: dict[str, str]) -> None:
        """Adds keys that a running broker has to change (`send_addresses`)."""
        self._new_addresses[pod] = self._new_addresses.get(pod, {}) | addresses

    def begin(self, resources: Resources) -> None:
        """Records the changes that the resources ask for, before `run`."""
        records = self._context.state.quorums()
        groups = raft_groups(resources)
        for group in groups:
            if records[group.name].running != group.spec.replicas:
                records[group.name] = msgspec.structs.replace(records[group.name], changing=True)
        self._context.state.write_quorums(records)
        self._lines = {
            group.name: f"{group.name}: changes the number of {members_client(group).noun}s to "
            f"{group.spec.replicas}"
            for group in groups
            if records[group.name].changing
        }

    async def run(self, resources: Resources) -> None:
        """Makes the changes; returns when all are completed. A step that fails is tried again."""
        groups = [group for group in raft_groups(resources) if group.name in self._lines]
        while groups or self._new_addresses:
            groups = [group for group in groups if not await self._advance(group)]
            await self.send_addresses(resources)
            if groups or self._new_addresses:
                await asyncio.sleep(PAUSE_S)

    async def _advance(self, group: GroupResource) -> bool:
        """Takes the next step of a group. Returns whether its change is completed."""
        record = self._context.state.quorums()[group.name]
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_S):
                step = next_quorum_step(await self._observe(group, record))
                if step is None:
                    self._write(group.name, msgspec.structs.replace(record, changing=False))
                    self._show(group.name, None)
                    log.info("%s: the number of %ss is as wanted", group.name, members_client(group).noun)
                    return True
                late = self._brokers_with_former_addresses() if isinstance(group, ControllerGroup) else []
                if isinstance(step, AddMember) and late:
                    step = Wait(f"waits until {', '.join(late)} accepts the new addresses")
                self._show(group.name, f"{group.name}: {_description(group, step)}")
                await self._take(group, record, step)
        except TimeoutError:
            self._show(group.name, f"{group.name}: a step timed out after {CHANGE_TIMEOUT_S:.0f} s")
        except (MembersError, EpochMQError) as error:
            self._show(group.name, f"{group.name}: {error}")
        return False

    async def _take(self, group: GroupResource, record: QuorumRecord, step: QuorumStep) -> None:
        name = group.name
        match step:
            case StartMember(running):
                self._write(name, msgspec.structs.replace(record, running=running))
                await self._context.apply()
            case AddMember(ordinal):
                address = peer_address(group, self._keepers(group)[member_id(ordinal)].pod)
                members = await self._change(group, MemberChange(member_id(ordinal), address))
                founders = founders_of(record.founders, members)
                self._write(name, msgspec.structs.replace(record, founders=founders))
                await self._context.apply()
            case RemoveMember(ordinal):
                members = await self._change(group, MemberChange(member_id(ordinal)))
                running, founders = min(record.running, ordinal), founders_of(record.founders, members)
                self._write(name, msgspec.structs.replace(record, running=running, founders=founders))
                await self._context.apply()
            case Wait():
                pass

    async def _change(self, group: GroupResource, change: MemberChange) -> frozenset[str]:
        """Requests the change from the leader, which one of the ready members names. Returns the members
        after it."""
        ready = [one for one in self._keepers(group).values() if one.record.phase is PodPhase.READY]
        stays = [one for one in ready if one.pod.ordinal == 0] or ready
        members = members_client(group)
        if not stays:
            raise MembersError(f"no {members.noun} is ready")
        address = peer_address(group, stays[0].pod)
        return frozenset((await members.change(self._context.client, address, change)).members)

    async def _observe(self, group: GroupResource, record: QuorumRecord) -> ObservedMembers:
        keepers = self._keepers(group)
        addresses = [peer_address(group, one.pod) for one in keepers.values()]
        known = await members_client(group).fetch(self._context.client, addresses)
        return ObservedMembers(
            running=record.running,
            wanted=group.spec.replicas,
            members=frozenset(known.members),
            ready=frozenset(name for name, one in keepers.items() if one.record.phase is PodPhase.READY),
            responding=frozenset(
                name
                for name, one in keepers.items()
                if one.readiness.controller is not None or one.readiness.runtime_info
            ),
        )

    def _keepers(self, group: GroupResource) -> dict[str, PodKeeper]:
        """The keepers of the processes that are, or are to become, members, by the members' ids."""
        is_controllers = isinstance(group, ControllerGroup)
        component = Component.CONTROLLER if is_controllers else Component.BROKER
        return {
            member_id(keeper.pod.ordinal): keeper
            for keeper in self._context.keepers().values()
            if keeper.pod.group == group.name and keeper.pod.component is component
        }

    def _write(self, name: str, record: QuorumRecord) -> None:
        state = self._context.state
        if state.quorums()[name] != record:
            state.write_quorums(state.quorums() | {name: record})

    def _show(self, name: str, line: str | None) -> None:
        if self._lines.get(name) == line:
            return
        if line is None:
            del self._lines[name]
        else:
            self._lines[name] = line
            log.info("%s", line)
        self._context.changed()

    # Brokers

    async def send_addresses(self, resources: Resources) -> None:
        """Sends each broker its new addresses, once. `run` tries again until the broker has accepted them. A
        broker that starts meanwhile reads them from its configuration, too."""
        for name, addresses in list(self._new_addresses.items()):
            keeper = self._context.keepers().get(name)
            try:
                if keeper is not None:
                    await self._send(resources, keeper.pod, addresses)
            except EpochMQError as error:
                if self._faults.get(name) != str(error):
                    log.warning("%s did not accept the new addresses yet: %s", name, error)
                    self._faults[name] = str(error)
                continue
            self._faults.pop(name, None)
            if self._new_addresses.get(name) == addresses:
                del self._new_addresses[name]

    def _brokers_with_former_addresses(self) -> list[str]:
        """The running brokers that do not know all controllers' addresses yet. If one of them were the master
        and an unknown controller led, the master would get no write lease."""
        keepers = self._context.keepers()
        return sorted(
            name
            for name in self._new_addresses
            if name in keepers and keepers[name].record.process is not None
        )

    async def _send(self, resources: Resources, pod: Pod, addresses: dict[str, str]) -> None:
        body = properties.rewrite("", addresses).encode()
        command = request(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        group = next(one for one in resources.broker_groups if one.name == pod.group)
        credentials = inner_client_credentials(group)
        if credentials is not None:
            sign(command, credentials)
        answer = await self._context.client.call(pod.port("remoting"), command, ANSWER_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise EpochMQError(f"code {answer.code}: {answer.remark or 'no remark'}")


def _description(group: GroupResource, step: QuorumStep) -> str:
    is_controllers = isinstance(group, ControllerGroup)
    pod_name = controller_pod_name if is_controllers else broker_pod_name
    whole = "the quorum" if is_controllers else "the group"
    match step:
        case StartMember(running):
            return f"starts {pod_name(group.name, running - 1)}"
        case AddMember(ordinal):
            return f"adds {pod_name(group.name, ordinal)} to {whole}"
        case RemoveMember(ordinal):
            return f"removes {pod_name(group.name, ordinal)} from {whole}"
        case Wait(reason):
            return reason
