"""Implements `epochmq user`: creates, lists, changes and deletes the users of brokers with access control.

No output has a password."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochmq.client.admin import AdminClient, BrokerAddress
from epochmq.exits import UsageError
from epochmq.verbs import access_calls
from epochmq.verbs.cluster_calls import ClusterVerb, confirm
from epochmq.verbs.output import Column
from epochmq.verbs.password_input import read_password
from epochmq_protocol.bodies import UserInfo, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.headers_admin import (
    CreateUserRequestHeader,
    DeleteUserRequestHeader,
    ListUsersRequestHeader,
    UpdateUserRequestHeader,
)

TYPES = ("Normal", "Super")
STATUSES = ("enable", "disable")
COLUMNS = (Column("USER", "user"), Column("TYPE", "type"), Column("STATUS", "status"))


@dataclass(frozen=True, slots=True)
class Selection:
    """The brokers that the options name."""

    cluster: str | None
    broker_names: Sequence[str]

    async def brokers(self, client: AdminClient) -> list[BrokerAddress]:
        """All of them, masters and others."""
        return await client.brokers(cluster=self.cluster, broker_names=self.broker_names)

    async def with_masters(self, client: AdminClient) -> tuple[list[BrokerAddress], list[BrokerAddress]]:
        """The masters, and all. Raises RequestError if a group has no master."""
        masters = await client.masters(cluster=self.cluster, broker_names=self.broker_names)
        return masters, await self.brokers(client)


def one_of(option: str, text: str | None, known: Sequence[str]) -> str | None:
    """The known word that the text means in any case. Raises UsageError."""
    if text is None:
        return None
    found = next((word for word in known if word.lower() == text.lower()), None)
    if found is None:
        raise UsageError(f"{option} {text}: expected {' or '.join(known)}")
    return found


def list_users(verb: ClusterVerb, part: str | None, selection: Selection) -> int:
    """Prints the users, without their passwords."""
    return access_calls.print_listed(
        verb, COLUMNS, lambda client, broker: users_of(client, broker, part), selection.brokers
    )


async def users_of(
    client: AdminClient, broker: BrokerAddress, part: str | None = None
) -> list[dict[str, Any]]:
    """The users of a broker whose names have `part` in them, without their passwords."""
    header = ListUsersRequestHeader(filter=part)
    response = await access_calls.call(client, broker, RequestCode.AUTH_LIST_USER, header)
    return [
        {"user": one.username, "type": one.user_type, "status": one.user_status}
        for one in access_calls.decode_list(UserInfo, response.body)
    ]


def create(
    verb: ClusterVerb, user: str, user_type: str | None, password_file: Path | None, selection: Selection
) -> int:
    """Creates a user."""
    name = access_calls.checked_user(user)
    kind = one_of("--type", user_type, TYPES) or TYPES[0]
    verb.run(lambda client: require_user(client, name, selection, there=False))
    info = UserInfo(username=name, password=read_password(password_file, name), user_type=kind)
    info.user_status = STATUSES[0]

    async def action(client: AdminClient) -> list[dict[str, Any]]:
        masters, brokers = await selection.with_masters(client)
        at_masters = {one.address for one in masters}

        async def put(broker: BrokerAddress) -> str:
            is_there = (
                broker.address not in at_masters
                and await access_calls.find_user(client, broker, name) is not None
            )
            code = RequestCode.AUTH_UPDATE_USER if is_there else RequestCode.AUTH_CREATE_USER
            header = (UpdateUserRequestHeader if is_there else CreateUserRequestHeader)(username=name)
            await access_calls.call(client, broker, code, header, to_json(info))
            return "created"

        return await access_calls.in_order(client, put, brokers)

    return access_calls.print_change(verb, COLUMNS, _rows(info, verb.run(action)), name)


def update(
    verb: ClusterVerb,
    user: str,
    user_type: str | None,
    status: str | None,
    password_file: Path | None,
    selection: Selection,
    *,
    asks_password: bool,
) -> int:
    """Changes what the options name."""
    name = access_calls.checked_user(user)
    info = UserInfo(
        username=name,
        user_type=one_of("--type", user_type, TYPES),
        user_status=one_of("--status", status, STATUSES),
    )
    with_password = asks_password or password_file is not None
    if not with_password and info.user_type is None and info.user_status is None:
        raise UsageError("nothing to change: give --type, --status, --new-password or --password-file")
    verb.run(lambda client: require_user(client, name, selection, there=True))
    if with_password:
        info.password = read_password(password_file, name)
    rows = verb.run(lambda client: changed_user(client, name, info, selection))
    return access_calls.print_change(verb, COLUMNS, _rows(info, rows), name)


async def changed_user(
    client: AdminClient, name: str, info: UserInfo, selection: Selection
) -> list[dict[str, Any]]:
    """Changes what `info` has of a user, at every broker that knows the user. What each has done."""
    _, brokers = await selection.with_masters(client)

    async def write(broker: BrokerAddress) -> str:
        if not broker.is_master and await access_calls.find_user(client, broker, name) is None:
            return "no such user"
        header = UpdateUserRequestHeader(username=name)
        await access_calls.call(client, broker, RequestCode.AUTH_UPDATE_USER, header, to_json(info))
        return "changed"

    return await access_calls.in_order(client, write, brokers)


def delete(verb: ClusterVerb, user: str, selection: Selection, *, yes: bool) -> int:
    """Deletes a user with its ACL."""
    name = access_calls.checked_user(user)
    verb.run(lambda client: require_user(client, name, selection, there=True))
    confirm(f"Delete user {name} with its ACL?", yes=yes)

    async def action(client: AdminClient) -> list[dict[str, Any]]:
        _, brokers = await selection.with_masters(client)

        async def remove(broker: BrokerAddress) -> str:
            header = DeleteUserRequestHeader(username=name)
            await access_calls.call(client, broker, RequestCode.AUTH_DELETE_USER, header)
            return "deleted"

        return await access_calls.in_order(client, remove, brokers)

    rows = [{"user": name} | row for row in verb.run(action)]
    return access_calls.print_change(verb, COLUMNS[:1], rows, name)


async def require_user(client: AdminClient, name: str, selection: Selection, *, there: bool) -> None:
    """Raises RequestError unless the masters have the user, or have it not."""
    masters, _ = await selection.with_masters(client)
    found = await client.gather(lambda one: access_calls.find_user(client, one, name), masters)
    for broker, known in zip(masters, found, strict=True):
        if there and known is None:
            raise RequestError(
                ResponseCode.USER_NOT_EXIST,
                f"user {name} does not exist at {broker.broker_name}; see `epochmq user list`",
            )
        if not there and known is not None:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"user {name} exists at {broker.broker_name}; change it with `epochmq user update {name}`",
            )


def _rows(info: UserInfo, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shown = {"user": info.username, "type": info.user_type, "status": info.user_status}
    return [shown | row for row in rows]
