"""Signs requests as RocketMQ's clients do, without the product's own code; and the settings of a broker that
checks them."""

from __future__ import annotations

import base64
import hashlib
import hmac

from tests.support.cluster import Settings

AUTH = "org.apache.rocketmq.auth"
ROOT = ("root", "root-secret")
CHECKED: Settings = {
    "authenticationEnabled": True,
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
    "authorizationEnabled": True,
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
"""The settings of a broker that checks every request; `ROOT` may do everything there."""


def signed(ext: dict[str, str], body: bytes = b"", user: tuple[str, str] = ROOT) -> dict[str, str]:
    """The ext fields of a request with the signature of this user (name, password)."""
    fields = ext | {"AccessKey": user[0]}
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    digest = hmac.new(user[1].encode(), content, hashlib.sha1).digest()
    return fields | {"Signature": base64.b64encode(digest).decode()}
