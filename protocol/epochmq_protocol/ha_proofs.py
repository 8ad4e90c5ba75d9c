# pure: bytes only
"""The proofs of membership at the start of an HA connection, before RocketMQ's own frames.

    replica: magic(8) nonce(32) ff × 8
    master:  magic(8) nonce(32) four key ids(8 each, zeros for none)
    replica: key id(8) proof(32)
    master:  proof(32)

Then everything that the replica sends travels in records (`member_proofs`), so that nobody else acknowledges
for it. What the master sends stays as it is: a MAC over the log would cost a copy of each block, which the
kernel now passes from file to socket and from socket to file.

The magic and the last bytes of the first frame are negative as a state and as an offset: a master that knows
nothing of proofs closes the connection, or takes no offset from it.
"""

from __future__ import annotations

from typing import Final

from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.member_proofs import (
    KEY_ID_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    SECRETS_MAX,
    Handshake,
    MemberSecret,
    RecordOpener,
    RecordSealer,
    common_secret,
    is_proof,
)

MAGIC: Final = b"\xffEMQ-HA1"
PURPOSE: Final = b"ha"
_TAIL: Final = b"\xff" * 8
REPLICA_HELLO_BYTES: Final = len(MAGIC) + NONCE_BYTES + len(_TAIL)
MASTER_HELLO_BYTES: Final = len(MAGIC) + NONCE_BYTES + SECRETS_MAX * KEY_ID_BYTES
REPLICA_PROOF_BYTES: Final = KEY_ID_BYTES + PROOF_BYTES


class ProofAtMaster:
    """The master's side of one connection. `is_proven`: the replica holds a secret. `is_over`: nothing more
    is awaited before the replica's frames."""

    def __init__(self, secrets: tuple[MemberSecret, ...], nonce: bytes, *, required: bool) -> None:
        self.is_proven = False
        self.is_over = False
        self._secrets = secrets
        self._nonce = nonce
        self._required = required
        self._replica_nonce = b""
        self._held = b""
        self._opener: RecordOpener | None = None

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """(what to send, what the replica has sent beyond its proof). RemoteProtocolError: the replica has no
        proof, or a wrong one, or a record is not its own."""
        if self.is_over:
            return b"", data if self._opener is None else self._opener.open(data)
        held = self._held = self._held + data
        if not self._replica_nonce:
            return self._take_hello(held)
        return self._take_proof(held)

    def _take_hello(self, held: bytes) -> tuple[bytes, bytes]:
        if held[: len(MAGIC)] != MAGIC[: len(held)]:
            if self._required:
                raise RemoteProtocolError("it has no proof of membership: set memberSecretPath there")
            self.is_over, self._held = True, b""
            return b"", held
        if len(held) < REPLICA_HELLO_BYTES:
            return b"", b""
        self._replica_nonce = held[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
        self._held = held[REPLICA_HELLO_BYTES:]
        ids = b"".join(secret.key_id for secret in self._secrets)
        answer = MAGIC + self._nonce + ids.ljust(SECRETS_MAX * KEY_ID_BYTES, b"\0")
        return answer, b""

    def _take_proof(self, held: bytes) -> tuple[bytes, bytes]:
        if len(held) < REPLICA_PROOF_BYTES:
            return b"", b""
        secret = common_secret(self._secrets, [held[:KEY_ID_BYTES]])
        if secret is None:
            raise RemoteProtocolError("it has none of the secrets of this master")
        handshake = Handshake(PURPOSE, secret, self._replica_nonce, self._nonce)
        if not is_proof(held[KEY_ID_BYTES:REPLICA_PROOF_BYTES], handshake.client_proof()):
            raise RemoteProtocolError("its proof of membership is wrong")
        self.is_proven = self.is_over = True
        self._opener = RecordOpener(handshake.client_key())
        rest, self._held = held[REPLICA_PROOF_BYTES:], b""
        return handshake.server_proof(), self._opener.open(rest)


class ProofAtReplica:
    """The replica's side of one connection. `sealer` seals what it sends, once the master has proven that it
    holds the secret."""

    def __init__(self, secrets: tuple[MemberSecret, ...], nonce: bytes) -> None:
        self.sealer: RecordSealer | None = None
        self._secrets = secrets
        self._nonce = nonce
        self._handshake: Handshake | None = None

    def hello(self) -> bytes:
        """The first bytes of the connection."""
        return MAGIC + self._nonce + _TAIL

    def receive(self, data: bytes) -> tuple[int, bytes]:
        """(bytes used, what to send). RemoteProtocolError: the master has no proof, or a wrong one."""
        if self._handshake is None:
            return self._take_hello(data)
        if len(data) < PROOF_BYTES:
            return 0, b""
        if not is_proof(data[:PROOF_BYTES], self._handshake.server_proof()):
            raise RemoteProtocolError("the master's proof of membership is wrong")
        self.sealer = RecordSealer(self._handshake.client_key())
        return PROOF_BYTES, b""

    def _take_hello(self, data: bytes) -> tuple[int, bytes]:
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise RemoteProtocolError("the master has no proof of membership: set memberSecretPath there")
        if len(data) < MASTER_HELLO_BYTES:
            return 0, b""
        ids_at = len(MAGIC) + NONCE_BYTES
        ids = [data[at : at + KEY_ID_BYTES] for at in range(ids_at, MASTER_HELLO_BYTES, KEY_ID_BYTES)]
        secret = common_secret(self._secrets, ids)
        if secret is None:
            raise RemoteProtocolError("the master has none of the secrets of this replica")
        self._handshake = Handshake(PURPOSE, secret, self._nonce, data[len(MAGIC) : ids_at])
        return MASTER_HELLO_BYTES, secret.key_id + self._handshake.client_proof()
