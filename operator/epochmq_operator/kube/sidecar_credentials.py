"""Reads the certificates for admin ports with TLS (`spec.admin.tlsSecret`) and the tokens for changes
(`spec.admin.tokenSecret`). Reading a state needs no token."""

from __future__ import annotations

import base64
import math
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from epochmq_operator.kube.api import Api, ApiError, object_path
from epochmq_operator.plans.objects import Ref

CACHED_S = 60.0
"""A rotated Secret takes effect after this time."""
AGAIN_S = 5.0
"""A Secret that could not be read is read again after this time."""
MISSING_FOR_S = 120.0
"""A Secret that is missing or forbidden counts as empty this long after it was read last: a Secret that is
replaced is missing for a moment."""
CACHED_MAX = 1000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SidecarCredentials:
    """The credentials for a sidecar. The sidecar's certificate is not checked against its address, because it
    is issued for a group: whoever has a key that `ca.crt` signed belongs to the group."""

    tls: ssl.SSLContext


T = TypeVar("T")


class LastKnown(Generic[T]):
    """What was read from Secrets. A request that fails does not mean that a Secret is gone: the last value
    stays in use, because a group that seems to have no credentials is treated differently."""

    def __init__(self, api: Api, read: Callable[[dict[str, Any]], T | None]) -> None:
        self._api = api
        self._read = read
        self._kept: dict[Ref, tuple[float, T | None]] = {}
        """By Secret, what it has, and when it is read again."""
        self._read_s: dict[Ref, float] = {}
        """When each Secret was read last."""

    async def get(self, ref: Ref) -> T | None:
        """What the Secret has; None if it has nothing usable, or if it is missing or forbidden. ApiError if
        it was never read and the API server does not respond."""
        now_s = time.monotonic()
        until_s, known = self._kept.get(ref, (-math.inf, None))
        if now_s < until_s:
            return known
        try:
            found = self._read(await self._api.get(object_path(ref)))
        except ApiError as error:
            if error.status not in (403, 404):
                if ref not in self._kept:
                    raise
            elif now_s - self._read_s.get(ref, -math.inf) > MISSING_FOR_S:
                known = None
            log.warning("cannot read a Secret", secret=str(ref), namespace=ref.namespace, error=str(error))
            return self._keep(ref, known, now_s + AGAIN_S)
        except (OSError, ValueError, KeyError) as error:
            log.warning("a Secret is unusable", secret=str(ref), namespace=ref.namespace, error=repr(error))
            return self._keep(ref, known, now_s + CACHED_S)
        self._read_s[ref] = now_s
        return self._keep(ref, found, now_s + CACHED_S)

    def _keep(self, ref: Ref, value: T | None, until_s: float) -> T | None:
        if ref not in self._kept and len(self._kept) >= CACHED_MAX:
            self._kept.clear()
            self._read_s.clear()
        self._kept[ref] = until_s, value
        return value


class CredentialsCache:
    """Credentials by the name of their Secret. Each Secret is read by name, so the operator needs no right to
    list Secrets."""

    def __init__(self, api: Api) -> None:
        self._credentials: LastKnown[SidecarCredentials] = LastKnown(api, credentials_of)
        self._tokens: LastKnown[str] = LastKnown(api, token_of)

    async def credentials(self, namespace: str, name: str | None) -> SidecarCredentials | None:
        """The credentials; None if the group has none, or if they cannot be used. ApiError if they were never
        read and the API server does not respond."""
        return None if name is None else await self._credentials.get(Ref("Secret", namespace, name))

    async def token(self, namespace: str, name: str | None) -> str | None:
        """The first token of a Secret (`spec.admin.tokenSecret`), for changes through sidecars; None if the
        group has none, or the operator may not read it. ApiError if it was never read and the API server does
        not respond."""
        return None if name is None else await self._tokens.get(Ref("Secret", namespace, name))


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
