"""Reads the end of validity from an X.509 certificate (RFC 5280, section 4.1). The standard library shows it
only of a peer's verified certificate."""

from __future__ import annotations

import base64
import binascii
import datetime
from typing import Final

BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
SEQUENCE, VERSION, UTC_TIME, GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
FORMATS: Final = {UTC_TIME: "%y%m%d%H%M%SZ", GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


def expiry_s(pem: str) -> float:
    """When the first certificate of a PEM text expires, in seconds since 1970. ValueError: there is none, or
    it is malformed."""
    _, found, rest = pem.partition(BEGIN)
    text, ended, _ = rest.partition(END)
    if not found or not ended:
        raise ValueError("no PEM certificate")
    try:
        der = base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"a damaged PEM certificate ({error})") from None
    _, certificate, _ = _element(der, SEQUENCE)
    _, fields, _ = _element(certificate, SEQUENCE)
    if fields[:1] == bytes([VERSION]):
        _, _, fields = _element(fields)
    for _ in ("serial number", "algorithm", "issuer"):
        _, _, fields = _element(fields)
    _, validity, _ = _element(fields, SEQUENCE)
    _, _, after = _element(validity)
    tag, text_of_time, _ = _element(after)
    if tag not in FORMATS:
        raise ValueError(f"a time with the tag {tag:#x}: expected UTCTime or GeneralizedTime")
    time = datetime.datetime.strptime(text_of_time.decode("ascii"), FORMATS[tag])
    if tag == UTC_TIME and time.year >= 2050:  # RFC 5280: two digits mean 1950 to 2049
        time = time.replace(year=time.year - 100)
    return time.replace(tzinfo=datetime.UTC).timestamp()


def _element(data: bytes, wanted: int | None = None) -> tuple[int, bytes, bytes]:
    """(tag, contents, the bytes after it) of the first DER element."""
    if len(data) < 2:
        raise ValueError("a truncated certificate")
    tag, size, at = data[0], data[1], 2
    if size & 0x80:
        at += size & 0x7F
        size = int.from_bytes(data[2:at], "big")
    if len(data) < at + size:
        raise ValueError("a truncated certificate")
    if wanted is not None and tag != wanted:
        raise ValueError(f"an element with the tag {tag:#x}: expected {wanted:#x}")
    return tag, data[at : at + size], data[at + size :]
