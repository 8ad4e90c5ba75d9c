"""TLS on the port that also speaks plain: the settings, the contexts, and the layer between a socket and a
connection.

RocketMQ's keys (`TlsSystemConfig`): `tls.server.mode` disabled|permissive|enforcing, `tls.server.certPath`,
`…keyPath`, `…keyPassword`, `…trustCertPath`, `…authClient`, `…need.client.auth` none|optional|require;
`tls.client.*` alike. In Java's `tls.test.mode.enable=true` a server makes itself a certificate and a client
believes any; here a server without a certificate speaks plain only, and a client believes any unless
`auth_server` is set (Java: `tls.client.authServer`).

The layer drives `ssl.SSLObject` over memory buffers itself, because the first bytes of a connection have
been read by the time it is known that they are a handshake.
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

log = logging.getLogger(__name__)

E = TypeVar("E", bound=enum.Enum)

HANDSHAKE_BYTE = 0x16
READ_BYTES = 262_144


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
    """One side's TLS. Paths are PEM files; None leaves it out."""

    mode: TlsMode = TlsMode.PERMISSIVE
    """For servers only."""
    cert_path: str | None = None
    key_path: str | None = None
    key_password: str | None = None
    trust_path: str | None = None
    """Certificates by which the other side is checked."""
    client_auth: ClientAuth = ClientAuth.NONE
    """For servers only: whether to ask for a client's certificate; it is checked when `trust_path` is
    given."""
    auth_server: bool = False
    """For clients only: check the server's certificate against `trust_path` (the name in it is not checked,
    as in Java)."""


def tls_from_properties(values: Mapping[str, str]) -> tuple[TlsSettings, dict[str, str]]:
    """A server's settings from its configuration file, and the keys that are not about TLS.

    Java takes these keys from system properties or `/etc/rocketmq/tls.properties`; here they stand in the
    process's own file. ConfigError for a mode or kind of authentication that does not exist.
    """
    found = {key: value for key, value in values.items() if key.startswith("tls.")}
    rest = {key: value for key, value in values.items() if key not in found}

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


def _member(kind: type[E], key: str, value: str) -> E:
    try:
        return kind(value.lower())
    except ValueError:
        choices = ", ".join(str(member.value) for member in kind)
        raise ConfigError(key, value, f"one of {choices}") from None


def server_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """The context of a server, None when it has no certificate or TLS is disabled. ConfigError names a file
    that cannot be used."""
    if settings.mode is TlsMode.DISABLED or settings.cert_path is None:
        if settings.mode is TlsMode.ENFORCING:
            raise ConfigError(
                "tls.server.certPath", None, "a PEM certificate, since tls.server.mode is enforcing"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, settings, "tls.server")
    if settings.client_auth is not ClientAuth.NONE:
        if settings.trust_path is None:
            raise ConfigError("tls.server.trustCertPath", None, "certificates to check clients by")
        required = settings.client_auth is ClientAuth.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if settings.auth_server else ssl.CERT_NONE
    if settings.auth_server and settings.trust_path is None:
        raise ConfigError("tls.client.trustCertPath", None, "certificates to check the server by")
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
    """Between a socket and what is above it: below it is an asyncio protocol, above it looks like a
    transport.

    `on_ready` is called once, when the handshake is done; it makes the protocol above and gives it this
    layer as its transport. `on_failed` is called once instead when the handshake fails or is not done
    within `timeout_ms`.
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
        self._below: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None

    # the protocol's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there; the handshake begins."""
        # uvloop's transports are Transports in all but their class.
        self._below = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        late = TimeoutError(f"no TLS handshake within {self._timeout_s:g} s")
        self._deadline = loop.call_later(self._timeout_s, self._fail, late)
        self._shake()

    def data_received(self, data: bytes) -> None:
        """Ciphertext."""
        self._incoming.write(data)
        if self._upper is None and not self._shake():
            return
        self._read()

    def eof_received(self) -> bool:
        """The peer sends no more: without close_notify this may be a cut, but frames carry their own
        length."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._cancel_deadline()
        if self._upper is not None:
            self._upper.connection_lost(exc)
        else:
            self._report(exc or ConnectionError("closed in the TLS handshake"))

    def pause_writing(self) -> None:
        """Passed on."""
        if self._upper is not None:
            self._upper.pause_writing()

    def resume_writing(self) -> None:
        """Passed on."""
        if self._upper is not None:
            self._upper.resume_writing()

    # the transport's side

    def write(self, data: bytes) -> None:
        """Plaintext to send."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._send()

    def close(self) -> None:
        """Says goodbye and closes when all is sent."""
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's goodbye is not waited for
            self._tls.unwrap()
        self._send()
        self._below.close()

    def abort(self) -> None:
        """Closes at once."""
        self._below.abort()

    def pause_reading(self) -> None:
        """Passed on."""
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """Passed on."""
        self._below.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Unsent ciphertext."""
        return self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Passed on."""
        self._below.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the socket's, and `ssl_object`."""
        return self._tls if name == "ssl_object" else self._below.get_extra_info(name, default)

    # inside

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._send()  # the alert that says why
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
        self._send()  # key updates and the like
        if pieces and self._upper is not None:
            self._upper.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended:
            self.close()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _fail(self, error: Exception) -> None:
        log.warning("TLS with %s: %s", self._below.get_extra_info("peername"), error)
        self._cancel_deadline()
        if self._upper is None:
            self._report(error)
        self._below.close()

    def _report(self, error: Exception) -> None:
        if not self._reported:
            self._reported = True
            self._on_failed(error)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
