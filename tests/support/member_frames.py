"""Frames that no correct member sends, for the ports of members: calls of DLedger's Raft, and HA connections.
As many as wanted, the same ones for the same seed.

Each is made from a valid one: some of its values are replaced by values of other types, by numbers at the
ends of Java's ranges, or left out. The terms that a peer accepts stay near those of a young group, so that
the group goes on electing leaders. Members with a secret get any term, any member, and wrong proofs.
"""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from epochmq_protocol.dledger import DLedgerRequestCode as Code
from epochmq_protocol.ha_proofs import MAGIC
from epochmq_protocol.member_proofs import KEY_ID_BYTES, NONCE_BYTES, PROOF_BYTES
from epochmq_protocol.member_requests import MemberCode
from tests.support.bad_frames import LEAVES, framed

ENTRY = {
    "index": 1, "term": 1, "pos": 0, "size": 52, "magic": 1, "channel": 0, "chainCrc": 0, "bodyCrc": 0,
    "body": base64.b64encode(b"body").decode(),
}  # fmt: skip
INTEGERS = [
    -1, 0, 1, 2, 3, 48, 1 << 24, 2**31 - 1, 2**31, -(2**31), 2**53, 2**56, 2**61, 2**62, 2**63 - 1, -(2**63),
    2**63, 2**64, 10**30,
]  # fmt: skip
BODIES: dict[int, dict[str, Any]] = {
    Code.METADATA: {},
    Code.APPEND: {"body": base64.b64encode(b"\x00\x01{}").decode()},
    Code.GET: {"beginIndex": 1, "maxSize": 10, "indexList": [1]},
    Code.VOTE: {"ledgerEndIndex": 1, "ledgerEndTerm": 1, "preVote": True},
    Code.HEART_BEAT: {"epochmq": 63, "epochmqAll": 63, "epochmqRejoin": 1, "epochmqUntil": 1},
    Code.PULL: {"beginIndex": 1},
    Code.PUSH: {
        "commitIndex": 0, "type": "APPEND", "entry": ENTRY, "batchEntry": [], "totalSize": 52,
        "epochmqBlock": None, "epochmqFirstIndex": 0, "epochmqCount": 1, "epochmqMembers": {"n0": "h:1"},
    },
    Code.LEADERSHIP_TRANSFER: {"transferId": "n0", "transfereeId": "n1", "takeLeadershipLedgerIndex": 1},
    Code.INSTALL_SNAPSHOT: {
        "entry": ENTRY, "offset": 0, "size": 4, "crc": zlib.crc32(b"body"), "members": {"n0": "h:1"},
        "data": base64.b64encode(b"body").decode(),
    },
    Code.CHANGE_MEMBERS: {},
}  # fmt: skip
"""Code → the fields of a valid call, beside those of every call. A change of members names none, so that it
only asks."""


RECKLESS_TERMS = [1, 2, 9, 1000, 10**6, 2**31, 2**53, 2**62, 2**63 - 2, 2**63 - 1]


class RaftFrames:
    """A seeded source of calls for a peer of a group. `reckless`: with terms and changes of members that a
    group without a secret would take."""

    def __init__(self, seed: int, group: str, peers: Sequence[str], *, reckless: bool = False) -> None:
        self.rng = random.Random(seed)
        self._group = group
        self._peers = peers
        self._reckless = reckless

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self.call()

    def call(self) -> bytes:
        """One call with up to three wrong values."""
        rng = self.rng
        code = rng.choice(list(BODIES))
        call: Any = {
            "group": self._group,
            "remoteId": rng.choice(self._peers),
            "localId": rng.choice(self._peers),
            "leaderId": rng.choice(self._peers),
            "code": 200,
            "term": rng.choice(RECKLESS_TERMS if self._reckless else [0, 1, 2, 3]),
            "epochmq": 63,
            **BODIES[code],
        }
        if code == Code.CHANGE_MEMBERS and self._reckless:
            call |= {"peerId": rng.choice(["n0", "n9"]), "address": rng.choice(["", "127.0.0.9:9"])}
        for _ in range(rng.randint(0, 3)):
            call = self._spoil(call)
        if code == Code.CHANGE_MEMBERS and isinstance(call, dict) and not self._reckless:
            call.pop("peerId", None)  # a well-formed change is none of a stranger's frames here
        data = json.dumps(call, separators=(",", ":")).encode()
        if rng.random() < 0.05:
            at = rng.randrange(len(data) + 1)
            data = data[:at] + rng.randbytes(rng.randrange(4)) + data[at + rng.randrange(4) :]
        if rng.random() < 0.01:
            data = b'{"a":' * 50_000
        header = {"code": int(code), "flag": 0, "opaque": rng.randrange(2**31), "language": "JAVA"}
        return framed(json.dumps(header).encode(), data)

    def _spoil(self, node: Any) -> Any:
        """A copy with one value, somewhere, replaced or left out."""
        rng = self.rng
        if isinstance(node, dict) and node and rng.random() < 0.9:
            key = rng.choice(list(node))
            rest = {name: value for name, value in node.items() if name != key}
            return rest if rng.random() < 0.1 else {**rest, key: self._spoil(node[key])}
        if isinstance(node, list) and node and rng.random() < 0.8:
            return [self._spoil(node[0]), *node[1:]]
        return rng.choice(INTEGERS) if rng.random() < 0.6 else rng.choice(LEAVES)


