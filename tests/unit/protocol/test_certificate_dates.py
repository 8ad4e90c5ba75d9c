"""The end of a certificate's validity is read as the library `cryptography` reads it."""

from __future__ import annotations

import base64
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epochmq_protocol import certificate_dates


def certificate(expires: datetime.datetime) -> bytes:
    """A self-signed certificate in PEM that expires then."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n" * 60)] * 3)  # a length of two bytes
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    signed = (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(expires)
        .sign(key, hashes.SHA256())
    )
    return signed.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("year", [1965, 1999, 2026, 2049, 2050, 2068, 9999])
def test_the_time_is_exact_in_both_forms(year: int) -> None:
    expires = datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC)
    pem = certificate(expires).decode()
    assert certificate_dates.expiry_s(pem) == expires.timestamp()
    assert certificate_dates.expiry_s(f"leaf\n{pem}{certificate(expires.replace(month=1)).decode()}") == (
        expires.timestamp()
    )


def test_damaged_certificates_are_rejected() -> None:
    pem = certificate(datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)).decode()
    for text in ("", "x", pem.split("-----END")[0], pem.replace("M", "*")):
        with pytest.raises(ValueError, match="PEM certificate"):
            certificate_dates.expiry_s(text)
    der = base64.b64decode("".join(pem.splitlines()[1:-1]))
    for size in range(len(der)):
        body = base64.b64encode(der[:size]).decode()
        with pytest.raises(ValueError, match=r"certificate|element|time"):
            certificate_dates.expiry_s(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
