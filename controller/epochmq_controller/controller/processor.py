"""Serves the request codes of a controller (`ControllerRequestProcessor`).

Every controller takes heartbeats. Only the leader reads or changes replica groups; the others respond with
2007. A heartbeat that expects a response may request a write lease with the ext field `writeLeaseEpoch`, the
sender's master epoch. The response contains `writeLeaseMs` if the lease is granted. The heartbeats of a
process that must not act under its broker id (`incarnations`) get code 2014. Java sends heartbeats one-way
and without the fields.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from epochmq_controller import settings_file
from epochmq_controller.controller import config as configs
from epochmq_controller.controller.controller import Controller
from epochmq_controller.controller.lease_renewals import REFUSED_REMARK, SUCCESS_REMARK
from epochmq_controller.replica_groups import incarnations, rules
from epochmq_controller.replica_groups.heartbeats import TIMEOUT_DEFAULT_MS, BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.requests import (
    AdoptGroupRequest,
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    CleanBrokerDataRequest,
    ElectMasterRequest,
    GetNextBrokerIdRequest,
    GetReplicaInfoRequest,
    RegisterBrokerRequest,
)
from epochmq_controller.replica_groups.rules import Decision, ReplicaGroupView
from epochmq_controller.replica_groups.state_machine_types import (
    LEASE_OF_ANOTHER_MS,
    LEASE_OF_REFUSED_MS,
    NOT_LEADER,
)
from epochmq_protocol.bodies import (
    BrokerMemberGroup,
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
    from_json,
    to_json,
)
from epochmq_protocol.bodies_in_turns import map_entry, with_items
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.fastjson import parse_int
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_base import Header
from epochmq_protocol.headers_controller import (
    ADOPTS_STORE_FIELD,
    CONFIRMED_BY_ALL_FIELD,
    FENCED_EPOCH_FIELD,
    HEARS_MASTER_FIELD,
    INCARNATION_FIELD,
    LEASE_EPOCH_FIELD,
    LEASE_MS_FIELD,
    LOG_IN_DOUBT_FIELD,
    MIN_IN_SYNC_FIELD,
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    ApplyBrokerIdResponseHeader,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from epochmq_protocol.headers_namesrv import BrokerHeartbeatRequestHeader
from epochmq_protocol.integers import INT_MAX, LONG_MAX
from epochmq_protocol.replica_control import REMAINING_EPOCHS, AdoptedGroup, ReplicaControlCode
from epochmq_protocol.transport import RemotingConnection
from epochmq_protocol.transport.connection import RequestHandler
from epochmq_protocol.transport.turns import Turns
from epochmq_protocol.write_promise import SUCCESSORS_FROM_SET_FIELD

log = logging.getLogger(__name__)

H = TypeVar("H", ElectMasterResponseHeader, RegisterBrokerToControllerResponseHeader)

TERM, COMMITTED_INDEX = "term", "committedIndex"
NAMES_AFTER = "brokerNamesAfter"
BROKER_NAMES = "brokerNames"
"""An extension of 1005: a request with `brokerNamesAfter` gets the names that follow it in order, as a JSON
list of at most `NAMES_MAX`. Java's administrators must know the names."""
NAMES_MAX = 500

EXPECTED_NAMES = "a JSON list of broker names"
NUMBER_CHARS_MAX = 20
"""The longest whole number of Java's range, with its sign."""


