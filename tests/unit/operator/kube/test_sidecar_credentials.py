"""Tests that a group's TLS Secret as cert-manager creates it suffices for requests to its sidecars."""

from __future__ import annotations

import base64
import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epochmq_operator.kube.sidecar_credentials import credentials_of


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