class HAFrames:
    """A seeded source of what a replica may send on one HA connection. `numbers`: the broker ids that it
    claims; without them, ids of brokers that do not exist. `proofs`: sometimes begins with wrong proofs of
    membership."""

    def __init__(
        self, seed: int, numbers: Sequence[int] = (77, 78, -5, 2**63 - 1), *, proofs: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self._numbers = numbers
        self._proofs = proofs

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self.connection()

    def connection(self) -> bytes:
        """A handshake of a replica that does not exist, or none, and reports. Every frame may be wrong or cut
        short."""
        rng = self.rng
        number = rng.choice(self._numbers)
        frames = [struct.pack(">ihhq", rng.choice([1, 1, 1, 0, 2, 9, -1]), 0, rng.choice([0, 1]), number)]
        if rng.random() < 0.3:
            frames[0] = rng.randbytes(rng.randrange(24))
        for _ in range(rng.randrange(4)):
            offset = max(min(rng.choice(INTEGERS), 2**63 - 1), -(2**63))
            frames.append(struct.pack(">iq", rng.choice([2, 2, 2, 1, 3, 4, 99, -1]), offset))
        if self._proofs and rng.random() < 0.5:
            hello = MAGIC + rng.randbytes(NONCE_BYTES) + b"\xff" * 8
            frames[:0] = [hello, rng.randbytes(KEY_ID_BYTES + PROOF_BYTES)][: rng.randint(1, 2)]
        data = b"".join(frames)
        return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data


class ProofFrames:
    """A seeded source of what a stranger may send on one remoting connection before and after it has failed
    to prove that it is a member."""

    def __init__(self, seed: int, codes: Sequence[int]) -> None:
        self.rng = random.Random(seed)
        self._codes = codes

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self.connection()

    def connection(self) -> bytes:
        """HELLO and PROVE, in any order and with any values, requests of members, and records."""
        rng = self.rng
        frames = []
        for _ in range(rng.randint(1, 5)):
            code = rng.choice([MemberCode.HELLO, MemberCode.PROVE, MemberCode.PROVE, *self._codes])
            ext = {}
            if code in set(MemberCode):
                sizes = {"nonce": NONCE_BYTES, "keyId": KEY_ID_BYTES, "proof": PROOF_BYTES}
                ext = {name: rng.randbytes(size).hex() for name, size in sizes.items() if rng.random() < 0.9}
                if ext and rng.random() < 0.3:
                    ext[rng.choice(list(ext))] = rng.choice(["", "zz", "00" * 5000, "\ud83d\ude00", "0"])
            header = {"code": int(code), "flag": rng.choice([0, 0, 2]), "opaque": rng.randrange(2**31)}
            frames.append(framed(json.dumps({**header, "language": "JAVA", "extFields": ext}).encode(), b""))
            if rng.random() < 0.2:
                data = rng.randbytes(rng.randrange(1, 200))
                frames.append(struct.pack(">I", rng.choice([len(data), 2**31 - 1, 2**32 - 1])) + data)
        data = b"".join(frames)
        return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data
