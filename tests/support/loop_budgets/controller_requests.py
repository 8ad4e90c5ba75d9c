"""A controller with many groups, and the largest request of each code that it serves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from epochmq_controller.controller import config as configs
from epochmq_controller.controller.server import ControllerServer
from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.dledger import (
    AppendEntryRequest,
    ChangeMembersRequest,
    DLedgerEntry,
    DLedgerRequestCode,
    GetEntriesRequest,
    HeartBeatRequest,
    InstallSnapshotRequest,
    LeadershipTransferRequest,
    MetadataRequest,
    PushEntryRequest,
    RequestOrResponse,
    VoteRequest,
    encode_body,
)
from epochmq_protocol.frame import Command
from epochmq_protocol.properties import REQUEST_LINES_MAX
from epochmq_protocol.replica_control import ReplicaControlCode
from tests.support.header_classes import request_header
from tests.support.loop_budgets.measuring import LargestRequest
from tests.support.net import free_port, loopback
from tests.unit.broker.kit import Peer, command, until

GROUPS: Final = 500
RAFT: Final[dict[str, Any]] = {"group": "g", "remote_id": "n0", "local_id": "n1"}
IN_BODY: Final = 200
"""The remoting code of DLedger's responses."""
VALUES: Final = {
    "brokerName": "group-0",
    "clusterName": "c",
    "brokerId": "1",
    "appliedBrokerId": "1",
    "registerCheckCode": "check",
    "brokerAddr": "10.0.0.1:10911",
    "brokerAddress": "10.0.0.1:10911",
    "masterBrokerId": "1",
    "masterEpoch": "1",
    "isCleanLivingBroker": "true",
    "brokerControllerIdsToClean": "9",
}


@contextlib.asynccontextmanager
async def large_controller(folder: Path) -> AsyncIterator[ControllerServer]:
    """Runs a controller that leads, with many groups."""
    host = loopback(62)
    address = f"{host}:{free_port(host)}"
    text = (
        f"controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-{address}\ncontrollerDLegerSelfId=n0\n"
        f"controllerStorePath={folder}/store\nconfigStorePath={folder}/c.conf\n"
    )
    server = ControllerServer(configs.load(text), on_fatal=lambda _: None)
    try:
        await server.start()
        await until(lambda: server.controller.leads)
        await _add_groups(server)
        yield server
    finally:
        await server.stop()


async def _add_groups(server: ControllerServer) -> None:
    """Each group gets a replica, which is its master."""
    peer = Peer(server.server.dispatcher)
    for code in (
        Code.CONTROLLER_APPLY_BROKER_ID,
        Code.CONTROLLER_REGISTER_BROKER,
        Code.CONTROLLER_ELECT_MASTER,
    ):
        sent = [
            peer.send(command(code, None, b"", **_header(code, brokerName=f"group-{number}")))
            for number in range(GROUPS)
        ]
        for opaque in sent:
            await peer.answer(opaque)
    peer.close()


def largest_requests(server: ControllerServer) -> list[LargestRequest]:
    """The largest request of each code."""
    groups = f"{GROUPS} groups"
    names = msgspec.json.encode([f"group-{number}" for number in range(GROUPS)] * 20)
    settings = "".join(f"unknown{number}=value\n" for number in range(REQUEST_LINES_MAX)).encode()
    return [
        _one(
            Code.CONTROLLER_ALTER_SYNC_STATE_SET,
            "a set of 10,000 ids",
            b'{"syncStateSet":[%b],"syncStateSetEpoch":1}' % b",".join(b"%d" % n for n in range(10_000)),
            answer=None,
        ),
        _one(Code.CONTROLLER_ELECT_MASTER, groups, answer=None),
        _one(Code.CONTROLLER_REGISTER_BROKER, groups),
        _one(Code.CONTROLLER_GET_REPLICA_INFO, groups),
        _one(Code.CONTROLLER_GET_METADATA_INFO, groups, ext={"brokerNamesAfter": ""}),
        _one(Code.CONTROLLER_GET_SYNC_STATE_DATA, "10,000 names", names),
        _one(Code.BROKER_HEARTBEAT, "header only"),
        _one(Code.UPDATE_CONTROLLER_CONFIG, f"{REQUEST_LINES_MAX} unknown settings", settings),
        _one(Code.GET_CONTROLLER_CONFIG, "all settings"),
        _one(
            Code.CLEAN_BROKER_DATA,
            "a list of 10,000 ids",
            ext={"brokerControllerIdsToClean": ";".join(str(n) for n in range(10, 10_010))},
            answer=None,
        ),
        _one(Code.CONTROLLER_GET_NEXT_BROKER_ID, groups),
        _one(Code.CONTROLLER_APPLY_BROKER_ID, groups, answer=None),
        _one(ReplicaControlCode.ADOPT_GROUP, "rejected: no such group", b"{}", answer=None),
        _one(DLedgerRequestCode.PULL, "not served", answer=None),
        *_raft(),
    ]


def _raft() -> list[LargestRequest]:
    entries = [DLedgerEntry(index=n, term=1, pos=48 * n, body=bytes(1000), size=1048) for n in range(2000)]
    snapshot = InstallSnapshotRequest(
        **RAFT, entry=DLedgerEntry(0, 0, 0, b"", 48), size=1 << 20, data=bytes(1 << 20)
    )
    requests: list[tuple[int, str, RequestOrResponse]] = [
        (DLedgerRequestCode.METADATA, "header only", MetadataRequest(**RAFT)),
        (
            DLedgerRequestCode.APPEND,
            "1,000 entries of 1 kB from a stranger to the group",
            AppendEntryRequest(**{**RAFT, "group": "other"}, batch_msgs=[bytes(1000)] * 1000),
        ),
        (DLedgerRequestCode.GET, "one entry", GetEntriesRequest(**RAFT, begin_index=1)),
        (DLedgerRequestCode.VOTE, "header only", VoteRequest(**RAFT, leader_id="n1", term=0)),
        (DLedgerRequestCode.HEART_BEAT, "header only", HeartBeatRequest(**RAFT, leader_id="n1", term=0)),
        (
            DLedgerRequestCode.PUSH,
            "2,000 entries of 1 kB of an earlier term",
            PushEntryRequest(**RAFT, leader_id="n1", term=0, batch_entry=entries),
        ),
        (
            DLedgerRequestCode.LEADERSHIP_TRANSFER,
            "rejected: an unknown member",
            LeadershipTransferRequest(**RAFT, transfer_id="n0", transferee_id="n7"),
        ),
        (DLedgerRequestCode.INSTALL_SNAPSHOT, "a chunk of 1 MiB of an earlier term", snapshot),
        (DLedgerRequestCode.CHANGE_MEMBERS, "header only", ChangeMembersRequest(**RAFT)),
    ]
    return [
        _one(code, what, partial(encode_body, request), answer=IN_BODY) for code, what, request in requests
    ]


def _header(code: int, **others: str) -> dict[str, str]:
    header = request_header(code)
    names = () if header is None else header.__struct_encode_fields__
    return {name: VALUES[name] for name in names if name in VALUES} | others


def _one(
    code: int,
    what: str,
    body: bytes | Callable[[], bytes] = b"",
    ext: Mapping[str, str] | None = None,
    **how: Any,
) -> LargestRequest:
    def make() -> Command:
        return command(code, None, body() if callable(body) else body, **_header(code, **(ext or {})))

    return LargestRequest(code, what, make, **how)


def peer_of(server: ControllerServer) -> Peer:
    """A new client of a controller."""
    return Peer(server.server.dispatcher)
