"""Signs requests, and computes the signature that a request should have (RocketMQ's AclClientRPCHook and
AclSigner).

The client adds its access key as the ext field `AccessKey`. It then joins the values of all ext fields, in
the order of their names, with the body, and adds the HMAC-SHA1 of this content under its secret key, in
Base64, as the field `Signature`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

import msgspec

from epochmq_protocol.codes import V4_9_3
from epochmq_protocol.frame import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
UNIQUE_MSG_QUERY_FLAG: Final = "_UNIQUE_KEY_QUERY"
"""A field that clients up to 4.9.3 added after they had signed the request (MixAll)."""


class SessionCredentials(msgspec.Struct, frozen=True, rename="camel"):
    """What a client signs with (SessionCredentials)."""

    access_key: str = ""
    secret_key: str = ""
    security_token: str | None = None

    def __repr__(self) -> str:
        """The credentials without their secret, for logs."""
        return f"SessionCredentials({self.access_key!r})"

    @property
    def complete(self) -> bool:
        """Whether requests can be signed."""
        return bool(self.access_key.strip() and self.secret_key.strip())


def signed_content(command: Command) -> bytes:
    """The bytes of a received request that its signature covers."""
    left_out = {SIGNATURE}
    if command.version <= V4_9_3:
        left_out.add(UNIQUE_MSG_QUERY_FLAG)
    fields = {name: value for name, value in (command.ext or {}).items() if name not in left_out}
    return _content(fields, command.body)


def signature_of(content: bytes, secret_key: str) -> str:
    """The signature of the content under the secret key."""
    digest = hmac.digest(secret_key.encode("utf-8", "replace"), content, hashlib.sha1)
    return base64.b64encode(digest).decode()


def has_signature(command: Command, secret_key: str) -> bool:
    """Whether the request carries the signature of the holder of the secret key. Takes the same time for
    every wrong signature."""
    given = (command.ext or {}).get(SIGNATURE)
    if given is None:
        return False
    expected = signature_of(signed_content(command), secret_key)
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


def sign(command: Command, credentials: SessionCredentials) -> None:
    """Adds the fields of a signed request; replaces those of another signer."""
    fields = {name: value for name, value in (command.ext or {}).items() if name != SECURITY_TOKEN}
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields.pop(SIGNATURE, None)
    command.ext = fields
    fields[SIGNATURE] = signature_of(_content(fields, command.body), credentials.secret_key)


def _content(fields: Mapping[str, str], body: bytes) -> bytes:
    names = sorted(fields, key=_java_order)
    return "".join([fields[name] for name in names]).encode("utf-8", "replace") + body


def _java_order(name: str) -> bytes:
    """Orders names as Java orders strings: by UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")
