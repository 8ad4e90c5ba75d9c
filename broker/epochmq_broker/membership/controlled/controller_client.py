"""Sends a broker's requests to the controllers and decodes their responses (the controllers' part of
RocketMQ's `BrokerOuterAPI`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from epochmq_broker.membership.controlled.state_machine_types import (
    AlterSyncStateSetQuestion,
    ApplyBrokerIdQuestion,
    BrokerIdGranted,
    ControllerMetadata,
    ControllerQuestion,
    ControllerReply,
    ElectMasterQuestion,
    FreeBrokerId,
    MasterView,
    NextBrokerIdQuestion,
    QuestionRejected,
    RegisterQuestion,
    ReplicaInfoQuestion,
    ReplyLost,
)
from epochmq_protocol.bodies import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    ReplicaIdentity,
    SyncStateSet,
    from_json,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_controller import (
    ADOPTS_STORE_FIELD,
    FENCED_EPOCH_FIELD,
    INCARNATION_FIELD,
    LOG_IN_DOUBT_FIELD,
    MIN_IN_SYNC_FIELD,
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
    NotifyBrokerRoleChangedRequestHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from epochmq_protocol.transport.client import RemotingClient

ASK_TIMEOUT_MS: Final = 3000
SEARCH_TIMEOUT_MS: Final = 1000
TERM: Final = "term"
"""Ext field of the response to 1005: the Raft term. Only EpochMQ's controllers, which grant leases, send
it."""

ViewHeader = (
    RegisterBrokerToControllerResponseHeader
    | ElectMasterResponseHeader
    | GetReplicaInfoResponseHeader
    | NotifyBrokerRoleChangedRequestHeader
)


class ControllerClient:
    """The client of one broker."""

    def __init__(
        self,
        client: RemotingClient,
        cluster: str,
        name: str,
        address: str,
        may_lack: Callable[[], bool] = lambda: False,
        lineage: Callable[[], str] = lambda: "",
        acknowledged: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`address` is the broker's own. `may_lack` returns whether its log is in doubt, `lineage` the names
        of its process and of former ones. `acknowledged` gets the name that the controllers have recorded."""
        self._client = client
        self._lineage, self._acknowledged = lineage, acknowledged
        self._may_lack = may_lack
        self._cluster, self._name, self._address = cluster, name, address

    async def search(self, addresses: Sequence[str]) -> tuple[ControllerMetadata, ...]:
        """Asks all controllers at once which one is the leader; returns those that responded in time."""
        found = await asyncio.gather(*(self._ask_metadata(address) for address in addresses))
        return tuple(one for one in found if one is not None)

    async def _ask_metadata(self, address: str) -> ControllerMetadata | None:
        try:
            response = await self._client.call(
                address, request(RequestCode.CONTROLLER_GET_METADATA_INFO), SEARCH_TIMEOUT_MS
            )
            if response.code != ResponseCode.SUCCESS:
                return None
            header = GetMetaDataResponseHeader.decode(response.ext)
        except EpochMQError:
            return None
        term = (response.ext or {}).get(TERM)
        return ControllerMetadata(
            address,
            header.controller_leader_address,
            header.is_leader,
            grants=term is not None,
            term=int(term) if term is not None and term.isdecimal() else None,
        )

    async def election_obstacle(self, leader: str, broker_id: int) -> str | None:
        """Why the leading controller would not elect this replica now; None if it would."""
        try:
            found = {one.broker_id: one for one in await self._in_sync(leader)}.get(broker_id)
        except EpochMQError as error:
            return str(error)
        if found is None:
            return "it is not in the SyncStateSet"
        return None if found.alive else "its heartbeats do not reach the controllers"

    async def members(self, leader: str) -> dict[int, str]:
        """Broker id → address of the living members of the SyncStateSet, as the leading controller has them.
        Raises EpochMQError if it does not respond."""
        return {
            one.broker_id: one.broker_address or ""
            for one in await self._in_sync(leader)
            if one.alive and one.broker_id is not None
        }

    async def _in_sync(self, leader: str) -> list[ReplicaIdentity]:
        command = request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=msgspec.json.encode([self._name]))
        response = await self._client.call(leader, command, ASK_TIMEOUT_MS)
        if response.code != ResponseCode.SUCCESS:
            raise RequestError(response.code, response.remark or f"code {response.code}")
        info = from_json(BrokerReplicasInfo, response.body).replicas_info_table.get(self._name)
        return info.in_sync_replicas if info is not None else []

    async def ask(self, address: str, question: ControllerQuestion) -> ControllerReply:
        """Asks one question; a failure is a `ReplyLost` and raises nothing."""
        try:
            response = await self._client.call(address, self._request(question), ASK_TIMEOUT_MS)
            return self._reply(question, response)
        except EpochMQError as error:
            return ReplyLost(f"{address}: {error}")

    def _request(self, question: ControllerQuestion) -> Command:
        cluster, name = self._cluster, self._name
        now_ms = time.time_ns() // 1_000_000
        match question:
            case NextBrokerIdQuestion():
                return request(
                    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
                    GetNextBrokerIdRequestHeader(cluster_name=cluster, broker_name=name),
                )
            case ApplyBrokerIdQuestion(application=application):
                return request(
                    RequestCode.CONTROLLER_APPLY_BROKER_ID,
                    ApplyBrokerIdRequestHeader(
                        cluster_name=cluster,
                        broker_name=name,
                        applied_broker_id=application.identity.id,
                        register_check_code=application.check_code,
                    ),
                )
            case RegisterQuestion(broker_id=broker_id, adopts=adopts):
                named = {INCARNATION_FIELD: lineage} if (lineage := self._lineage()) else {}
                return request(
                    RequestCode.CONTROLLER_REGISTER_BROKER,
                    RegisterBrokerToControllerRequestHeader(
                        cluster_name=cluster,
                        broker_name=name,
                        broker_id=broker_id,
                        broker_address=self._address,
                        invoke_time=now_ms,
                    ),
                    ext={**named, ADOPTS_STORE_FIELD: "true"} if adopts else named or None,
                )
            case ElectMasterQuestion(broker_id=broker_id, designate=designate, fenced_epoch=fenced):
                ext = {} if fenced is None else {FENCED_EPOCH_FIELD: str(fenced)}
                if not designate and self._may_lack():
                    ext[LOG_IN_DOUBT_FIELD] = "true"
                return request(
                    RequestCode.CONTROLLER_ELECT_MASTER,
                    ElectMasterRequestHeader(
                        cluster_name=cluster,
                        broker_name=name,
                        broker_id=broker_id,
                        designate_elect=designate,
                        invoke_time=now_ms,
                    ),
                    ext=ext or None,
                )
            case ReplicaInfoQuestion():
                return request(
                    RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequestHeader(broker_name=name)
                )
            case AlterSyncStateSetQuestion():
                return request(
                    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
                    AlterSyncStateSetRequestHeader(
                        broker_name=name,
                        master_broker_id=question.broker_id,
                        master_epoch=question.epoch,
                        invoke_time=now_ms,
                    ),
                    ext={MIN_IN_SYNC_FIELD: str(question.least)} if question.least > 1 else None,
                    body=to_json(SyncStateSet(set(question.members), question.set_epoch)),
                )

    def _reply(self, question: ControllerQuestion, response: Command) -> ControllerReply:
        elected = (
            isinstance(question, ElectMasterQuestion)
            and response.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        )
        if response.code != ResponseCode.SUCCESS and not elected:
            return QuestionRejected(response.code, response.remark or "")
        match question:
            case NextBrokerIdQuestion():
                free = GetNextBrokerIdResponseHeader.decode(response.ext).next_broker_id
                if free is None:
                    return QuestionRejected(
                        ResponseCode.SYSTEM_ERROR, "nextBrokerId: missing, expected a number"
                    )
                return FreeBrokerId(free, f"{self._address};{time.time_ns() // 1_000_000}")
            case ApplyBrokerIdQuestion():
                return BrokerIdGranted()
            case RegisterQuestion():
                self._acknowledged((response.ext or {}).get(INCARNATION_FIELD, ""))
                return decode_master_view(
                    RegisterBrokerToControllerResponseHeader.decode(response.ext),
                    _set(response.body),
                    response.ext,
                )
            case ElectMasterQuestion():
                body = from_json(ElectMasterResponseBody, response.body) if response.body else None
                members = SyncStateSet(body.sync_state_set if body is not None else None)
                return decode_master_view(
                    ElectMasterResponseHeader.decode(response.ext), members, response.ext
                )
            case ReplicaInfoQuestion():
                return decode_master_view(
                    GetReplicaInfoResponseHeader.decode(response.ext), _set(response.body), response.ext
                )
            case AlterSyncStateSetQuestion():
                known = _set(response.body)
                return MasterView(
                    members=frozenset(known.sync_state_set or ()),
                    set_epoch=known.sync_state_set_epoch,
                    least=_least(response.ext),
                )


def decode_master_view(
    header: ViewHeader, known: SyncStateSet, ext: Mapping[str, str] | None = None
) -> MasterView:
    """Decodes a header, the SyncStateSet beside it, and the fields `ext` that RocketMQ does not have. If both
    name the set's epoch the header's counts:
    RocketMQ's response to a registration has none in its body."""
    of_body = known.sync_state_set_epoch
    of_header = getattr(header, "sync_state_set_epoch", None)
    return MasterView(
        master_id=header.master_broker_id if header.master_address else None,
        address=header.master_address or None,
        epoch=header.master_epoch or 0,
        members=frozenset(known.sync_state_set or ()),
        set_epoch=of_header if of_header is not None else of_body,
        least=_least(ext),
    )


def _least(ext: Mapping[str, str] | None) -> int:
    text = (ext or {}).get(MIN_IN_SYNC_FIELD, "1")
    return int(text) if text.isdecimal() and len(text) < 10 else 1


def _set(body: bytes) -> SyncStateSet:
    return from_json(SyncStateSet, body) if body else SyncStateSet()
