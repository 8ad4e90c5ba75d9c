# pure: the role of a broker, and which role may follow which
"""The role of a broker in its group, as one tagged value, and the table of its changes.

Each availability mode is a source of role changes:

| from \\ to | Replica | Acting | Master |
|---|---|---|---|
| Isolated | in service as a slave | in service, and the master is down | in service as the master |
| Replica | another master or epoch | the master is down | elected |
| Acting | the master is back | | |
| Master | another broker is elected | | another epoch or term |

Any other change is a fault of the caller, and raises. Nothing leads back to Isolated: a broker that was in
service stays in its group until it stops. An acting master never becomes the master: the master of its group
is configured, and comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class IsolatedRole(Struct, frozen=True):
    """Not in service yet: neither registered nor visible to clients (RIP-32's pre-online). `broker_id` 0 is
    the master."""

    broker_id: int


class ReplicaRole(Struct, frozen=True):
    """Copies the log of a master, if one is known."""

    broker_id: int


class ActingRole(Struct, frozen=True):
    """A replica that runs the special services for its master, which is down. `since_ms`: epoch
    milliseconds."""

    broker_id: int
    since_ms: int


class MasterRole(Struct, frozen=True):
    """The master. `epoch`: that of its mastership under controllers, else 0."""

    epoch: int = 0


Role = IsolatedRole | ReplicaRole | ActingRole | MasterRole

NEXT_ROLES: Final[Mapping[type[Role], tuple[type[Role], ...]]] = {
    IsolatedRole: (ReplicaRole, ActingRole, MasterRole),
    ReplicaRole: (ReplicaRole, ActingRole, MasterRole),
    ActingRole: (ReplicaRole,),
    MasterRole: (ReplicaRole, MasterRole),
}
"""The roles that may follow each role."""


class IllegalRoleTransitionError(Exception):
    """A role that may not follow the present one: a fault of this program."""


class RoleMachine:
    """The role of one broker."""

    def __init__(self, role: Role) -> None:
        self.role = role

    def become(self, role: Role) -> None:
        """Takes another role. Raises IllegalRoleTransitionError, and keeps the present role then."""
        if type(role) not in NEXT_ROLES[type(self.role)]:
            raise IllegalRoleTransitionError(f"a broker that is {self.role} cannot become {role}")
        self.role = role
