"""Serves the requests that manage users and ACLs (3001–3010), as RocketMQ's AdminBrokerProcessor does, and
our own one by which a replica copies them.

A replica that copies its master's users accepts changes, too, because `mqadmin` sends a change of a cluster
to every broker. The next copy replaces them. A change that the copy has made already counts as made.

With aclStrict only a super user sees passwords, and only a super user manages users before authentication is
enabled: otherwise whoever may read the cluster's settings could sign as the super user, and anybody could add
a super user for later.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from epochmq_broker.auth.acl_encoding import json_steps
from epochmq_broker.auth.acls import Acl
from epochmq_broker.auth.metadata import SYSTEM_ERROR_REMARK, AuthMetadata, UsersAndAcls, user_of
from epochmq_broker.auth.users import User, UserType, parse_user_type
from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.replication.table_state import KNOWN_STATE, STATE, UNCHANGED
from epochmq_protocol.bodies import AclInfo, UserInfo, from_request, to_json
from epochmq_protocol.bodies_in_turns import decode_steps, with_items
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_admin import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateUserRequestHeader,
)
from epochmq_protocol.replica_control import ReplicaControlCode
from epochmq_protocol.signatures import ACCESS_KEY
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import Turns, in_turns

ACL_BYTES_MAX = 1 << 20
"""The longest body with entries of an ACL: some 10,000 entries."""

T = TypeVar("T")
_Serve = Callable[[Command], Command | Awaitable[Command]]
UNSIGNED_REMARK: Final = (
    "only a super user manages users before authentication is enabled, or copies them: sign as a super user"
)


class AuthAdminProcessor:
    """Manages the users and ACLs of one broker. `copies_master` returns whether a master's are copied,
    `trusts` whether the sender of a request may see passwords."""

    def __init__(
        self,
        live: LiveConfig,
        metadata: AuthMetadata,
        copies_master: Callable[[], bool],
        trusts: Callable[[Command], bool] = lambda _command: True,
    ) -> None:
        self._live = live
        self._metadata = metadata
        self._copies_master = copies_master
        self._trusts = trusts
        self._incarnation = secrets.token_hex(4)  # each start of the broker counts changes from 0

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.AUTH_CREATE_USER: self._with_users(self.create_user),
            RequestCode.AUTH_UPDATE_USER: self._with_users(self.update_user),
            RequestCode.AUTH_DELETE_USER: self._with_users(self.delete_user),
            RequestCode.AUTH_GET_USER: self._with_users(self.get_user),
            RequestCode.AUTH_LIST_USER: self._with_users(self.list_users),
            RequestCode.AUTH_CREATE_ACL: self._with_acls(self.merge_acl),
            RequestCode.AUTH_UPDATE_ACL: self._with_acls(self.merge_acl),
            RequestCode.AUTH_DELETE_ACL: self._with_acls(self.delete_acl),
            RequestCode.AUTH_GET_ACL: self._with_acls(self.get_acl),
            RequestCode.AUTH_LIST_ACL: self._with_acls(self.list_acls),
            ReplicaControlCode.GET_ALL_USERS_AND_ACLS: self.all_users_and_acls,
        }

    def _with_users(self, serve: _Serve) -> RequestHandler:
        return self._requiring(serve, lambda: bool(self._live.current.authentication_metadata_provider))

    def _with_acls(self, serve: _Serve) -> RequestHandler:
        def configured() -> bool:
            config = self._live.current
            return bool(config.authentication_metadata_provider and config.authorization_metadata_provider)

        return self._requiring(serve, configured)

    def _requiring(self, serve: _Serve, configured: Callable[[], bool]) -> RequestHandler:
        """Without its provider, RocketMQ fails with this remark."""

        def handle(connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
            if not configured():
                raise RequestError(ResponseCode.SYSTEM_ERROR, SYSTEM_ERROR_REMARK)
            if not self._live.current.authentication_enabled and not self._trusts(command):
                raise RequestError(ResponseCode.NO_PERMISSION, UNSIGNED_REMARK)
            return serve(command)

        return handle

    # users

    def create_user(self, command: Command) -> Command:
        """3001: adds a user. Only a super user adds a super user."""
        info = _user_info(command, CreateUserRequestHeader.decode(command.ext).username)
        if parse_user_type(info.user_type) is UserType.SUPER and self._is_normal_user(command):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user")
        if not (self._copies_master() and self._metadata.users.get(info.username or "") == user_of(info)):
            self._metadata.create_user(info)
        return response(command, ResponseCode.SUCCESS)

    def update_user(self, command: Command) -> Command:
        """3002: changes a user. Only a super user changes or makes a super user."""
        info = _user_info(command, UpdateUserRequestHeader.decode(command.ext).username)
        if parse_user_type(info.user_type) is UserType.SUPER and self._is_normal_user(command):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The super user can only be update by super user")
        self._check_super_user(command, info.username)
        self._metadata.update_user(info)
        return response(command, ResponseCode.SUCCESS)

    def delete_user(self, command: Command) -> Command:
        """3003: removes a user and its ACL. Only a super user removes a super user."""
        name = DeleteUserRequestHeader.decode(command.ext).username
        self._check_super_user(command, name)
        self._metadata.delete_user(name)
        return response(command, ResponseCode.SUCCESS)

    def get_user(self, command: Command) -> Command:
        """3004: returns a user; an empty body if there is none."""
        name = GetUserRequestHeader.decode(command.ext).username
        if name is None or not name.strip():
            raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._metadata.find_user(name)
        body = b"" if user is None else to_json(user.info(with_password=self._trusts(command)))
        return response(command, ResponseCode.SUCCESS, body=body)

    def list_users(self, command: Command) -> Command | Awaitable[Command]:
        """3005: returns the users whose name contains the filter; an empty body if there are none."""
        found = self._metadata.list_users(ListUsersRequestHeader.decode(command.ext).filter)
        trusted = self._trusts(command)
        return in_turns(_listed(command, found, partial(_user_steps, with_password=trusted), Turns()))

    def _is_normal_user(self, command: Command) -> bool:
        """Whether the request names a user who is no super user. It names none where authentication is not
        enabled."""
        name = (command.ext or {}).get(ACCESS_KEY)
        return bool(name) and not self._metadata.is_super_user(name or "")

    def _check_super_user(self, command: Command, name: str | None) -> None:
        user = self._metadata.find_user(name)
        if user is not None and user.is_super and self._is_normal_user(command):
            raise RequestError(ResponseCode.NO_PERMISSION, "The super user can only be update by super user")

    # ACLs

    def merge_acl(self, command: Command) -> Command | Awaitable[Command]:
        """3006 and 3007: adds entries to an ACL, or replaces them."""
        return in_turns(self._merge_acl(command, Turns()))

    async def _merge_acl(self, command: Command, turns: Turns) -> Command:
        header = CreateAclRequestHeader.decode(command.ext)
        info = await turns.run(decode_steps(AclInfo, command.body, ACL_BYTES_MAX))
        if not info.policies:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The body of acl is null")
        await turns.run(self._metadata.merge_steps(info, header.subject))
        return response(command, ResponseCode.SUCCESS)

    def delete_acl(self, command: Command) -> Command:
        """3008: removes an entry of an ACL, or the whole ACL."""
        header = DeleteAclRequestHeader.decode(command.ext)
        try:
            self._metadata.delete_acl(header.subject, header.policy_type, header.resource)
        except RequestError as error:
            if not (self._copies_master() and error.remark == "The acl is not exist."):
                raise
        return response(command, ResponseCode.SUCCESS)

    def get_acl(self, command: Command) -> Command | Awaitable[Command]:
        """3009: returns the ACL of a user; an empty body if the user has none."""
        acl = self._metadata.find_acl(GetAclRequestHeader.decode(command.ext).subject)
        if acl is None:
            return response(command, ResponseCode.SUCCESS, body=b"")
        return in_turns(_encoded_acl(command, acl, Turns()))

    def list_acls(self, command: Command) -> Command | Awaitable[Command]:
        """3010: returns the ACLs that match two filters; an empty body if there are none."""
        return in_turns(self._list_acls(command, Turns()))

    async def _list_acls(self, command: Command, turns: Turns) -> Command:
        header = ListAclsRequestHeader.decode(command.ext)
        found = await turns.run(self._metadata.list_steps(header.subject_filter, header.resource_filter))
        return await _listed(command, found, json_steps, turns)

    # replicas

    def all_users_and_acls(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command]:
        """Returns everything to a replica that has not copied this state yet: to a proven member, or to a
        broker with the credentials that all brokers of the group have. Without such credentials nobody signs,
        and whoever is a member's peer counts as a member."""
        config = self._live.current
        signs = config.authentication_enabled or bool(config.inner_client_authentication_credentials.strip())
        if signs and connection.member is None and not self._trusts(command):
            raise RequestError(ResponseCode.NO_PERMISSION, UNSIGNED_REMARK)
        state = f"{self._incarnation}.{self._metadata.changes}"
        if (command.ext or {}).get(KNOWN_STATE) == state:
            return response(command, ResponseCode.SUCCESS, ext={UNCHANGED: "true"})
        return in_turns(self._everything(command, state, Turns()))

    async def _everything(self, command: Command, state: str, turns: Turns) -> Command:
        metadata = self._metadata
        acls = [metadata.acls[name] for name in sorted(metadata.acls)]
        users = [metadata.users[name] for name in sorted(metadata.users)]
        body = with_items(to_json(UsersAndAcls()), "acls", await _encoded(acls, json_steps, turns))
        body = with_items(body, "users", await _encoded(users, _user_steps, turns))
        return response(command, ResponseCode.SUCCESS, body=body, ext={STATE: state})


_Encode = Callable[[T], Generator[None, None, bytes]]


async def _listed(command: Command, found: Sequence[T], encode: _Encode[T], turns: Turns) -> Command:
    body = await _encoded(found, encode, turns) if found else b""
    return response(command, ResponseCode.SUCCESS, body=body)


async def _encoded(found: Sequence[T], encode: _Encode[T], turns: Turns) -> bytes:
    """A list of users or ACLs as JSON."""
    items = [await turns.run(encode(one)) for one in found]
    return b"[%b]" % b",".join(items)


async def _encoded_acl(command: Command, acl: Acl, turns: Turns) -> Command:
    return response(command, ResponseCode.SUCCESS, body=await turns.run(json_steps(acl)))


def _user_steps(user: User, *, with_password: bool = True) -> Generator[None, None, bytes]:
    yield
    return to_json(user.info(with_password=with_password))


def _user_info(command: Command, name: str | None) -> UserInfo:
    """The user in the body, with the name in the header. Raises RequestError."""
    if not name:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    info = from_request(UserInfo, command.body)
    info.username = name
    return info
