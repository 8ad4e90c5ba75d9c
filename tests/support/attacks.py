"""Attacks that a stranger without credentials can make over the network, as the bytes of one connection each.
Those on controllers are also those of `tests/unit/controller/test_strangers.py`."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from epochmq_protocol.bodies import SyncStateSet, to_json
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.dledger import (
    REQUEST_CODES,
    AppendEntryRequest,
    ChangeMembersRequest,
    HeartBeatRequest,
    RequestOrResponse,
    VoteRequest,
    encode_body,
)
from epochmq_protocol.frame import Command, encode, request
from epochmq_protocol.ha_frames import ReplicaHandshake, encode_ack, encode_replica_handshake
from epochmq_protocol.headers_controller import (
    LEASE_EPOCH_FIELD,
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    ElectMasterRequestHeader,
    RegisterBrokerToControllerRequestHeader,
)
from epochmq_protocol.headers_namesrv import BrokerHeartbeatRequestHeader
from epochmq_protocol.integers import LONG_MAX
from epochmq_protocol.member_requests import BROKER_REQUESTS, NAMESERVER_REQUESTS, RAFT_REQUESTS, MemberCode
from tests.support.bad_frames import LEFT_OUT, bomb, framed
from tests.support.remoting import frame
from tests.support.signing import signed

ELSEWHERE = "127.0.0.9:10911"
"""Where nobody listens."""
STRANGERS = (None, ("root", "a-wrong-password"), ("nobody", "a-password"))
"""How requests to brokers are signed: not at all, with a wrong password, by an unknown user."""
TOPIC, GROUP = "orders", "readers"
NEW_GROUPS = 1000
MIB = 1 << 20


@dataclass(frozen=True)
class Cluster:
    """Whom the attacks are aimed at: the real names, which a stranger may know."""

    cluster: str
    broker_name: str
    raft_group: str
    """The name of the Raft group of the controllers, or of the DLedger brokers."""


# ---- controllers, and the peers of a Raft group


def at_controllers(target: Cluster) -> dict[str, Callable[[], Command]]:
    """Attack → a request to a controller."""
    names: Any = {"cluster_name": target.cluster, "broker_name": target.broker_name}

    def heartbeat(**ext: str) -> Command:
        header = BrokerHeartbeatRequestHeader(
            **names, broker_addr="127.0.0.9:10911", broker_id=1, epoch=1, max_offset=0, confirm_offset=0
        )
        header.heartbeat_timeout_mills = 60_000
        return request(RequestCode.BROKER_HEARTBEAT, header, ext=ext)

    return {
        "take a broker id": lambda: request(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ApplyBrokerIdRequestHeader(**names, applied_broker_id=1, register_check_code="x"),
        ),
        "register as a replica": lambda: request(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RegisterBrokerToControllerRequestHeader(**names, broker_id=1, broker_address=ELSEWHERE),
        ),
        "send heartbeats": heartbeat,
        "send heartbeats for a lease": lambda: heartbeat(**{LEASE_EPOCH_FIELD: "1"}),
        "become the master": lambda: request(
            RequestCode.CONTROLLER_ELECT_MASTER,
            ElectMasterRequestHeader(**names, broker_id=1, designate_elect=True),
        ),
        "change the SyncStateSet": lambda: request(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            AlterSyncStateSetRequestHeader(
                broker_name=target.broker_name, master_broker_id=1, master_epoch=1
            ),
            body=to_json(SyncStateSet({1}, 1)),
        ),
        "remove the group": lambda: request(
            RequestCode.CLEAN_BROKER_DATA,
            ext={"brokerName": target.broker_name, "clusterName": target.cluster},
        ),
        "change settings": lambda: request(
            RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true"
        ),
        **{name: partial(raft, target, body) for name, body in RAFT.items()},
    }


RAFT: dict[str, RequestOrResponse] = {
    "append to the Raft log": AppendEntryRequest(body=b"x"),
    "ask for a vote": VoteRequest(term=9, ledger_end_index=9, ledger_end_term=9),
    "add a Raft member": ChangeMembersRequest(peer_id="n9", address="127.0.0.9:9"),
    "ask for a vote in the greatest term": VoteRequest(term=LONG_MAX),
    "lead in the greatest term": HeartBeatRequest(term=LONG_MAX, leader_id="n9"),
}


def raft(target: Cluster, body: RequestOrResponse) -> Command:
    """A call of the Raft group, as if from a peer `n9`."""
    named = msgspec.structs.replace(body, group=target.raft_group, remote_id="n0", local_id="n9")
    return request(REQUEST_CODES[type(body)], body=encode_body(named))


def at_raft_peers(target: Cluster) -> Iterator[tuple[str, bytes]]:
    """Attacks on peers of a Raft group."""
    for name, body in RAFT.items():
        yield name, encode(raft(target, body))
    for code in sorted(RAFT_REQUESTS):
        yield f"the member's request {code}", frame(code, {}, b"{}")


# ---- HA


def at_ha(_: Cluster) -> Iterator[tuple[str, bytes]]:
    """Attacks on the HA port of a master. The first bytes are no proof of membership."""
    for number in (1, 2, 3):
        handshake = encode_replica_handshake(ReplicaHandshake(number))
        yield f"take the place of replica {number}", handshake
        yield f"acknowledge for replica {number}", handshake + encode_ack(0) + encode_ack(LONG_MAX)
    yield "acknowledge without a handshake", encode_ack(1 << 40)
    yield "report an offset as older replicas do", struct.pack(">q", 0)
    yield "ask over HTTP", b"GET / HTTP/1.1\r\n\r\n"


# ---- nameservers


def at_nameservers(target: Cluster) -> Iterator[tuple[str, bytes]]:
    """Attacks on a nameserver. What `mqadmin` may change there is open to everybody (docs/security.md)."""
    who = {"clusterName": target.cluster, "brokerName": target.broker_name, "brokerAddr": ELSEWHERE}
    for number in ("0", "1", "2"):
        ext = {**who, "brokerId": number, "haServerAddr": "127.0.0.9:10912", "compressed": "false"}
        for code in sorted(NAMESERVER_REQUESTS):
            yield f"the broker's request {code} as broker {number}", frame(code, ext, b"{}")
    yield "a registration that decompresses without end", bomb()


# ---- brokers


def at_brokers(target: Cluster) -> Iterator[tuple[str, bytes]]:
    """Attacks on a broker's ports for clients."""
    names = {
        "topic": TOPIC, "b": TOPIC, "a": GROUP, "group": GROUP, "consumerGroup": GROUP,
        "producerGroup": GROUP, "queueId": "0", "e": "0", "offset": "0", "clusterName": target.cluster,
    }  # fmt: skip
    for user in STRANGERS:
        who = "no user" if user is None else user[0]

        def made(
            code: int, ext: dict[str, str], body: bytes = b"", user: tuple[str, str] | None = user
        ) -> bytes:
            return frame(code, ext if user is None else signed(ext, body, user), body)

        for code in sorted({*map(int, RequestCode)} - set(map(int, LEFT_OUT)) | BROKER_REQUESTS):
            yield f"request {code} as {who}", made(code, names)
        for name, code, ext, body in _broker_requests():
            yield f"{name} as {who}", made(code, ext, body)
    yield "claim another address", b"PROXY TCP4 10.1.2.3 10.1.2.4 1 2\r\n" + frame(28, names)


