# pure: the identity of a broker
"""Encodes and parses the identity that the controllers gave to a broker (RocketMQ's `BrokerMetadata` and
`TempBrokerMetadata`).

The file `brokerIdentity` holds `cluster#name#id`. While the broker applies for an id, `brokerIdentity-temp`
holds `cluster#name#id#code`. With that code the broker may apply for the same id again if it was killed
before the response arrived.
"""

from __future__ import annotations

import msgspec

from epochmq_protocol.errors import ConfigError

SEPARATOR = "#"
ID_MAX = 2**63 - 1


class BrokerIdentity(msgspec.Struct, frozen=True):
    """The identity of a broker: `id` within the group `name` of `cluster`."""

    cluster: str
    name: str
    id: int

    def encode(self) -> str:
        """The content of `brokerIdentity`."""
        return SEPARATOR.join((self.cluster, self.name, str(self.id)))


class BrokerIdApplication(msgspec.Struct, frozen=True):
    """An application for an identity. `check_code` is `address;epoch milliseconds`."""

    identity: BrokerIdentity
    check_code: str

    def encode(self) -> str:
        """The content of `brokerIdentity-temp`."""
        return self.identity.encode() + SEPARATOR + self.check_code


def parse_identity(text: str) -> BrokerIdentity:
    """Parses the content of `brokerIdentity`. Raises ValueError."""
    return _identity(text.split(SEPARATOR), 3)


def parse_application(text: str) -> BrokerIdApplication:
    """Parses the content of `brokerIdentity-temp`. Raises ValueError."""
    parts = text.split(SEPARATOR)
    identity = _identity(parts[:3], 3)
    if len(parts) != 4 or not parts[3]:
        raise ValueError(f"{text[:100]!r} is not cluster#name#id#code")
    return BrokerIdApplication(identity, parts[3])


def _identity(parts: list[str], count: int) -> BrokerIdentity:
    if len(parts) != count or not all(parts) or not parts[2].isdecimal() or int(parts[2]) > ID_MAX:
        raise ValueError(f"{SEPARATOR.join(parts)[:100]!r} is not cluster#name#id")
    return BrokerIdentity(parts[0], parts[1], int(parts[2]))


def check(found: BrokerIdentity, cluster: str, name: str, path: str) -> None:
    """Raises ConfigError if the store belongs to another broker than the configuration names."""
    for key, kept, configured in (
        ("brokerClusterName", found.cluster, cluster),
        ("brokerName", found.name, name),
    ):
        if kept != configured:
            raise ConfigError(key, configured, f"{kept}, because {path} says that the store belongs to it")
