"""TLS of the connections that a process opens: RocketMQ's keys, its `tls.properties`, and certificates that
are replaced while the process runs.

`tls.enable` (RocketMQ's system property; `useTLS` in a configuration file, which wins) says whether a process
connects by TLS. Without either it does if its own port demands TLS (`tls.server.mode=enforcing`), as Java's
`NettyClientConfig` has it. `tls.client.certPath`, `…keyPath`, `…keyPassword`: what it presents.
`tls.client.trustCertPath`: the authorities that sign certificates of servers. With them servers are verified,
unless `tls.client.authServer=false`; Java verifies with `authServer=true` only.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from epochmq_protocol import properties
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport.file_backed_value import FileBackedValue
from epochmq_protocol.transport.server_certificates import CHECK_PERIOD_MS, with_expiry
from epochmq_protocol.transport.tls import TlsMode, TlsSettings, client_context

log = logging.getLogger(__name__)

ENABLE_KEY: Final = "tls.enable"
USE_KEY: Final = "useTLS"
FILE_KEY: Final = "tls.config.file"
ENVIRONMENT_NAME: Final = "EPOCHMQ_TLS_CONFIG"
FILE_BYTES_MAX: Final = 65_536
_CLIENT_KEYS = ("certPath", "keyPath", "keyPassword", "trustCertPath", "authServer")
SPELLINGS: Final = {
    "tlsEnable": ENABLE_KEY,
    "tlsConfigFile": FILE_KEY,
    **{f"tlsClient{key[0].upper()}{key[1:]}": f"tls.client.{key}" for key in _CLIENT_KEYS},
}
"""The spelling without dots, which resources allow → the key."""


def read_tls_file(path: str) -> dict[str, str]:
    """The keys of a `tls.properties` of RocketMQ. ConfigError: it cannot be read, or has other keys."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(FILE_KEY, path, f"a readable file ({error.strerror})") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(FILE_KEY, path, f"a file of at most {FILE_BYTES_MAX} bytes")
    try:
        found = {key.strip(): value for key, value in properties.parse(data.decode()).items()}
    except UnicodeDecodeError:
        raise ConfigError(FILE_KEY, path, "a file in UTF-8") from None
    for key in found:
        if not key.startswith("tls.") or key == FILE_KEY:
            raise ConfigError(FILE_KEY, path, f"a file with keys tls.server.* and tls.client.*, not {key}")
    return found


def with_tls_file(values: Mapping[str, str]) -> dict[str, str]:
    """These settings, with those of the file that `tls.config.file` names, which win as in Java."""
    path = values.get(FILE_KEY, values.get("tlsConfigFile", "")).strip()
    if not path:
        return dict(values)
    return {**values, **read_tls_file(path)}


def outgoing_from_properties(values: Mapping[str, str], server_mode: TlsMode) -> TlsSettings | None:
    """The TLS of connections that this process opens; None: plain ones. ConfigError: a value is neither true
    nor false, or the keys contradict each other."""
    found = {SPELLINGS.get(key, key): value.strip() for key, value in values.items()}
    enabled = _flag(found, ENABLE_KEY, default=server_mode is TlsMode.ENFORCING)
    if not _flag(found, USE_KEY, default=enabled):
        return None
    trust_path = found.get("tls.client.trustCertPath") or None
    settings = TlsSettings(
        cert_path=found.get("tls.client.certPath") or None,
        key_path=found.get("tls.client.keyPath") or None,
        key_password=found.get("tls.client.keyPassword") or None,
        trust_path=trust_path,
        auth_server=_flag(found, "tls.client.authServer", default=trust_path is not None),
    )
    check_pair(settings.cert_path, settings.key_path)
    return settings


def check_pair(cert_path: str | None, key_path: str | None) -> None:
    """ConfigError: a certificate without its key, or the other way round."""
    if bool(cert_path) != bool(key_path):
        missing, other = ("keyPath", "certPath") if cert_path else ("certPath", "keyPath")
        raise ConfigError(f"tls.client.{missing}", None, f"set together with tls.client.{other}")


def _flag(values: Mapping[str, str], key: str, *, default: bool) -> bool:
    text = values.get(key, "").lower()
    if text not in ("", "true", "false"):
        raise ConfigError(key, values[key], "true or false")
    return text == "true" if text else default


class ClientCertificates:
    """The TLS of connections that a process opens, by files that may be replaced at any time: connections
    that are opened afterwards use the new ones (`server_certificates`)."""

    def __init__(self, settings: TlsSettings, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Loads the files. ConfigError names a file that cannot be used."""
        self.settings = settings
        paths = [path for path in (settings.cert_path, settings.key_path, settings.trust_path) if path]
        self._files = FileBackedValue(
            paths, lambda: with_expiry(client_context(settings), settings.cert_path), CHECK_PERIOD_MS, now_ns
        )

    @classmethod
    def of_member(cls, settings: TlsSettings | None) -> ClientCertificates | None:
        """The certificates by which a member connects to others; None: it connects without TLS. ConfigError
        names a file that cannot be used."""
        if settings is None:
            return None
        if not settings.auth_server:
            log.warning(
                "%s=true without tls.client.trustCertPath: connections to other members are encrypted, but "
                "whoever answers at the address of one is taken for it",
                ENABLE_KEY,
            )
        return cls(settings)

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._files.current[0]

    def metric_values(self, kind: str) -> dict[str, float]:
        """Metric name → value, with `kind` as the label."""
        _, expires_s = self._files.current
        found = {f"tls_files_rejected:{kind}": float(bool(self._files.rejected))}
        if expires_s is not None:
            found[f"tls_certificate_expiry_time_seconds:{kind}"] = expires_s
        return found


def outgoing_metric_values(certificates: ClientCertificates | None, component: str) -> dict[str, float]:
    """The metrics of the certificates by which this component connects to others; empty without TLS."""
    return {} if certificates is None else certificates.metric_values(f"{component}-client")


def tls_of_environment() -> ClientCertificates | None:
    """The TLS of a command for members: the environment variable `EPOCHMQ_TLS_CONFIG` names a
    `tls.properties` with keys `tls.client.*`; None without it. ConfigError: the file cannot be used."""
    path = os.environ.get(ENVIRONMENT_NAME, "")
    if not path:
        return None
    settings = outgoing_from_properties({ENABLE_KEY: "true"} | read_tls_file(path), TlsMode.PERMISSIVE)
    return None if settings is None else ClientCertificates(settings)
