"""Reads lists of peers, as DLedger writes them in settings."""

from __future__ import annotations

from epochmq_protocol.dledger import is_member


def parse_peers(text: str) -> dict[str, str]:
    """Parses `n0-host:port;n1-host:port` to addresses by id. An id ends at the first dash, so a host may have
    dashes. ValueError says what is wrong."""
    peers: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, dash, address = part.partition("-")
        host, colon, port = address.rpartition(":")
        if not (name and dash and host and colon and port.isdigit()):
            raise ValueError(f"{part!r}, expected id-host:port")
        if name in peers:
            raise ValueError(f"{part!r}: the id {name} appears twice")
        peers[name] = address
    if not peers:
        raise ValueError(f"{text!r}, expected id-host:port;id-host:port;…")
    return peers


def is_valid_member(name: str, address: str | None) -> bool:
    """Whether id and address are valid in a list of peers. Without an address: yes."""
    if address is None:
        return True
    if not is_member(name, address):
        return False
    try:
        return parse_peers(f"{name}-{address}") == {name: address}
    except ValueError:
        return False
