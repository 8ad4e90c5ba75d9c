"""A command that shows the members of a Raft group, or changes them on request of a person: the part that
`epochmq controller members` and `epochmq broker members` share. The requests are in
`epochmq_protocol.transport.group_members`."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from epochmq_dledger.peer_addresses import parse_peers
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.group_members import (
    CHANGE_TIMEOUT_S,
    GroupMembers,
    MemberChange,
    MembersClient,
    MembersError,
)
from epochmq_protocol.transport.member_authentication import members_of_environment
from epochmq_protocol.transport.outgoing_tls import tls_of_environment

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


@dataclass(frozen=True)
class MembersCommand:
    """A command of this kind."""

    name: str
    usage: str
    members: MembersClient

    def run(self, arguments: list[str]) -> int:
        """Runs the command. Returns 0 if it succeeded, 1 if it failed, 2 for invalid arguments."""
        if "--help" in arguments or "-h" in arguments:
            print(self.usage, end="")
            return EXIT_OK
        try:
            address, wanted = parse(arguments)
        except ValueError as error:
            print(f"{self.name}: {error}\n{self.usage}", end="", file=sys.stderr)
            return EXIT_USAGE
        try:
            found = asyncio.run(self._change_within_timeout(address, wanted))
        except (MembersError, EpochMQError) as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return EXIT_FAILED
        for name, where in sorted(found.members.items()):
            print(f"{name}  {where}" + ("  leader" if name == found.leader else ""))
        return EXIT_OK

    async def _change_within_timeout(self, address: str, wanted: MemberChange) -> GroupMembers:
        try:
            members, tls = members_of_environment(), tls_of_environment()
            async with (
                asyncio.timeout(CHANGE_TIMEOUT_S),
                RemotingClient(members=members, tls=tls) as client,
            ):
                return await self.members.change(client, address, wanted)
        except TimeoutError:
            raise MembersError(
                f"timed out after {CHANGE_TIMEOUT_S:.0f} s; the change may still be committed"
            ) from None


def parse(arguments: list[str]) -> tuple[str, MemberChange]:
    """Parses the arguments to (address of a process, change). ValueError for invalid ones."""
    match arguments:
        case [address]:
            return address, MemberChange()
        case [address, "--add", text]:
            peers = parse_peers(text)
            if len(peers) != 1:
                raise ValueError(f"--add {text}: expected one ID-HOST:PORT")
            ((name, where),) = peers.items()
            return address, MemberChange(name, where)
        case [address, "--remove", name]:
            return address, MemberChange(name)
        case _:
            raise ValueError(f"invalid arguments: {' '.join(arguments) or 'the address is missing'}")
