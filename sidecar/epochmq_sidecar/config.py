"""Reads the sidecar's settings from a properties file."""

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
    """One sidecar's settings. An empty path disables what it is for."""

    bind_address: Text = "0.0.0.0"
    listen_port: Port = 9880
    admin_socket_path: Text = "/run/epochmq/admin.sock"
    """The admin socket of the process: the same as in that process's configuration."""
    admin_token_file: str = ""
    """Tokens, one per line. All of them are valid, so that a new one can be distributed before the old one is
    removed."""
    admin_tls_cert_file: str = ""
    admin_tls_key_file: str = ""
    admin_tls_ca_file: str = ""
    """A client certificate signed by one of these authorizes as a token does."""
    admin_tls_client_auth: Literal["optional", "require"] = "optional"
    """With a CA file: whether connections without a certificate are accepted. The kubelet's probes have
    none."""
    admin_reads: Literal["open", "guarded"] = "open"
    """`guarded`: reads need a token or certificate, too; `/live` and `/ready` never do."""
    ready_max_lag_bytes: NotNegative = MAX_LAG_BYTES_DEFAULT
    ready_max_lag_ms: NotNegative = MAX_LAG_MS_DEFAULT
    """A replica that lacks more bytes, or has lacked any for longer, is not ready."""
    socket_timeout_ms: Annotated[int, Meta(ge=10, le=60_000)] = 1000
    """The process must report its state within this time; otherwise it counts as not alive."""
    credentials_period_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1000
    """The minimum time between two checks whether token and certificate files have changed."""

    @property
    def limits(self) -> ReadinessLimits:
        """The lag up to which a replica is ready."""
        return ReadinessLimits(max_lag_bytes=self.ready_max_lag_bytes, max_lag_ms=self.ready_max_lag_ms)


def load(path: str | None, overrides: Mapping[str, str] | None = None) -> tuple[SidecarConfig, list[str]]:
    """Reads (settings, warnings) from a file, or returns the defaults. `overrides` take precedence.
    ConfigError names key, value and expected values."""
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
            "adminTlsCaFile",
            config.admin_tls_ca_file,
            "set together with adminTlsCertFile and adminTlsKeyFile",
        )
    if config.admin_tls_client_auth == "require" and not config.admin_tls_ca_file:
        raise ConfigError("adminTlsClientAuth", "require", "set together with adminTlsCaFile")
    if config.admin_reads == "guarded" and not (config.admin_token_file or config.admin_tls_ca_file):
        raise ConfigError("adminReads", "guarded", "adminTokenFile or adminTlsCaFile, or nobody could read")
