# pure: who a broker is
"""The id that the controller has given to a broker, as text (`BrokerMetadata`, `TempBrokerMetadata`).

`brokerIdentity` holds `cluster#name#id`. While the controller is asked for an id `brokerIdentity-temp` holds
`cluster#name#id#code`: with that code the same broker may ask for the same id again, as often as it is
killed before it knows the answer.
"""

from __future__ import annotations

import msgspec

from epochmq_protocol.errors import ConfigError

SEPARATOR = "#"
ID_MAX = 2**63 - 1


class BrokerIdentity(msgspec.Struct, frozen=True):
    """Who a broker is: `id` within the group `name` of `cluster`."""

    cluster: str
    name: str
    id: int

    def encode(self) -> str:
        """As `brokerIdentity` has it."""
        return SEPARATOR.join((self.cluster, self.name, str(self.id)))


class BrokerIdApplication(msgspec.Struct, frozen=True):
    """An identity applied for; `check_code` is `address;epoch ms`."""

    identity: BrokerIdentity
    check_code: str

    def encode(self) -> str:
        """As `brokerIdentity-temp` has it."""
        return self.identity.encode() + SEPARATOR + self.check_code


def parse_identity(text: str) -> BrokerIdentity:
    """ValueError for what is none."""
    return _identity(text.split(SEPARATOR), 3)


def parse_application(text: str) -> BrokerIdApplication:
    """ValueError for what is none."""
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
    """ConfigError when a store belongs to another broker than the configuration says."""
    for key, kept, configured in (
        ("brokerClusterName", found.cluster, cluster),
        ("brokerName", found.name, name),
    ):
        if kept != configured:
            raise ConfigError(key, configured, f"{kept}, to whom {path} says that this store belongs")
