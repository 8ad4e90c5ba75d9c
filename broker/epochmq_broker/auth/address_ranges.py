# pure: addresses as text
"""Decides whether an IP address is in the range of an ACL (RocketMQ's IPAddressUtils): one address, or a
range in CIDR notation.

RocketMQ resolves a host's name in a range by DNS. Here a range holds numeric addresses only.
"""

from __future__ import annotations

import ipaddress


def is_address_or_range(text: str) -> bool:
    """Whether the text is an IP address or a range in CIDR notation."""
    head, slash, prefix = text.partition("/")
    address = _address(head)
    if address is None:
        return False
    if not slash:
        return True
    return prefix.isascii() and prefix.isdigit() and int(prefix) <= address.max_prefixlen


def is_in_range(address: str, wanted: str) -> bool:
    """Whether the address is the wanted one, or in the wanted range. A single address is compared as text."""
    head, slash, prefix = wanted.partition("/")
    if not slash:
        return address == wanted
    first, own = _address(head), _address(address)
    if first is None or own is None or not prefix.isdigit():
        return False
    shift = first.max_prefixlen - int(prefix)
    # Like RocketMQ, compare numbers: an IPv4 address is in `::/64`, too.
    return shift >= 0 and int(own) >> shift == int(first) >> shift


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    # Java reads an IPv4 address in IPv6 form as the IPv4 address.
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
