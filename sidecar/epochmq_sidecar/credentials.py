"""Loads the tokens and certificates that authorize clients, and the server's certificate."""

from __future__ import annotations

import hashlib
import hmac
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport.file_backed_value import FileBackedValue
from epochmq_sidecar.config import SidecarConfig

TOKENS_MAX: Final = 8
TOKEN_MIN_CHARS: Final = 16


class Tokens:
    """The valid bearer tokens."""

    def __init__(self, config: SidecarConfig) -> None:
        """Raises ConfigError if the file is unusable."""
        path = config.admin_token_file
        self._digests: FileBackedValue[tuple[bytes, ...]] | None = None
        if path:
            self._digests = FileBackedValue([path], lambda: _read_tokens(path), config.credentials_period_ms)

    @property
    def exist(self) -> bool:
        """Whether a token file is configured."""
        return self._digests is not None

    def accepts(self, token: str) -> bool:
        """Whether the token is valid. The comparison takes constant time."""
        if self._digests is None:
            return False
        given = hashlib.sha256(token.encode()).digest()
        matches = [hmac.compare_digest(given, digest) for digest in self._digests.current]
        return any(matches)


def _read_tokens(path: str) -> tuple[bytes, ...]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("adminTokenFile", path, f"a readable file ({error})") from None
    tokens = [line.strip() for line in lines if line.strip()]
    if not 1 <= len(tokens) <= TOKENS_MAX:
        raise ConfigError("adminTokenFile", path, f"1 to {TOKENS_MAX} tokens, one a line")
    if min(map(len, tokens)) < TOKEN_MIN_CHARS:
        raise ConfigError("adminTokenFile", path, f"tokens of at least {TOKEN_MIN_CHARS} characters")
    return tuple(hashlib.sha256(token.encode()).digest() for token in tokens)


def server_context(
    config: SidecarConfig, now_ns: Callable[[], int] = time.monotonic_ns
) -> ssl.SSLContext | None:
    """Builds the TLS context to listen with; None without a certificate. Each handshake uses the certificates
    that are current then. Raises ConfigError if they are unusable."""
    if not config.admin_tls_cert_file:
        return None
    paths = (config.admin_tls_cert_file, config.admin_tls_key_file, config.admin_tls_ca_file)
    current_context = FileBackedValue(
        [path for path in paths if path], lambda: _make_context(config), config.credentials_period_ms, now_ns
    )
    listening = _make_context(config)

    def use_current(
        connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext
    ) -> None:
        connection.context = current_context.current

    listening.sni_callback = use_current  # called for every handshake, with or without a server name
    return listening


def _make_context(config: SidecarConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # No session tickets: a resumed session would not be checked against the current certificates.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    cert, key, ca = config.admin_tls_cert_file, config.admin_tls_key_file, config.admin_tls_ca_file
    try:
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "adminTlsCertFile", f"{cert} {key}", f"a PEM certificate and its key ({error})"
        ) from None
    if ca:
        try:
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("adminTlsCaFile", ca, f"PEM certificates ({error})") from None
        required = config.admin_tls_client_auth == "require"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context
