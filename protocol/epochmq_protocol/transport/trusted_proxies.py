# pure: addresses in, a decision out
"""Decides which addresses may send a PROXY protocol header, by which they say who their client is.

Access control compares that address with those of an ACL, and the log shows it. RocketMQ believes the header
of every client.
"""

from __future__ import annotations

import ipaddress
from typing import Final

import msgspec

from epochmq_protocol.errors import ConfigError

KEY: Final = "proxyProtocolFrom"
EVERYBODY: Final = "*"

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies(msgspec.Struct, frozen=True):
    """The load balancers whose PROXY protocol headers count."""

    networks: tuple[_Network, ...] = ()
    everybody: bool = False

    def includes(self, address: str) -> bool:
        """Whether a peer at this address may send a header."""
        if self.everybody:
            return True
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return any((mapped or found) in network for network in self.networks)


TRUST_EVERYBODY: Final = TrustedProxies(everybody=True)


def parse_trusted_proxies(text: str) -> TrustedProxies:
    """The value of the key: addresses and ranges (CIDR), separated by commas; `*` for everybody; nothing for
    nobody. Raises ConfigError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == [EVERYBODY]:
        return TRUST_EVERYBODY
    try:
        return TrustedProxies(tuple(ipaddress.ip_network(word, strict=False) for word in words))
    except ValueError as error:
        raise ConfigError(KEY, text, f"addresses or ranges such as 10.0.0.0/8, or * ({error})") from None
