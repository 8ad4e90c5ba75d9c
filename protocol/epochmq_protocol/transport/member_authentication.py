"""Proves to other members that this process is one, and demands the same of them (`member_proofs`).

With `required` a request of `member_requests` is served to members only, and sent to members only. Without it
the members prove themselves to each other, and peers without a proof are served, too: they are counted, and
the log names them. That is the state while members get their secret one after another, and while RocketMQ's
processes are members.

The file of the secrets is read again when it changes. A connection remains what it has been proven to be.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Awaitable, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Final

from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConfigError, ConnectError, FastPathMiss, RequestError
from epochmq_protocol.frame import Command, encode, request, response
from epochmq_protocol.ha_proofs import ProofAtMaster, ProofAtReplica
from epochmq_protocol.headers_controller import LEASE_EPOCH_FIELD
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
    parse_secrets,
)
from epochmq_protocol.member_requests import SENT_TO_MEMBERS, MemberCode
from epochmq_protocol.transport import port_counts
from epochmq_protocol.transport.connection import FastRequestHandler, RemotingConnection, RequestHandler
from epochmq_protocol.transport.descriptors import RejectionCounter
from epochmq_protocol.transport.file_backed_value import FileBackedValue

log = logging.getLogger(__name__)

PATH_KEY: Final = "memberSecretPath"
ALLOW_KEY: Final = "allowUnauthenticatedMembers"
ENVIRONMENT_NAME: Final = "EPOCHMQ_MEMBER_SECRET"
PURPOSE: Final = b"remoting"
RELOAD_MS: Final = 1000
_NONCE, _PROOF, _KEY_ID, _KEY_IDS = "nonce", "proof", "keyId", "keyIds"
_HELLO_ATTRIBUTE: Final = "member nonces"
_UNWANTED_MODE: Final = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
FILE_BYTES_MAX: Final = 4096


def load_secrets(path: str) -> tuple[MemberSecret, ...]:
    """The secrets of a file. ConfigError: it cannot be read, others can read it, or its content is
    invalid."""
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(Path(path).stat().st_mode)
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(PATH_KEY, path, f"a readable file ({error.strerror})") from None
    if mode & _UNWANTED_MODE:
        raise ConfigError(
            PATH_KEY, path, f"a file with the rights 0600, not {mode:04o}: run chmod 0600 {path}"
        )
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(PATH_KEY, path, f"a file of at most {FILE_BYTES_MAX} bytes")
    try:
        return parse_secrets(text.decode("ascii"))
    except UnicodeDecodeError:
        raise ConfigError(PATH_KEY, path, "secrets of printable ASCII characters") from None
    except ValueError as error:
        raise ConfigError(PATH_KEY, path, f"a file of secrets ({error})") from None


def guarded(
    members: MemberAuthentication | None, handlers: Mapping[int, RequestHandler], codes: Set[int]
) -> Mapping[int, RequestHandler]:
    """These handlers, those of `codes` for members only; without `members` as they are."""
    return handlers if members is None else members.guard(handlers, codes)


def members_of_environment() -> MemberAuthentication | None:
    """The membership of a command: the environment variable `EPOCHMQ_MEMBER_SECRET` names the file of its
    secret; None without it. ConfigError: the file cannot be used."""
    path = os.environ.get(ENVIRONMENT_NAME, "")
    return MemberAuthentication(path, required=True) if path else None


class MemberAuthentication:
    """The membership of this process."""

    def __init__(self, path: str, *, required: bool) -> None:
        """Reads the secrets. ConfigError: they cannot be used."""
        self.required = required
        self._secrets = FileBackedValue([path], lambda: load_secrets(path), RELOAD_MS)
        self._accepted = RejectionCounter()
        self._rejected = RejectionCounter()
        if not required:
            log.warning("%s=true: peers without a proof of membership are accepted as members", ALLOW_KEY)

    @classmethod
    def of(cls, path: str, *, allow_unauthenticated: bool) -> MemberAuthentication | None:
        """The membership by these settings; None without a file of secrets: nobody proves anything.
        ConfigError: the file cannot be used."""
        return cls(path, required=not allow_unauthenticated) if path else None

    @property
    def secrets(self) -> tuple[MemberSecret, ...]:
        """The secrets now, the one to use first at the beginning."""
        return self._secrets.current

    # HA connections

    def proof_at_master(self) -> ProofAtMaster:
        """The master's side of a new HA connection."""
        return ProofAtMaster(self.secrets, secrets.token_bytes(NONCE_BYTES), required=self.required)

    def proof_at_replica(self) -> ProofAtReplica:
        """The replica's side of a new HA connection."""
        return ProofAtReplica(self.secrets, secrets.token_bytes(NONCE_BYTES))

    def stranger_rejected(self) -> None:
        """Counts an HA connection without a proof, or with a wrong one."""
        port_counts.strangers_rejected += 1

    def accepted_unproven(self, remote: str) -> None:
        """Counts an HA connection that is a member's without a proof, and says so in the log."""
        port_counts.unproven_requests += 1
        log.warning("%s=true: the HA connection with %s has no proof of membership", ALLOW_KEY, remote)

    # the side that accepts connections

    def guard(self, handlers: Mapping[int, RequestHandler], codes: Set[int]) -> dict[int, RequestHandler]:
        """These handlers, those of `codes` for members only, and the handlers of the proof."""
        guarded = {code: self.guard_one(handlers[code]) for code in handlers.keys() & codes}
        return {**handlers, **guarded, **self.handlers()}

    def guard_fast(self, fast: Mapping[bytes, FastRequestHandler]) -> dict[bytes, FastRequestHandler]:
        """These fast handlers, for members only: the others' requests take the ordinary path."""
        return {start: partial(_serve_fast, handler) for start, handler in fast.items()}

    def handlers(self) -> dict[int, RequestHandler]:
        """The handlers of the proof."""
        return {MemberCode.HELLO: self._hello, MemberCode.PROVE: self._prove}

    def check(self, connection: RemotingConnection, code: int) -> None:
        """RequestError NO_PERMISSION: only members may make this request, and its sender is not known to be
        one."""
        if connection.member is not None:
            return
        if not self.required:
            port_counts.unproven_requests += 1
            if count := self._accepted.add():
                log.warning(
                    "%s=true: accepted %d requests without a proof of membership, request %d of %s",
                    ALLOW_KEY,
                    count,
                    code,
                    connection.remote,
                )
            return
        port_counts.strangers_rejected += 1
        if count := self._rejected.add():
            log.warning(
                "rejected %d requests without a proof of membership, request %d of %s",
                count,
                code,
                connection.remote,
            )
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"request {code} is for members of this cluster, and this connection has no proof of membership: "
            f"set {PATH_KEY} on the sender; commands of epochmq take the file from {ENVIRONMENT_NAME}",
        )

    def guard_one(self, handler: RequestHandler) -> RequestHandler:
        """The handler, for members only."""

        def serve(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            self.check(connection, command.code)
            return handler(connection, command)

        return serve

    def _hello(self, connection: RemotingConnection, command: Command) -> Command:
        """20017: responds with a nonce, and the ids of the secrets."""
        client_nonce = _hex(command, _NONCE, NONCE_BYTES)
        if connection.member is not None or _HELLO_ATTRIBUTE in connection.attributes:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "the proof of membership has begun already")
        nonce = secrets.token_bytes(NONCE_BYTES)
        connection.attributes[_HELLO_ATTRIBUTE] = (client_nonce, nonce)
        ids = ",".join(secret.key_id.hex() for secret in self.secrets)
        return response(command, ResponseCode.SUCCESS, ext={_NONCE: nonce.hex(), _KEY_IDS: ids})

    def _prove(self, connection: RemotingConnection, command: Command) -> Command | None:
        """20018: checks the proof, responds with the own one, and seals the connection."""
        nonces = connection.attributes.pop(_HELLO_ATTRIBUTE, None)
        if nonces is None:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "no proof of membership has begun")
        key_id, proof = (
            _hex(command, _KEY_ID, KEY_ID_BYTES),
            _hex(command, _PROOF, PROOF_BYTES),
        )
        secret = common_secret(self.secrets, [key_id])
        handshake = None if secret is None else Handshake(PURPOSE, secret, *nonces)
        if handshake is None or not is_proof(proof, handshake.client_proof()):
            port_counts.strangers_rejected += 1
            if count := self._rejected.add():
                log.warning("rejected %d proofs of membership, one of %s", count, connection.remote)
            raise RequestError(ResponseCode.NO_PERMISSION, "the proof of membership is wrong")
        own = response(command, ResponseCode.SUCCESS, ext={_PROOF: handshake.server_proof().hex()})
        connection.write(encode(own))
        connection.seal(
            RecordSealer(handshake.server_key()),
            RecordOpener(handshake.client_key()),
            handshake.secret.key_id.hex(),
        )
        return None

    # the side that opens connections

    async def prove(self, connection: RemotingConnection, timeout_ms: float) -> None:
        """Proves the membership on a new connection, if the peer can check it: afterwards the connection is
        sealed, and its peer known to be a member. ConnectError: the peer's proof is wrong, or the peer is not
        ready."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        hello = await connection.call(request(MemberCode.HELLO, ext={_NONCE: nonce.hex()}), timeout_ms)
        if hello.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return
        if hello.code != ResponseCode.SUCCESS:
            raise ConnectError(f"{connection.remote} cannot prove its membership now: {hello.remark}")
        server_nonce = _hex(hello, _NONCE, NONCE_BYTES)
        ids = (hello.ext or {}).get(_KEY_IDS, "").split(",")[:SECRETS_MAX]
        secret = common_secret(self.secrets, [_bytes(one) for one in ids])
        if secret is None:
            log.info(
                "%s is no member of this cluster: it has none of the secrets of this process",
                connection.remote,
            )
            return
        handshake = Handshake(PURPOSE, secret, nonce, server_nonce)
        ext = {_KEY_ID: secret.key_id.hex(), _PROOF: handshake.client_proof().hex()}
        proven = await connection.call(request(MemberCode.PROVE, ext=ext), timeout_ms)
        if proven.code != ResponseCode.SUCCESS:
            raise ConnectError(f"{connection.remote} rejects the proof of membership: {proven.remark}")
        if not is_proof(_hex(proven, _PROOF, PROOF_BYTES), handshake.server_proof()):
            raise ConnectError(f"{connection.remote} has no proof of membership")
        connection.seal(
            RecordSealer(handshake.client_key()), RecordOpener(handshake.server_key()), secret.key_id.hex()
        )
        connection.member = secret.key_id.hex()

    def may_send(self, connection: RemotingConnection, command: Command) -> bool:
        """Whether this request may be sent to this peer: some are for members only."""
        return connection.member is not None or not self.required or not is_for_members(command)


def is_for_members(command: Command) -> bool:
    """Whether members send this request to members only. A heartbeat is, if it requests a lease: nameservers
    get the others."""
    if command.code == RequestCode.BROKER_HEARTBEAT:
        return command.ext is not None and LEASE_EPOCH_FIELD in command.ext
    return command.code in SENT_TO_MEMBERS


def _serve_fast(
    handler: FastRequestHandler, connection: RemotingConnection, header: bytes, body: bytes
) -> bytes | None:
    if connection.member is None:
        raise FastPathMiss("not from a proven member")
    return handler(connection, header, body)


def _hex(command: Command, name: str, size: int) -> bytes:
    value = _bytes((command.ext or {}).get(name, ""))
    if len(value) != size:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{name}: expected {size} bytes in hexadecimal")
    return value


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
