"""Reads Secrets by name, for the users of brokers and for the brokers' own credentials. The operator needs no
right to list Secrets."""

from __future__ import annotations

import base64
import binascii
import time
from dataclasses import dataclass, field

from epochmq_operator.kube.api import Api, ApiError, object_path
from epochmq_operator.plans.objects import Ref
from epochmq_protocol.errors import EpochMQError

CACHED_S = 30.0
"""A changed Secret takes effect after this time."""
CACHED_MAX = 4096


class SecretError(EpochMQError):
    """A Secret, or a key in it, cannot be read. The text says what to do."""


@dataclass(frozen=True, slots=True)
class SecretText:
    """The text of a key, and the Secret's resourceVersion. The representation does not show the text."""

    text: str = field(repr=False)
    version: str


class SecretReader:
    """Reads keys of Secrets, each Secret once in `CACHED_S`."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._kept: dict[Ref, tuple[float, dict[str, str], str]] = {}

    async def text(self, namespace: str, name: str, key: str) -> SecretText:
        """The text of a key. SecretError if it cannot be read."""
        data, version = await self._secret(Ref("Secret", namespace, name))
        if key not in data:
            raise SecretError(f"Secret {name} has no key {key}: add it")
        try:
            return SecretText(base64.b64decode(data[key], validate=True).decode(), version)
        except (binascii.Error, ValueError):
            raise SecretError(f"the key {key} of Secret {name} is no text in UTF-8") from None

    async def _secret(self, ref: Ref) -> tuple[dict[str, str], str]:
        now = time.monotonic()
        kept = self._kept.get(ref)
        if kept is not None and now - kept[0] < CACHED_S:
            return kept[1], kept[2]
        try:
            found = await self._api.get(object_path(ref))
        except ApiError as error:
            if kept is not None and error.status not in (403, 404):
                return kept[1], kept[2]  # the API server does not respond: the Secret is as before
            self._kept.pop(ref, None)
            if error.status == 404:
                raise SecretError(f"Secret {ref.name} does not exist: create it") from None
            if error.status == 403:
                raise SecretError(
                    f"the operator may not read Secret {ref.name}: add it to the chart's value readSecrets"
                ) from None
            raise SecretError(f"cannot read Secret {ref.name}: {error}") from None
        if len(self._kept) >= CACHED_MAX:
            self._kept.clear()
        data, version = dict(found.get("data") or {}), str(found["metadata"].get("resourceVersion", ""))
        self._kept[ref] = (now, data, version)
        return data, version
