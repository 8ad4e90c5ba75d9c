"""Serves TLS on a port that also accepts plain connections: settings, SSL contexts, and the TLS layer.

RocketMQ's keys (`TlsSystemConfig`): `tls.server.mode` disabled|permissive|enforcing, `tls.server.certPath`,
`…keyPath`, `…keyPassword`, `…trustCertPath`, `…authClient`, `…need.client.auth` none|optional|require;
`tls.client.*` alike (`outgoing_tls`). With Java's `tls.test.mode.enable=true` a server creates its own
certificate, and a client accepts any. Here a server without a certificate accepts plain connections
only, and a client accepts any certificate unless `auth_server` is set (Java: `tls.client.authServer`).

The layer drives `ssl.SSLObject` over memory buffers, because the sniffer has already read the first bytes of
a connection when it recognises a handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport.peer_warnings import PEER_WARNINGS

log = logging.getLogger(__name__)

E = TypeVar("E", bound=enum.Enum)

HANDSHAKE_BYTE = 0x16
READ_BYTES = 262_144
TLS_MIN = ssl.TLSVersion.TLSv1_2
"""The oldest version that either side accepts, whatever the machine's settings of OpenSSL allow."""


_SERVER_KEYS = ("mode", "certPath", "keyPath", "keyPassword", "trustCertPath", "need.client.auth")
_SPELLINGS = {
    "tlsServer" + "".join(part[0].upper() + part[1:] for part in key.split(".")): f"tls.server.{key}"
    for key in _SERVER_KEYS
}
"""The spelling without dots, which resources allow → the key."""


class TlsMode(enum.Enum):
    """What a server does with plain and TLS connections (RocketMQ `TlsMode`)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.Enum):
    """Whether a server asks clients for a certificate (Netty `ClientAuth`)."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of one side. Paths are PEM files; None: not used."""

    mode: TlsMode = TlsMode.PERMISSIVE
    """For servers only."""
    cert_path: str | None = None
    key_path: str | None = None
    key_password: str | None = None
    trust_path: str | None = None
    """Certificates to verify the other side with."""
    client_auth: ClientAuth = ClientAuth.NONE
    """For servers only: whether to ask for a client's certificate. It is verified when `trust_path` is
    given."""
    auth_server: bool = False
    """For clients only: verify the server's certificate with `trust_path`. As in Java, its host name is
    not verified."""


def tls_from_properties(values: Mapping[str, str]) -> tuple[TlsSettings, dict[str, str]]:
    """(TLS settings, the other keys) of a server's configuration file.

    Java reads these keys from system properties or `/etc/rocketmq/tls.properties`; here they are in the
    process's own file, as `tls.server.certPath` or, as in a broker's response to GET_BROKER_CONFIG,
    `tlsServerCertPath`. ConfigError: unknown mode or kind of client authentication.
    """
    found = {_SPELLINGS.get(key, key): value for key, value in values.items() if _is_tls_key(key)}
    rest = {key: value for key, value in values.items() if not _is_tls_key(key)}

    def text(key: str) -> str | None:
        return found.get(f"tls.server.{key}", "").strip() or None

    mode = _member(TlsMode, "tls.server.mode", text("mode") or TlsMode.PERMISSIVE.value)
    wanted = _member(
        ClientAuth, "tls.server.need.client.auth", text("need.client.auth") or ClientAuth.NONE.value
    )
    tls = TlsSettings(
        mode=mode,
        cert_path=text("certPath"),
        key_path=text("keyPath"),
        key_password=text("keyPassword"),
        trust_path=text("trustCertPath"),
        client_auth=wanted,
    )
    return tls, rest


def _is_tls_key(key: str) -> bool:
    return key.startswith("tls.") or key in _SPELLINGS


def _member(kind: type[E], key: str, value: str) -> E:
    try:
        return kind(value.lower())
    except ValueError:
        choices = ", ".join(str(member.value) for member in kind)
        raise ConfigError(key, value, f"one of {choices}") from None


