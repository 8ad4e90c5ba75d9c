"""Tests that a group's TLS Secret as cert-manager creates it suffices for requests to its sidecars."""

from __future__ import annotations

import base64
import datetime
import ssl
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epochmq_operator.kube import sidecar_credentials as module
from epochmq_operator.kube.api import Api, ApiError
from epochmq_operator.kube.sidecar_credentials import CredentialsCache, credentials_of


def secret() -> dict[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "orders")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files = {"ca.crt": certificate, "tls.crt": certificate, "tls.key": pem}
    return {name: base64.b64encode(value).decode() for name, value in files.items()}


def test_a_secret_without_a_token_is_accepted() -> None:
    found = credentials_of({"data": secret()})
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert not found.tls.check_hostname


@pytest.mark.parametrize("missing", ["ca.crt", "tls.crt", "tls.key"])
def test_a_secret_with_a_missing_file_is_rejected(missing: str) -> None:
    data = secret()
    del data[missing]
    with pytest.raises(KeyError):
        credentials_of({"data": data})


class Secrets:
    """An API server with one Secret; `faults` are its next responses."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] = {"data": {**secret(), "token": base64.b64encode(b"one").decode()}}
        self.faults: list[int] = []

    async def get(self, path: str) -> dict[str, Any]:
        if self.faults:
            raise ApiError(self.faults.pop(0), "a fault")
        return self.secret


class Clock:
    """A monotonic clock that a test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))


@pytest.mark.parametrize("status", [0, 429, 500, 403, 404])
async def test_a_failed_request_leaves_the_last_known_credentials_in_use(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, server = Clock(monkeypatch), Secrets()
    cache = CredentialsCache(cast(Api, server))
    first = await cache.credentials("trade", "tls")
    assert first is not None
    assert await cache.token("trade", "tls") == "one"
    clock.now_s += module.CACHED_S
    server.faults = [status] * 2
    assert await cache.credentials("trade", "tls") is first
    assert await cache.token("trade", "tls") == "one"
    clock.now_s += module.AGAIN_S
    assert await cache.credentials("trade", "tls") not in (None, first), "the Secret is read again soon"


@pytest.mark.parametrize("status", [0, 429, 500])
async def test_a_first_request_that_fails_says_nothing_about_the_credentials(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    server = Secrets()
    cache = CredentialsCache(cast(Api, server))
    server.faults = [status]
    with pytest.raises(ApiError):
        await cache.credentials("trade", "tls")
    assert await cache.credentials("trade", "tls") is not None


@pytest.mark.parametrize("status", [403, 404])
async def test_a_secret_that_stays_away_counts_as_empty(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, server = Clock(monkeypatch), Secrets()
    cache = CredentialsCache(cast(Api, server))
    assert await cache.credentials("trade", "tls") is not None
    clock.now_s += module.MISSING_FOR_S + 1
    server.faults = [status]
    assert await cache.credentials("trade", "tls") is None


async def test_a_secret_that_became_unusable_leaves_the_former_credentials_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, server = Clock(monkeypatch), Secrets()
    cache = CredentialsCache(cast(Api, server))
    first = await cache.credentials("trade", "tls")
    server.secret = {"data": {}}
    clock.now_s += module.CACHED_S
    assert await cache.credentials("trade", "tls") is first is not None
