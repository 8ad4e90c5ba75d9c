"""Reads the certificates for admin ports with TLS (`spec.admin.tlsSecret`) and the tokens for changes
(`spec.admin.tokenSecret`). Reading a state needs no token."""

from __future__ import annotations

import base64
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochmq_operator.kube.api import Api, ApiError, object_path
from epochmq_operator.plans.objects import Ref

CACHED_S = 60.0
"""A rotated Secret takes effect after this time."""
CACHED_MAX = 1000


@dataclass(frozen=True, slots=True)
class SidecarCredentials:
    """The credentials for a sidecar. The sidecar's certificate is not checked against its address, because it
    is issued for a group: whoever has a key that `ca.crt` signed belongs to the group."""

    tls: ssl.SSLContext


class CredentialsCache:
    """Credentials by the name of their Secret. Each Secret is read by name, so the operator needs no right to
    list Secrets."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._kept: dict[Ref, tuple[float, SidecarCredentials | None]] = {}
        self._tokens: dict[Ref, tuple[float, str | None]] = {}

    async def credentials(self, namespace: str, name: str | None) -> SidecarCredentials | None:
        """The credentials; None if the group has none, or if they cannot be read or used."""
        if name is None:
            return None
        ref, now = Ref("Secret", namespace, name), time.monotonic()
        kept = self._kept.get(ref)
        if kept is not None and now - kept[0] < CACHED_S:
            return kept[1]
        try:
            found: SidecarCredentials | None = credentials_of(await self._api.get(object_path(ref)))
        except (ApiError, OSError, ValueError, KeyError):
            found = None
        if len(self._kept) >= CACHED_MAX:
            self._kept.clear()
        self._kept[ref] = (now, found)
        return found

    async def token(self, namespace: str, name: str | None) -> str | None:
        """The first token of a Secret (`spec.admin.tokenSecret`), for changes through sidecars; None if the
        group has none, or the operator may not read it. ApiError if the API server does not respond."""
        if name is None:
            return None
        ref, now = Ref("Secret", namespace, name), time.monotonic()
        kept = self._tokens.get(ref)
        if kept is not None and now - kept[0] < CACHED_S:
            return kept[1]
        try:
            found = token_of(await self._api.get(object_path(ref)))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            found = None
        if len(self._tokens) >= CACHED_MAX:
            self._tokens.clear()
        self._tokens[ref] = (now, found)
        return found


def token_of(secret: dict[str, Any]) -> str | None:
    """The first token in a Secret, None if it has none."""
    try:
        text = base64.b64decode((secret.get("data") or {}).get("token", ""), validate=True).decode()
    except ValueError:
        return None
    return next((line.strip() for line in text.splitlines() if line.strip()), None)


def credentials_of(secret: dict[str, Any]) -> SidecarCredentials:
    """Reads credentials from a Secret. KeyError, ValueError or OSError if one is missing or invalid."""
    data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
    context = ssl.create_default_context(cadata=data["ca.crt"].decode())
    context.check_hostname = False
    with tempfile.TemporaryDirectory() as directory:
        certificate, key = Path(directory) / "tls.crt", Path(directory) / "tls.key"
        certificate.write_bytes(data["tls.crt"])
        key.touch(mode=0o600)
        key.write_bytes(data["tls.key"])
        context.load_cert_chain(certificate, key)
    return SidecarCredentials(context)
