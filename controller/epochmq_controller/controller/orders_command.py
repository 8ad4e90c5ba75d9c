"""Implements `epochmq controller elect`, `forget` and `configure`: what mqadmin's electMaster,
cleanBrokerMetadata and updateControllerConfig do, with a proof of membership."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from epochmq_protocol import properties
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConfigError, EpochMQError, RequestError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_controller import (
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
)
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.member_authentication import members_of_environment
from epochmq_protocol.transport.outgoing_tls import tls_of_environment

USAGE = """\
Usage: epochmq controller elect ADDRESS CLUSTER GROUP ID
       epochmq controller forget ADDRESS CLUSTER GROUP ID
       epochmq controller configure ADDRESS KEY=VALUE…

  elect       makes the broker with this id the master of its group; sends under way are aborted
  forget      removes the broker with this id from its group
  configure   changes settings of the one controller at ADDRESS, which is not asked for the leader

  ADDRESS (host:port) is that of any controller. The file of the members' secret is named by the environment
  variable EPOCHMQ_MEMBER_SECRET. EPOCHMQ_TLS_CONFIG names a tls.properties with keys tls.client.*: TLS is
  used then.
"""

VERBS = ("elect", "forget", "configure")
TIMEOUT_MS = 10_000
EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

Order = Callable[[RemotingClient], Awaitable[str]]
"""Gives an order, and returns what to print."""


def run(arguments: list[str]) -> int:
    """Runs the command. Returns 0 if it succeeded, 1 if it failed, 2 for invalid arguments."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return EXIT_OK
    try:
        order = parse(arguments)
        members, tls = members_of_environment(), tls_of_environment()
    except (ValueError, ConfigError) as error:
        print(f"epochmq controller: {error}\n{USAGE}", end="", file=sys.stderr)
        return EXIT_USAGE

    async def give() -> str:
        async with RemotingClient(members=members, tls=tls) as client:
            return await order(client)

    try:
        print(asyncio.run(give()))
    except EpochMQError as error:
        print(f"epochmq controller {arguments[0]}: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def parse(arguments: list[str]) -> Order:
    """The order of a command line. ValueError for an invalid one."""
    match arguments:
        case ["elect", address, cluster, group, number] if number.isdecimal():
            return lambda client: _elect(client, address, cluster, group, int(number))
        case ["forget", address, cluster, group, number] if number.isdecimal():
            return lambda client: _forget(client, address, cluster, group, number)
        case ["configure", address, *settings] if settings and all("=" in one for one in settings):
            return lambda client: _configure(client, address, settings)
        case _:
            raise ValueError(f"invalid arguments: {' '.join(arguments)}")


async def _elect(client: RemotingClient, address: str, cluster: str, group: str, number: int) -> str:
    header = ElectMasterRequestHeader(
        cluster_name=cluster, broker_name=group, broker_id=number, designate_elect=True
    )
    leader = await _leader(client, address)
    answer = await _call(client, leader, request(RequestCode.CONTROLLER_ELECT_MASTER, header))
    found = ElectMasterResponseHeader.decode(answer.ext)
    return f"{group}: broker {found.master_broker_id} is the master, epoch {found.master_epoch}"


async def _forget(client: RemotingClient, address: str, cluster: str, group: str, number: str) -> str:
    header = CleanControllerBrokerDataRequestHeader(
        cluster_name=cluster, broker_name=group, broker_controller_ids_to_clean=number
    )
    await _call(client, await _leader(client, address), request(RequestCode.CLEAN_BROKER_DATA, header))
    return f"{group}: broker {number} is forgotten"


async def _configure(client: RemotingClient, address: str, settings: list[str]) -> str:
    changes = dict(one.split("=", 1) for one in settings)
    body = properties.rewrite("", changes).encode()
    await _call(client, address, request(RequestCode.UPDATE_CONTROLLER_CONFIG, body=body))
    return f"{address}: {', '.join(settings)}"


async def _leader(client: RemotingClient, address: str) -> str:
    answer = await _call(client, address, request(RequestCode.CONTROLLER_GET_METADATA_INFO))
    leader = GetMetaDataResponseHeader.decode(answer.ext).controller_leader_address
    if not leader:
        raise EpochMQError(f"the controller at {address} knows no leader")
    return leader


async def _call(client: RemotingClient, address: str, command: Command) -> Command:
    answer = await client.call(address, command, TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise RequestError(answer.code, answer.remark or f"{address} responded with code {answer.code}")
    return answer
