"""Asks brokers for users and ACLs, and changes them, with RocketMQ's requests 3001 to 3010.

A change goes to the masters first, then to the other brokers, as `mqadmin` with `-c` sends it to all:
RocketMQ's slaves copy no users, and EpochMQ's count what they have copied already as made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from epochmq.client.admin import AdminClient, BrokerAddress, failure_text
from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.cluster_calls import ClusterVerb
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq_protocol.bodies import AclInfo, UserInfo, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_admin import GetAclRequestHeader, GetUserRequestHeader
from epochmq_protocol.headers_base import Header

B = TypeVar("B")

SUBJECT_PREFIX = "User:"
NO_PROVIDER = "system error"
"""In the remark of a broker that keeps no users."""


def checked_user(text: str) -> str:
    """The name of a user; a subject `User:NAME` names one, too. Raises UsageError."""
    name = text.removeprefix(SUBJECT_PREFIX)
    if not name.strip() or not name.isprintable() or any(char.isspace() for char in name):
        raise UsageError(f"USER {text!r:.150}: expected a name without spaces and control characters")
    return name


async def call(
    client: AdminClient, broker: BrokerAddress, code: RequestCode, header: Header, body: bytes = b""
) -> Command:
    """Calls a broker. The error of one that keeps no users names the settings that it lacks."""
    try:
        return await client.call(broker.address, code, header, body)
    except RequestError as error:
        if error.code == ResponseCode.SYSTEM_ERROR and NO_PROVIDER in error.remark:
            raise RequestError(
                error.code,
                f"{error.remark} Does it keep users and ACLs? They need authenticationMetadataProvider and "
                "authorizationMetadataProvider in its configuration (docs/access-control.md)",
            ) from None
        raise


async def find_user(client: AdminClient, broker: BrokerAddress, name: str) -> UserInfo | None:
    """The user at a broker; None if it has none of this name."""
    response = await call(client, broker, RequestCode.AUTH_GET_USER, GetUserRequestHeader(username=name))
    return from_json(UserInfo, response.body) if response.body else None


async def find_acl(client: AdminClient, broker: BrokerAddress, name: str) -> AclInfo:
    """The ACL of a user at a broker; an empty one if the user has none."""
    header = GetAclRequestHeader(subject=f"{SUBJECT_PREFIX}{name}")
    response = await call(client, broker, RequestCode.AUTH_GET_ACL, header)
    return from_json(AclInfo, response.body) if response.body else AclInfo()


def decode_list(kind: type[B], body: bytes) -> list[B]:
    """The objects of a list; none for an empty body. Raises RequestError for what is no such list."""
    if not body:
        return []
    try:
        return [from_json(kind, msgspec.json.encode(one)) for one in msgspec.json.decode(body, type=list)]
    except msgspec.DecodeError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the broker's list is not readable: {error}") from None


async def in_order(
    client: AdminClient,
    change: Callable[[BrokerAddress], Awaitable[str]],
    brokers: Sequence[BrokerAddress],
) -> list[dict[str, Any]]:
    """Makes a change at the masters, then at the other brokers. Returns a row for each broker."""
    ordered = [*(one for one in brokers if one.is_master), *(one for one in brokers if not one.is_master)]
    count = sum(one.is_master for one in brokers)
    results = await client.gather(change, ordered[:count])
    results += await client.gather(change, ordered[count:])
    return [
        {"broker": one.broker_name, "id": one.broker_id, "address": one.address, "result": result}
        for one, result in zip(ordered, results, strict=True)
    ]


BROKER_COLUMNS = (
    Column("BROKER", "broker"),
    Column("ID", "id"),
    Column("RESULT", "result"),
    Column("ADDRESS", "address", is_wide=True),
)


def print_change(verb: ClusterVerb, columns: Sequence[Column], rows: list[dict[str, Any]], name: str) -> int:
    """Prints what a change has done at each broker."""
    print_result(VerbResult(rows, [OutputTable((*columns, *BROKER_COLUMNS), rows)], [name]), verb.output)
    return ExitCode.OK


ReadRows = Callable[[AdminClient, BrokerAddress], Awaitable[list[dict[str, Any]]]]
"""Reads the users, or the entries of ACLs, that a broker has."""
USER = "user"
"""The field of a row with its user."""
BROKERS_COLUMN = Column("BROKERS", "brokers")


async def rows_of_brokers(
    client: AdminClient, read: ReadRows, brokers: Sequence[BrokerAddress]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows that brokers have, each once with the brokers that have it, and why other brokers did not
    respond. If none responds, raises the first error."""

    async def answer(broker: BrokerAddress) -> tuple[list[dict[str, Any]], EpochMQError | None]:
        try:
            return await read(client, broker), None
        except EpochMQError as error:
            return [], error

    rows: dict[bytes, dict[str, Any]] = {}
    answers = await client.gather(answer, brokers)
    failures = [error for _, error in answers if error is not None]
    if len(failures) == len(answers):
        raise failures[0]
    for broker, (found, _) in zip(brokers, answers, strict=True):
        for row in found:
            known = rows.setdefault(msgspec.json.encode(row), row | {"brokers": []})
            known["brokers"].append(f"{broker.broker_name}:{broker.broker_id}")
    return sorted(rows.values(), key=lambda row: str(row[USER])), list(map(failure_text, failures))


def print_listed(
    verb: ClusterVerb,
    columns: Sequence[Column],
    read: ReadRows,
    brokers_of: Callable[[AdminClient], Awaitable[list[BrokerAddress]]],
) -> int:
    """Prints the rows that brokers have, each once with the brokers that have it. Brokers that do not respond
    are named; if none responds, raises the first error."""

    async def action(client: AdminClient) -> tuple[list[dict[str, Any]], list[str]]:
        return await rows_of_brokers(client, read, await brokers_of(client))

    rows, errors = verb.run(action)
    shown = (*columns, BROKERS_COLUMN)
    names = list(dict.fromkeys(str(row[USER]) for row in rows))
    print_result(VerbResult(rows, [OutputTable(shown, rows)], names), verb.output)
    for error in errors:
        print_error(error)
    return ExitCode.FAILED if errors else ExitCode.OK
