"""The sidecar's settings, as its properties file has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from epochmq_protocol import properties, typed_config
from epochmq_protocol.admin_api.operations import MAX_LAG_BYTES_DEFAULT, MAX_LAG_MS_DEFAULT, ReadinessLimits
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport.admin_socket import check_admin_socket_path

Port = Annotated[int, Meta(ge=1, le=65535)]
NotNegative = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]


class SidecarConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One sidecar's settings. Paths that are empty leave out what they are for."""

    bind_address: Text = "0.0.0.0"
    listen_port: Port = 9880
    admin_socket_path: Text = "/run/epochmq/admin.sock"
    """Where the process beside it listens: its own `adminSocketPath`."""
    admin_token_file: str = ""
    """Tokens, one a line; each of them will do, so that a new one can be handed out before the old one is
    taken back."""
    admin_tls_cert_file: str = ""
    admin_tls_key_file: str = ""
    admin_tls_ca_file: str = ""
    """Client certificates signed by these may do what a token may."""
    admin_tls_client_auth: Literal["optional", "require"] = "optional"
    """With a CA: whether a connection without a certificate is taken. The kubelet's probes have none."""
    admin_reads: Literal["open", "guarded"] = "open"
    """Whether reading needs a token or certificate, too; `/live` and `/ready` never do."""
    ready_max_lag_bytes: NotNegative = MAX_LAG_BYTES_DEFAULT
    ready_max_lag_ms: NotNegative = MAX_LAG_MS_DEFAULT
    """A replica that lacks more, or has lacked something for longer, is not ready."""
    socket_timeout_ms: Annotated[int, Meta(ge=10, le=60_000)] = 1000
    """How long the process may take to say how it is; after it, it is not alive."""
    credentials_period_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1000
    """How often at most token and certificates are looked at for a change."""

    @property
    def limits(self) -> ReadinessLimits:
        """What readiness is judged by."""
        return ReadinessLimits(max_lag_bytes=self.ready_max_lag_bytes, max_lag_ms=self.ready_max_lag_ms)


def load(path: str | None, overrides: Mapping[str, str] | None = None) -> tuple[SidecarConfig, list[str]]:
    """(settings, warnings) from a file, or the defaults; `overrides` win. ConfigError names key, value and
    expectation."""
    text = ""
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("--config", path, f"a readable file in UTF-8 ({error})") from None
    config, warnings = typed_config.load(SidecarConfig, {**properties.parse(text), **(overrides or {})})
    _check(config)
    return config, warnings


def _check(config: SidecarConfig) -> None:
    check_admin_socket_path(config.admin_socket_path)
    if bool(config.admin_tls_cert_file) != bool(config.admin_tls_key_file):
        raise ConfigError("adminTlsKeyFile", config.admin_tls_key_file, "set together with adminTlsCertFile")
    if config.admin_tls_ca_file and not config.admin_tls_cert_file:
        raise ConfigError(
            "adminTlsCaFile", config.admin_tls_ca_file, "nothing, or adminTlsCertFile and adminTlsKeyFile too"
        )
    if config.admin_tls_client_auth == "require" and not config.admin_tls_ca_file:
        raise ConfigError("adminTlsClientAuth", "require", "adminTlsCaFile, by which clients are checked")
    if config.admin_reads == "guarded" and not (config.admin_token_file or config.admin_tls_ca_file):
        raise ConfigError("adminReads", "guarded", "adminTokenFile or adminTlsCaFile, or nobody could read")