def _broker_requests() -> Iterator[tuple[str, int, dict[str, str], bytes]]:
    """Attack, code, ext fields and body of requests whose content matters."""
    send = {
        "a": "p", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0", "k": "false",
        "m": "false",
    }  # fmt: skip
    timer = "TIMER_OUT_MS\x011\x02REAL_TOPIC\x01../x\x02REAL_QID\x01x\x02"
    yield (
        "stop the timers",
        RequestCode.SEND_MESSAGE_V2,
        {**send, "b": "rmq_sys_wheel_timer", "i": timer},
        b"x",
    )
    escaped = {**send, "b": "SCHEDULE_TOPIC_XXXX", "i": ""}
    yield "write to the topic of delays", RequestCode.SEND_MESSAGE_V2, escaped, b"x"
    groups = [{"groupName": f"evil-{n}", "subscriptionDataSet": []} for n in range(NEW_GROUPS)]
    heartbeat = {"clientID": "evil", "producerDataSet": [], "consumerDataSet": groups}
    yield "a heartbeat with new groups", RequestCode.HEART_BEAT, {}, json.dumps(heartbeat).encode()
    queues = [{"topic": TOPIC, "brokerName": "b", "queueId": n} for n in range(10_000)]
    lock = {"consumerGroup": GROUP, "clientId": "evil", "mqSet": queues}
    yield "a lock of very many queues", RequestCode.LOCK_BATCH_MQ, {}, json.dumps(lock).encode()
    change = b"\\ configBlackList=x\nstorePathEpochFile=/tmp/x"
    yield "change settings", RequestCode.UPDATE_BROKER_CONFIG, {}, change
    user = json.dumps({"password": "a-password", "userType": "Super"}).encode()
    yield "add a super user", RequestCode.AUTH_CREATE_USER, {"username": "evil"}, user


