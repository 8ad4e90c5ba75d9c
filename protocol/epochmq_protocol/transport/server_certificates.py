"""Keeps the TLS context of a server up to date with its certificate files.

The files may be replaced at any time, in place or by a link that is switched over, as Kubernetes does it for
a Secret. New connections then use the new certificates; open connections stay. Java does the same
(`FileWatchService` in NamesrvController and BrokerController).
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from epochmq_protocol import certificate_dates
from epochmq_protocol.transport.file_backed_value import FileBackedValue
from epochmq_protocol.transport.tls import TlsMode, TlsSettings, server_context

log = logging.getLogger(__name__)

CHECK_PERIOD_MS: Final = 1000
"""How often the files are checked at most. Handshakes and reads of the metrics check them."""


class ServerCertificates:
    """The certificates of one or several servers."""

    def __init__(self, settings: TlsSettings | None, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Loads the files. None: no TLS. ConfigError names a file that cannot be used."""
        self.mode = TlsMode.PERMISSIVE if settings is None else settings.mode
        self._files: FileBackedValue[tuple[ssl.SSLContext, float | None]] | None = None
        if settings is None or server_context(settings) is None:
            return
        known = settings
        paths = [path for path in (known.cert_path, known.key_path, known.trust_path) if path is not None]
        self._files = FileBackedValue(paths, lambda: _load(known), CHECK_PERIOD_MS, now_ns)

    @classmethod
    def for_ports(cls, settings: TlsSettings, *modes: TlsMode) -> ServerCertificates:
        """The certificates that ports with these modes share. Raises as the constructor, but not for
        ENFORCING without a certificate."""
        used = any(mode is not TlsMode.DISABLED for mode in modes)
        mode = TlsMode.PERMISSIVE if used else TlsMode.DISABLED
        return cls(msgspec.structs.replace(settings, mode=mode))

    @property
    def exist(self) -> bool:
        """Whether there is a certificate, and TLS is not disabled."""
        return self._files is not None

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context for the next handshake; None: TLS is disabled, or there is no certificate."""
        return None if self._files is None else self._files.current[0]

    def metric_values(self, kind: str) -> dict[str, float]:
        """Metric name → value, with `kind` as the label; empty without TLS."""
        if self._files is None:
            return {}
        _, expires_s = self._files.current
        found = {f"tls_files_rejected:{kind}": float(bool(self._files.rejected))}
        if expires_s is not None:
            found[f"tls_certificate_expiry_time_seconds:{kind}"] = expires_s
        return found


def _load(settings: TlsSettings) -> tuple[ssl.SSLContext, float | None]:
    context = server_context(settings)
    assert context is not None
    return with_expiry(context, settings.cert_path)


def with_expiry(context: ssl.SSLContext, cert_path: str | None) -> tuple[ssl.SSLContext, float | None]:
    """The context, and when its certificate expires, in seconds since 1970; None if it has none, or if that
    cannot be read."""
    if cert_path is None:
        return context, None
    try:
        return context, certificate_dates.expiry_s(Path(cert_path).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        log.warning("cannot read when the certificate %s expires: %s", cert_path, error)
        return context, None