def server_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """The SSL context of a server; None without a certificate or with TLS disabled. ConfigError names a
    file that cannot be used."""
    if settings.mode is TlsMode.DISABLED or settings.cert_path is None:
        if settings.mode is TlsMode.ENFORCING:
            raise ConfigError(
                "tls.server.certPath", None, "a PEM certificate, since tls.server.mode is enforcing"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = TLS_MIN
    _load(context, settings, "tls.server")
    if settings.client_auth is not ClientAuth.NONE:
        if settings.trust_path is None:
            raise ConfigError(
                "tls.server.trustCertPath", None, "a PEM file of certificates to verify clients with"
            )
        required = settings.client_auth is ClientAuth.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The SSL context of a client. ConfigError names a file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = TLS_MIN
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if settings.auth_server else ssl.CERT_NONE
    if settings.auth_server and settings.trust_path is None:
        raise ConfigError(
            "tls.client.trustCertPath", None, "a PEM file of certificates to verify the server with"
        )
    _load(context, settings, "tls.client")
    return context


def _load(context: ssl.SSLContext, settings: TlsSettings, prefix: str) -> None:
    if settings.cert_path is not None:
        try:
            context.load_cert_chain(settings.cert_path, settings.key_path, settings.key_password or "")
        except (OSError, ssl.SSLError) as error:
            files = f"{settings.cert_path} {settings.key_path}"
            raise ConfigError(
                f"{prefix}.certPath", files, f"a PEM certificate and its key ({error})"
            ) from None
    if settings.trust_path is not None:
        try:
            context.load_verify_locations(settings.trust_path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{prefix}.trustCertPath", settings.trust_path, f"PEM certificates ({error})"
            ) from None


class TlsLayer(asyncio.Protocol):
    """TLS between a socket and a protocol: an asyncio protocol towards the socket, a transport towards the
    upper protocol.

    The layer calls `on_ready` once after the handshake; `on_ready` creates the upper protocol and connects it
    to this layer. If the handshake fails or takes longer than `timeout_ms`, the layer calls `on_failed` once
    instead.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        timeout_ms: float,
        on_ready: Callable[[TlsLayer], asyncio.Protocol],
        on_failed: Callable[[Exception], None],
        server_hostname: str | None = None,
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._timeout_s = timeout_ms / 1000
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._upper: asyncio.Protocol | None = None
        self._reported = False
        self._lower: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None

    # towards the socket (asyncio.Protocol)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the socket's transport and begins the handshake."""
        # uvloop's transports have the interface of `asyncio.Transport` but not the class.
        self._lower = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        late = TimeoutError(f"no TLS handshake within {self._timeout_s:g} s")
        self._deadline = loop.call_later(self._timeout_s, self._fail, late)
        self._handshake()

    def data_received(self, data: bytes) -> None:
        """Decrypts received bytes and passes them to the upper protocol."""
        self._incoming.write(data)
        if self._upper is None and not self._handshake():
            return
        self._read()

    def eof_received(self) -> bool:
        """Closes. An end without close_notify may be a truncation, but frames carry their own length."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Reports the loss to the upper protocol, or a failed handshake."""
        self._cancel_deadline()
        if self._upper is not None:
            self._upper.connection_lost(exc)
        else:
            self._report(exc or ConnectionError("the peer closed the connection during the TLS handshake"))

    def pause_writing(self) -> None:
        """Passes it on to the upper protocol."""
        if self._upper is not None:
            self._upper.pause_writing()

    def resume_writing(self) -> None:
        """Passes it on to the upper protocol."""
        if self._upper is not None:
            self._upper.resume_writing()

    # towards the upper protocol (asyncio.Transport)

    def write(self, data: bytes) -> None:
        """Encrypts and sends bytes."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._send()

    def close(self) -> None:
        """Sends close_notify, then closes when everything is sent."""
        with contextlib.suppress(ssl.SSLError, ValueError):  # does not wait for the peer's close_notify
            self._tls.unwrap()
        self._send()
        self._lower.close()

    def abort(self) -> None:
        """Closes at once."""
        self._lower.abort()

    def pause_reading(self) -> None:
        """Passes it on to the socket."""
        self._lower.pause_reading()

    def resume_reading(self) -> None:
        """Passes it on to the socket."""
        self._lower.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Unsent ciphertext."""
        return self._lower.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Passes it on to the socket."""
        self._lower.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The socket's information, and `ssl_object`."""
        return self._tls if name == "ssl_object" else self._lower.get_extra_info(name, default)

    # inside

    def _handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._send()  # the TLS alert
            self._fail(error)
            return False
        self._send()
        self._cancel_deadline()
        self._upper = self._on_ready(self)
        return True

    def _read(self) -> None:
        pieces: list[bytes] = []
        ended = False
        try:
            while True:
                piece = self._tls.read(READ_BYTES)
                if not piece:
                    ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._send()  # key updates, for instance
        if pieces and self._upper is not None:
            self._upper.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended:
            self.close()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._lower.write(self._outgoing.read())

    def _fail(self, error: Exception) -> None:
        PEER_WARNINGS.write(log, "TLS with %s failed: %s", self._lower.get_extra_info("peername"), error)
        self._cancel_deadline()
        if self._upper is None:
            self._report(error)
        self._lower.close()

    def _report(self, error: Exception) -> None:
        if not self._reported:
            self._reported = True
            self._on_failed(error)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
