# pure: bytes only
"""The proofs by which the members of a group authenticate each other, and the seal of what they send.

Members share a secret. At the start of a connection both sides send a nonce and then prove that they hold the
secret: an HMAC-SHA256 over both nonces, which says whose proof it is. From the secret and the nonces both
derive a key for each direction. What follows travels in records:

    length(4) | MAC(16) | bytes

The MAC is a truncated HMAC-SHA256 over the number of the record in its direction, and its bytes. So no record
can be changed, repeated, left out or moved to another connection. The bytes are not encrypted.

A file holds up to `SECRETS_MAX` secrets, one on each line. The connecting side uses its first secret that the
other side holds, too. A key id, which tells secrets apart, says nothing about a random secret.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

from epochmq_protocol.errors import RemoteProtocolError

SECRET_CHARS_MIN: Final = 32
SECRETS_MAX: Final = 4
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
MAC_BYTES: Final = 16
RECORD_BYTES_MAX: Final = 65_536
"""The most bytes of a record: so many are held before their MAC is checked."""
_HEAD_BYTES: Final = 4 + MAC_BYTES
_hmac = hmac.digest


class MemberSecret(msgspec.Struct, frozen=True):
    """One secret, and the id that tells it from others."""

    value: bytes
    key_id: bytes

    def __repr__(self) -> str:
        """Without the secret, for logs."""
        return f"MemberSecret({self.key_id.hex()})"


def parse_secrets(text: str) -> tuple[MemberSecret, ...]:
    """The secrets of a file: one on each line; empty lines do not count. ValueError says what is wrong, and
    names no secret."""
    lines = [line.strip() for line in text.splitlines()]
    values = [line.encode() for line in lines if line]
    if not 1 <= len(values) <= SECRETS_MAX:
        raise ValueError(f"it has {len(values)} secrets, expected 1 to {SECRETS_MAX}, one on each line")
    if len(set(values)) < len(values):
        raise ValueError("it has the same secret twice")
    if (shortest := min(map(len, values))) < SECRET_CHARS_MIN:
        raise ValueError(f"a secret has {shortest} characters, expected at least {SECRET_CHARS_MIN}")
    return tuple(MemberSecret(value, _key_id(value)) for value in values)


def _key_id(value: bytes) -> bytes:
    return hashlib.sha256(b"epochmq member key id\n" + value).digest()[:KEY_ID_BYTES]


def common_secret(secrets: tuple[MemberSecret, ...], offered: list[bytes]) -> MemberSecret | None:
    """The first of these secrets whose id the peer offers."""
    return next((secret for secret in secrets if secret.key_id in offered), None)


class Handshake:
    """What both sides of one connection know after the nonces. `purpose` tells the kinds of connections
    apart."""

    def __init__(
        self, purpose: bytes, secret: MemberSecret, client_nonce: bytes, server_nonce: bytes
    ) -> None:
        assert len(client_nonce) == len(server_nonce) == NONCE_BYTES
        self.secret = secret
        self._value = secret.value
        self._transcript = client_nonce + server_nonce + secret.key_id + purpose

    def client_proof(self) -> bytes:
        """The proof of the side that has opened the connection."""
        return self._derive(b"client proof\n")

    def server_proof(self) -> bytes:
        """The proof of the other side."""
        return self._derive(b"server proof\n")

    def client_key(self) -> bytes:
        """The key of what the opening side sends."""
        return self._derive(b"client key\n")

    def server_key(self) -> bytes:
        """The key of what the other side sends."""
        return self._derive(b"server key\n")

    def _derive(self, label: bytes) -> bytes:
        return _hmac(self._value, b"epochmq member 1 " + label + self._transcript, "sha256")


def is_proof(given: bytes, expected: bytes) -> bool:
    """Whether a proof is the expected one. Takes the same time for every wrong proof."""
    return hmac.compare_digest(given, expected)


class RecordSealer:
    """Makes the records of one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def seal(self, data: bytes) -> bytes:
        """The records with these bytes."""
        if len(data) <= RECORD_BYTES_MAX:
            return self._record(data)
        return b"".join(
            self._record(data[at : at + RECORD_BYTES_MAX]) for at in range(0, len(data), RECORD_BYTES_MAX)
        )

    def _record(self, data: bytes) -> bytes:
        mac = _hmac(self._key, self._count.to_bytes(8, "big") + data, "sha256")[:MAC_BYTES]
        self._count += 1
        return len(data).to_bytes(4, "big") + mac + data


class RecordOpener:
    """Checks the records of one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        self._rest = b""

    def open(self, data: bytes) -> bytes:
        """The bytes of the records that are complete now. RemoteProtocolError: a record is not the peer's, or
        is too long."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        opened: list[bytes] = []
        while end - at >= _HEAD_BYTES:
            size = int.from_bytes(data[at : at + 4], "big")
            if size > RECORD_BYTES_MAX:
                raise RemoteProtocolError(f"record of {size} bytes: expected at most {RECORD_BYTES_MAX}")
            start = at + _HEAD_BYTES
            stop = start + size
            if stop > end:
                break
            payload = data[start:stop]
            mac = _hmac(self._key, self._count.to_bytes(8, "big") + payload, "sha256")[:MAC_BYTES]
            if not hmac.compare_digest(mac, data[at + 4 : start]):
                raise RemoteProtocolError(f"record {self._count} has another MAC than a member's")
            self._count += 1
            opened.append(payload)
            at = stop
        self._rest = data[at:]
        return opened[0] if len(opened) == 1 else b"".join(opened)