# ---- every remoting port


def at_remoting_ports(_: Cluster) -> Iterator[tuple[str, bytes]]:
    """Attacks on the reader of frames, before any authentication."""
    headers = {
        "references in a long header": b'{code:28,x:{"$ref":"$' + b".a" * (MIB // 2) + b'"}}',
        "references in a legal header": b'{code:28,x:{"$ref":"$' + b".a" * 120_000 + b'"}}',
        "a lenient header": b"{code:12,x:'" + b"x" * 250_000 + b"',opaque:9}",
        "commas": b"{" + b"," * 250_000 + b"code:12}",
        "comments": b"{" + b"/**/" * 60_000 + b"code:12}",
        "a deep header": b'{"a":' * 50_000,
        "a long number": b'{"code":' + b"9" * 250_000 + b"}",
        "many fields": b'{"code":28,"extFields":{'
        + b",".join(b'"%d":"v"' % n for n in range(20_000))
        + b"}}",
    }
    for name, header in headers.items():
        yield f"a header with {name}" if not name.startswith("a ") else name, framed(header, b"")
    for name, body in {
        "a body of great depth": b'{"clientID":' + b"[" * 1_000_000,
        "a body that decompresses without end": zlib.compress(bytes(16 * MIB), 9),
        "references in a body": b'{"a":[' + b",".join([b'{"$ref":"$.a"}'] * 50_000) + b"]}",
        "a long number in a body": b'{"clientID":' + b"1" * 2_000_000 + b"}",
    }.items():
        yield name, frame(RequestCode.HEART_BEAT, {}, body)
    yield "a frame of negative length", struct.pack(">i", -1) + bytes(100)
    yield "a frame of the greatest length", struct.pack(">I", 2**31 - 1) + bytes(100)
    proof = {"nonce": "00" * 32, "keyId": "00" * 8, "proof": "00" * 32}
    yield "a proof without a nonce", frame(MemberCode.PROVE, proof)


# ---- sidecars

CHANGES = {
    "PUT": ["config", "members", "log-level"],
    "PATCH": ["config"],
    "POST": ["promote", "handover", "fence", "unfence", "drain", "undrain", "adopt-store", "discard-store"],
}
"""Method → the paths below /v1 of what changes a process."""


def at_sidecars(_: Cluster) -> Iterator[tuple[str, bytes]]:
    """Attacks on the HTTP port of a sidecar: changes without a token, and with a wrong one."""
    for token in ("", "Authorization: Bearer wrong\r\n", "Authorization: Bearer \xff\r\n"):
        for method, paths in CHANGES.items():
            for path in paths:
                head = f"{method} /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{token}"
                data = f"{head}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}"
                yield f"{method} {path} {token.strip() or 'without a token'}", data.encode("latin-1")
    long = b"GET /live HTTP/1.1\r\nX: " + b"x" * MIB + b"\r\n\r\n"
    yield "a long HTTP header", long
    yield (
        "a long HTTP body",
        b"PUT /v1/config HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + bytes(MIB),
    )
    yield "a path to another file", b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    yield "no HTTP", bytes(1000)


PORTS: dict[str, tuple[Callable[[Cluster], Iterable[tuple[str, bytes]]], ...]] = {
    "broker": (at_remoting_ports, at_brokers),
    "nameserver": (at_remoting_ports, at_nameservers),
    "controller": (
        at_remoting_ports,
        lambda target: ((name, encode(made())) for name, made in at_controllers(target).items()),
        at_raft_peers,
    ),
    "dledger": (at_remoting_ports, at_raft_peers),
    "ha": (at_ha,),
    "sidecar": (at_sidecars,),
}
"""Kind of a port → the attacks on it."""


def attacks_on(kind: str, target: Cluster) -> list[tuple[str, bytes]]:
    """All attacks on a port of this kind: what each is, and what the stranger sends."""
    return [attack for source in PORTS[kind] for attack in source(target)]