class ControllerProcessor:
    """The handlers of a controller's port."""

    def __init__(self, controller: Controller, extra: dict[str, str]) -> None:
        self._controller = controller
        self._extra = extra
        self._saving = asyncio.Lock()

    def handlers(self) -> dict[int, RequestHandler]:
        """The handlers by request code."""
        code = RequestCode
        return {
            code.CONTROLLER_ALTER_SYNC_STATE_SET: self._task(self.alter_sync_state_set),
            code.CONTROLLER_ELECT_MASTER: self._task(self.elect_master),
            code.CONTROLLER_REGISTER_BROKER: self._task(self.register_broker),
            code.CONTROLLER_GET_REPLICA_INFO: self._task(self.replica_info),
            code.CONTROLLER_GET_METADATA_INFO: self.metadata,
            code.CONTROLLER_GET_SYNC_STATE_DATA: self._task(self.sync_state_data),
            code.BROKER_HEARTBEAT: self.heartbeat,
            code.UPDATE_CONTROLLER_CONFIG: self.update_config,
            code.GET_CONTROLLER_CONFIG: self.get_config,
            code.CLEAN_BROKER_DATA: self._task(self.clean_broker_data),
            code.CONTROLLER_GET_NEXT_BROKER_ID: self._task(self.next_broker_id),
            code.CONTROLLER_APPLY_BROKER_ID: self._task(self.apply_broker_id),
            ReplicaControlCode.ADOPT_GROUP: self._task(self.adopt_group),
        }

    @staticmethod
    def _task(work: Callable[[Command], Awaitable[Command]]) -> RequestHandler:
        return lambda _, command: work(command)

    # Replica groups -----------------------------------------------------------------------------------------

    async def alter_sync_state_set(self, command: Command) -> Command:
        """1001 CONTROLLER_ALTER_SYNC_STATE_SET."""
        header, faults = AlterSyncStateSetRequestHeader.decode_as_java(command.ext)
        proposed = from_json(SyncStateSet, command.body) if command.body else SyncStateSet()
        members = proposed.sync_state_set
        decision = await self._controller.decide(
            AlterSyncStateSetRequest(
                self._required_name(header.broker_name),
                header.master_broker_id,
                header.master_epoch,
                None if members is None else frozenset(members),
                proposed.sync_state_set_epoch,
                max(1, _number(command.ext or {}, MIN_IN_SYNC_FIELD, INT_MAX) or 1),
            )
        )
        view = decision.view
        epoch = view.sync_state_set_epoch if view is not None else None
        result_header = AlterSyncStateSetResponseHeader(new_sync_state_set_epoch=epoch or 0)
        return _decision_response(command, decision, result_header, _set_body(view), faults)

    async def elect_master(self, command: Command) -> Command:
        """1002 CONTROLLER_ELECT_MASTER."""
        header, faults = ElectMasterRequestHeader.decode_as_java(command.ext)
        decision = await self._controller.decide(
            ElectMasterRequest(
                header.broker_name,
                header.broker_id,
                header.designate_elect,
                _number(command.ext or {}, FENCED_EPOCH_FIELD),
                in_doubt=(command.ext or {}).get(LOG_IN_DOUBT_FIELD) == "true",
            )
        )
        view = decision.view
        if view is None:
            return _decision_response(command, decision, ElectMasterResponseHeader(), b"", faults)
        body = ElectMasterResponseBody(sync_state_set=set(view.sync_state_set))
        group = self._controller.groups.get(header.broker_name)
        if view.member_addresses is not None and group is not None:
            body.broker_member_group = BrokerMemberGroup(
                group.cluster_name, group.broker_name, view.member_addresses
            )
        result_header = _master_header(ElectMasterResponseHeader, view)
        encoded = to_json(body, quotes_keys=True)  # mqadmin skips the group's members
        return _decision_response(command, decision, result_header, encoded, faults)

    async def register_broker(self, command: Command) -> Command:
        """1003 CONTROLLER_REGISTER_BROKER."""
        header, faults = RegisterBrokerToControllerRequestHeader.decode_as_java(command.ext)
        name, ext = self._required_name(header.broker_name), command.ext or {}
        lineage = ext.get(INCARNATION_FIELD, "")
        decision = await self._controller.decide(
            RegisterBrokerRequest(
                name,
                header.cluster_name or "",
                header.broker_id,
                header.broker_address,
                lineage,
                adopts=ext.get(ADOPTS_STORE_FIELD) == "true",
            )
        )
        result_header = RegisterBrokerToControllerResponseHeader()
        view = decision.view
        if view is not None and view.master_id is not None:
            result_header = _master_header(RegisterBrokerToControllerResponseHeader, view)
        result_header.cluster_name, result_header.broker_name = header.cluster_name, name
        result = _decision_response(command, decision, result_header, _set_body(view), faults)
        if lineage and decision.code == ResponseCode.SUCCESS:
            result.ext = {**(result.ext or {}), INCARNATION_FIELD: incarnations.newest(lineage)}
        return result

    async def replica_info(self, command: Command) -> Command:
        """1004 CONTROLLER_GET_REPLICA_INFO."""
        name = self._required_name(GetReplicaInfoRequestHeader.decode(command.ext).broker_name)
        decision = await self._controller.decide(GetReplicaInfoRequest(name))
        view = decision.view or ReplicaGroupView()
        result_header = GetReplicaInfoResponseHeader(
            master_broker_id=view.master_id,
            master_address=view.master_address,
            master_epoch=view.master_epoch,
        )
        return _decision_response(command, decision, result_header, _set_body(decision.view))

    async def sync_state_data(self, command: Command) -> Command:
        """1006 CONTROLLER_GET_SYNC_STATE_DATA: reads the groups that the body names."""
        try:
            names = msgspec.json.decode(command.body, type=list[str] | None)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"body: {error}, expected {EXPECTED_NAMES}"
            ) from None
        if not names:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"body: empty, expected {EXPECTED_NAMES}")
        self._require_leader()
        controller = self._controller
        if controller.config.is_process_read_event:
            await controller.confirm_leadership()
        encoded: dict[str, bytes] = {}
        turns = Turns()
        for name in dict.fromkeys(names):
            await turns.pause()
            group = controller.groups.get(name)
            if group is None:
                continue
            info = ReplicasInfo(
                group.master_id, group.master_address, group.master_epoch, group.sync_state_set_epoch
            )
            for broker_id, replica in sorted(group.replicas.items()):
                alive = controller.alive(group.cluster_name, name, broker_id) is not None
                listed = info.in_sync_replicas
                if broker_id not in group.sync_state_set:
                    listed = info.not_in_sync_replicas
                listed.append(ReplicaIdentity(name, broker_id, replica.address, alive))
            encoded[name] = map_entry(name, info)
        table = b"{%b}" % b",".join(entry for _, entry in sorted(encoded.items()))
        body = with_items(to_json(BrokerReplicasInfo()), "replicasInfoTable", table)
        return response(command, ResponseCode.SUCCESS, body=body)

    async def next_broker_id(self, command: Command) -> Command:
        """1012 CONTROLLER_GET_NEXT_BROKER_ID."""
        header = GetNextBrokerIdRequestHeader.decode(command.ext)
        name = self._required_name(header.broker_name)
        await self._controller.decide(GetNextBrokerIdRequest(name))
        result_header = GetNextBrokerIdResponseHeader(
            cluster_name=header.cluster_name,
            broker_name=name,
            next_broker_id=rules.next_broker_id(self._controller.groups, name),
        )
        return response(command, ResponseCode.SUCCESS, header=result_header)

    async def apply_broker_id(self, command: Command) -> Command:
        """1013 CONTROLLER_APPLY_BROKER_ID."""
        header, faults = ApplyBrokerIdRequestHeader.decode_as_java(command.ext)
        cluster, name, applied = header.cluster_name, header.broker_name, header.applied_broker_id
        if not cluster or not name or applied is None or not header.register_check_code:
            self._require_leader()
            needed = "clusterName, brokerName, appliedBrokerId and registerCheckCode are required"
            raise RequestError(ResponseCode.SYSTEM_ERROR, "; ".join([needed, *faults]))
        decision = await self._controller.decide(
            ApplyBrokerIdRequest(name, cluster, applied, header.register_check_code)
        )
        result_header = ApplyBrokerIdResponseHeader(cluster_name=cluster, broker_name=name)
        return _decision_response(command, decision, result_header, b"", faults)

    async def clean_broker_data(self, command: Command) -> Command:
        """1011 CLEAN_BROKER_DATA."""
        header, faults = CleanControllerBrokerDataRequestHeader.decode_as_java(command.ext)
        decision = await self._controller.decide(
            CleanBrokerDataRequest(
                header.broker_name,
                header.cluster_name or "",
                header.broker_controller_ids_to_clean,
                header.is_clean_living_broker,
            )
        )
        return _decision_response(command, decision, None, b"", faults)

    async def adopt_group(self, command: Command) -> Command:
        """20012 ADOPT_GROUP: rebuilds a group that the controllers have forgotten."""
        try:
            plan = msgspec.json.decode(command.body, type=AdoptedGroup)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"body: {error}, expected the group to adopt"
            ) from None
        self._require_leader()
        if self._controller.state_machine.earlier_leases_may_last:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, "a master may still hold a lease of an earlier leader; repeat this"
            )
        living = self._controller.state_machine.living_ids(plan.broker_name)
        decision = await self._controller.decide(AdoptGroupRequest(plan.broker_name, plan, living))
        ext = {REMAINING_EPOCHS: str(decision.remaining_epochs)}
        return response(command, decision.code, decision.remark, ext=ext)

    def _require_leader(self) -> None:
        if not self._controller.leads:
            raise RequestError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)

    def _required_name(self, name: str | None) -> str:
        if name is None:
            self._require_leader()
            raise RequestError(ResponseCode.SYSTEM_ERROR, "brokerName: missing, expected a text")
        return name

    # Heartbeats ---------------------------------------------------------------------------------------------

    def heartbeat(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """904 BROKER_HEARTBEAT, which every controller takes."""
        header, faults = BrokerHeartbeatRequestHeader.decode_as_java(command.ext)
        if header.broker_id is None:
            remark = "; ".join(["Heart beat with empty brokerId", *faults])
            return response(command, ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        ext = command.ext or {}
        confirmed, heard = _number(ext, CONFIRMED_BY_ALL_FIELD), _number(ext, HEARS_MASTER_FIELD)
        heartbeat = Heartbeat(
            last_ms=0,
            timeout_ms=header.heartbeat_timeout_mills or TIMEOUT_DEFAULT_MS,
            channel=connection,
            address=header.broker_addr,
            epoch=header.epoch if header.epoch is not None else -1,
            max_offset=header.max_offset if header.max_offset is not None else -1,
            confirm_offset=header.confirm_offset if header.confirm_offset is not None else -1,
            election_priority=header.election_priority,
            in_doubt=ext.get(LOG_IN_DOUBT_FIELD) == "true",
            confirmed_by_all=confirmed if confirmed is not None else -1,
            lineage=ext.get(INCARNATION_FIELD, ""),
            hears_epoch=heard if heard is not None else -1,
        )
        replica = (header.cluster_name, header.broker_name, header.broker_id)
        fenced, wanted = _number(ext, FENCED_EPOCH_FIELD), _number(ext, LEASE_EPOCH_FIELD)
        if wanted is not None and not command.is_oneway:
            return self._lease_response(command, replica, heartbeat, fenced, wanted)
        if not self._controller.receive_heartbeat(replica, heartbeat, fenced):
            return response(command, ResponseCode.CONTROLLER_BROKER_ID_INVALID, REFUSED_REMARK)
        return response(command, ResponseCode.SUCCESS, "; ".join([SUCCESS_REMARK, *faults]))

    async def _lease_response(
        self,
        command: Command,
        replica: BrokerIdentityInfo,
        heartbeat: Heartbeat,
        fenced: int | None,
        wanted: int,
    ) -> Command:
        lease_ms = await self._controller.request_lease(replica, heartbeat, fenced, wanted)
        if lease_ms == LEASE_OF_REFUSED_MS:
            return response(command, ResponseCode.CONTROLLER_BROKER_ID_INVALID, REFUSED_REMARK)
        ext: dict[str, str] = {}
        if lease_ms == LEASE_OF_ANOTHER_MS:
            ext[SUCCESSORS_FROM_SET_FIELD] = "false"
        elif lease_ms > 0:
            ext[LEASE_MS_FIELD] = str(lease_ms)
            if not self._controller.config.enable_elect_unclean_master:
                ext[SUCCESSORS_FROM_SET_FIELD] = "true"
        return response(command, ResponseCode.SUCCESS, SUCCESS_REMARK, ext=ext or None)

    # The controller -----------------------------------------------------------------------------------------

    def metadata(self, _: RemotingConnection, command: Command) -> Command:
        """1005 CONTROLLER_GET_METADATA_INFO, which every controller serves: the leader. Beyond Java also the
        term, the committed index and, on request, the names of the groups, as far as this controller
        knows."""
        controller = self._controller
        ext = {TERM: str(controller.peer.term), COMMITTED_INDEX: str(controller.peer.committed_index)}
        after = (command.ext or {}).get(NAMES_AFTER)
        if after is not None:
            names = heapq.nsmallest(NAMES_MAX, (name for name in controller.groups.groups if name > after))
            ext[BROKER_NAMES] = msgspec.json.encode(names).decode()
        result_header = GetMetaDataResponseHeader(
            group=controller.config.controller_d_leger_group,
            controller_leader_id=controller.peer.leader_id,
            controller_leader_address=controller.leader_address,
            is_leader=controller.leads,
            peers="".join(f"{name}:{address};" for name, address in controller.peer.members.items()),
        )
        return response(command, ResponseCode.SUCCESS, header=result_header, ext=ext)

    def get_config(self, _: RemotingConnection, command: Command) -> Command:
        """1010 GET_CONTROLLER_CONFIG."""
        text = settings_file.to_text(self._controller.config, self._extra)
        return response(command, ResponseCode.SUCCESS, body=text.encode())

    async def update_config(self, connection: RemotingConnection, command: Command) -> Command:
        """1009 UPDATE_CONTROLLER_CONFIG: changes settings that are not black-listed, here and in the settings
        file."""
        config = self._controller.config
        changed, changes = settings_file.change(
            config,
            self._extra,
            command.body,
            black_list=config.black_list(),
            changeable=configs.CHANGEABLE_KEYS,
            check=configs.check,
        )
        self._controller.configure(changed)
        log.info("%s changed settings: %s", connection.remote, changes)
        async with self._saving:  # one write at a time, on a worker thread
            await asyncio.to_thread(settings_file.save, config.config_store_path, changes)
        return response(command, ResponseCode.SUCCESS)


def _number(ext: dict[str, str], key: str, greatest: int = LONG_MAX) -> int | None:
    """A number of EpochMQ's own in a header; None if it has none. RequestError: the text is no number of this
    range, which the log of the controllers and responses could not carry."""
    text = ext.get(key)
    if text is None:
        return None
    found = parse_int(text) if len(text) <= NUMBER_CHARS_MAX else None
    if found is None or not -greatest - 1 <= found <= greatest:
        raise RequestError(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"{key}={text:.50}, expected a whole number up to {greatest}",
        )
    return found


def _set_body(view: ReplicaGroupView | None) -> bytes:
    if view is None:
        return b""
    return to_json(SyncStateSet(set(view.sync_state_set), view.sync_state_set_epoch or 0))


def _master_header(kind: type[H], view: ReplicaGroupView) -> H:
    return kind(
        master_broker_id=view.master_id,
        master_address=view.master_address,
        master_epoch=view.master_epoch,
        sync_state_set_epoch=view.sync_state_set_epoch,
    )


def _decision_response(
    command: Command, decision: Decision, header: Header | None, body: bytes, faults: list[str] | None = None
) -> Command:
    """`faults`: fields of the request that could not be read and count as missing. The remark names them,
    too."""
    remarks = [decision.remark] if decision.remark is not None else []
    remark = "; ".join([*remarks, *(faults or [])]) or None
    view = decision.view
    ext = {MIN_IN_SYNC_FIELD: str(view.least)} if view is not None and view.least > 1 else None
    return response(command, decision.code, remark, header=header, ext=ext, body=body)
