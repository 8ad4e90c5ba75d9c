"""How a replica connects to a master: by TLS, and with a proof that both are members.

A master that has neither may be one of an earlier release or RocketMQ's. Where both are permitted without,
the connection after one that has failed for it does without, once."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from epochmq_broker.replication.ha.client_connection import HAClientConnection
from epochmq_broker.replication.ha.tls import HandshakeError, HATls, connect_sealed
from epochmq_protocol.ha_proofs import ProofAtReplica
from epochmq_protocol.transport.member_authentication import MemberAuthentication

log = logging.getLogger(__name__)

TLS_HANDSHAKE_S: Final = 2.5  # less than CONNECT_S of a client: a master without TLS may not answer


class MasterAccess:
    """What a replica presents to masters, and what the last one has not accepted."""

    def __init__(self, tls: HATls | None, members: MemberAuthentication | None) -> None:
        """`tls`: None for plain connections. `members`: None where no member proves anything."""
        self._tls = tls
        self._members = members
        self._without_tls: str | None = None
        """The master that had no TLS at the last connection, and may be followed without."""
        self._without_proof: str | None = None
        """The master that had no proof at the last connection, and may be followed without."""

    async def connect(
        self,
        stream: HAClientConnection,
        address: str,
        host: str,
        port: int,
        tls: HATls | None,
        local_addr: tuple[str, int] | None,
    ) -> None:
        """Connects by TLS, or without it. OSError."""
        if tls is None:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: stream, host, port, local_addr=local_addr)
            return
        try:
            await connect_sealed(
                stream, tls.connecting, host, port, local_addr=local_addr, timeout_ms=TLS_HANDSHAKE_S * 1000
            )
        except HandshakeError:
            self._without_tls = None if tls.is_required else address
            raise

    def tls_for(self, address: str) -> HATls | None:
        """The TLS of the next connection; None: it is a plain one, because nothing is set, or because this
        master had no TLS at the last connection, and may be followed without."""
        without, self._without_tls = self._without_tls, None
        if self._tls is not None and without == address:
            log.warning("haTlsMode=permissive: the HA connection with the master at %s is plain", address)
            return None
        return self._tls

    def proof_for(self, address: str) -> ProofAtReplica | None:
        """The proof for the next connection; None if nobody proves anything, or if this master had none for
        the last connection, and may be followed without."""
        members, without = self._members, self._without_proof
        self._without_proof = None
        if members is None:
            return None
        if without == address:
            members.accepted_unproven(f"the master at {address}")
            return None
        return members.proof_at_replica()

    async def wait_proven(self, stream: HAClientConnection, address: str) -> None:
        """Returns when the master has proven itself, if it has to. Raises as `HAClientConnection` does."""
        if self._members is not None and not self._members.required and stream.proof is not None:
            self._without_proof = address
        await stream.wait_proven()
        self._without_proof = None
