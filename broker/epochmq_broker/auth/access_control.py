"""Checks requests before their handlers see them: first who sent a request, then whether the sender may.

Every request of a client's connection passes here while authentication or authorization is enabled; the fast
paths are then off. Calls inside the process (the admin socket) do not come from a connection and are not
checked. A rejected request gets NO_PERMISSION, a one-way request nothing. Each rejection is counted and
written to the log, some a second at most.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, Protocol

import msgspec

from epochmq_broker.auth.access_settings import AccessSettings
from epochmq_broker.auth.acls import Action, topic_resource
from epochmq_broker.auth.authentication import claimed_username, reason_for_rejection
from epochmq_broker.auth.authorization import FAILED, RequestedAccess, denial_remark, reason_for_denial
from epochmq_broker.auth.metadata import AuthMetadata, rejection
from epochmq_broker.auth.remembered_checks import RememberedChecks
from epochmq_broker.auth.requested_access import PARSE_ERROR, UnreadableRequestError, requested_access
from epochmq_broker.auth.strict_rules import strict_access
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, response
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

log = logging.getLogger(__name__)

LINES_A_SECOND: Final = 20
"""Rejections that are written to the log. Further ones are counted, and the next line has their number."""
_REMEMBERED: Final = "auth.remembered"
_USERS: Final = "auth.users"
USERS_MAX: Final = 64
"""Users whose heartbeats one connection may carry."""


class IdentifiedChannel(Protocol):
    """The part of a client's connection that says who is at its other end."""

    @property
    def remote(self) -> str:
        """The client's address as `host:port`."""
        ...

    @property
    def attributes(self) -> dict[str, Any]:
        """Values that belong to the connection."""
        ...


class _Denial(msgspec.Struct, frozen=True):
    """Why a request is rejected: by which check, the remark, and what the request asked for."""

    check: Literal["authentication", "authorization"]
    reason: str
    access: RequestedAccess | None = None


class AccessControl:
    """The access control of one broker. `clock` returns milliseconds."""

    def __init__(self, settings: AccessSettings, metadata: AuthMetadata, clock: Callable[[], int]) -> None:
        self.settings = settings
        self.unauthenticated = 0
        """Requests rejected because their sender is not known, since the start."""
        self.unauthorized = 0
        """Requests rejected because their sender has no permission, since the start."""
        self._metadata = metadata
        self._clock = clock
        self._audit = _AuditLog(clock)

    @property
    def enabled(self) -> bool:
        """Whether any request is checked."""
        return self.settings.enabled

    def guard(
        self, handlers: Mapping[int, RequestHandler], unverified: Mapping[int, RequestHandler]
    ) -> dict[int, RequestHandler]:
        """The handlers, each behind the checks; the same handlers while nothing is enabled. `unverified` has
        the handlers of requests that are served in another way, instead of rejected."""
        if not self.enabled:
            return dict(handlers)
        return {code: self._guarded(handler, unverified.get(code)) for code, handler in handlers.items()}

    @property
    def checks_records(self) -> bool:
        """Whether it matters which message a request names by its place in the log (aclStrict)."""
        return self.settings.authorization and self.settings.strict

    def unsupported(self, connection: RemotingConnection, command: Command) -> Command:
        """Responds to a request without a handler. RocketMQ checks these, too."""
        if not self.settings.strict:
            self.check(connection, command)
        elif (denial := self._find_stranger(connection, command)) is not None:
            self._reject(connection, command, denial)
        remark = f" request type {command.code} not supported"
        return response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def check(self, connection: RemotingConnection, command: Command) -> None:
        """Raises RequestError NO_PERMISSION unless the sender is known and may do what the request asks
        for."""
        denial = self._find_denial(connection, command)
        if denial is not None:
            self._reject(connection, command, denial)
        if command.code == RequestCode.HEART_BEAT:
            self._note_user(connection, command)

    def require(
        self, connection: RemotingConnection, command: Command, accesses: Sequence[RequestedAccess]
    ) -> None:
        """Raises RequestError NO_PERMISSION unless the sender of a checked request may have these accesses,
        too."""
        denial = self._first_denied(connection, command, accesses)
        if denial is not None:
            self._reject(connection, command, denial)

    def is_restricted(self, command: Command) -> bool:
        """Whether the rights of the sender count: neither a super user nor a whitelisted request."""
        user = self._metadata.users.get(claimed_username(command) or "")
        is_super = user is not None and user.is_super
        return not is_super and command.code not in self.settings.unauthorized_codes

    def trusts_with_accounts(self, command: Command) -> bool:
        """Whether the sender of a request about users may see their passwords, and may change users while
        authentication is not enabled yet: a super user, whose signature is valid. Without aclStrict, and
        while neither authentication is enabled nor a super user exists, everybody."""
        settings, users = self.settings, self._metadata.users
        if not settings.strict:
            return True
        if not settings.authentication and not any(user.is_super for user in users.values()):
            return True
        user = users.get(claimed_username(command) or "")
        return user is not None and user.is_super and reason_for_rejection(command, users) is None

    def may_publish(self, connection: IdentifiedChannel, topic: str) -> bool:
        """Whether a user who sent a heartbeat on the connection may publish to the topic. Without aclStrict,
        every connection may."""
        if not self.checks_records:
            return True
        source_ip = connection.remote.rpartition(":")[0]
        wanted = RequestedAccess(topic_resource(topic), (Action.PUB,))
        return any(self._decide(name, wanted, source_ip) is None for name in _users_of(connection))

    def is_same_user(self, one: IdentifiedChannel, other: IdentifiedChannel) -> bool:
        """Whether heartbeats of one user came on both connections. Without aclStrict, nobody asks."""
        return not self.checks_records or bool(_users_of(one).keys() & _users_of(other).keys())

    def _reject(self, connection: RemotingConnection, command: Command, denial: _Denial) -> NoReturn:
        if denial.check == "authentication":
            self.unauthenticated += 1
        else:
            self.unauthorized += 1
        self._audit.write(connection.remote, command, denial)
        raise rejection(denial.reason)

    def _find_denial(self, connection: RemotingConnection, command: Command) -> _Denial | None:
        stranger = self._find_stranger(connection, command)
        if stranger is not None or not self.settings.authorization:
            return stranger
        return self._authorize(connection, command)

    def _find_stranger(self, connection: RemotingConnection, command: Command) -> _Denial | None:
        settings = self.settings
        if not settings.authentication or command.code in settings.unauthenticated_codes:
            return None
        reason = self._authenticate(connection, command)
        return None if reason is None else _Denial("authentication", reason)

    def _note_user(self, connection: RemotingConnection, command: Command) -> None:
        name, users = claimed_username(command), _users_of(connection)
        if name is not None and len(users) < USERS_MAX:
            users[name] = None

    def _guarded(self, handler: RequestHandler, unverified: RequestHandler | None) -> RequestHandler:
        def guarded(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            if unverified is not None and self._find_denial(connection, command) is not None:
                return unverified(connection, command)
            self.check(connection, command)
            return handler(connection, command)

        return guarded

    def _authenticate(self, connection: RemotingConnection, command: Command) -> str | None:
        lifetime_ms = self.settings.authentication_lifetime_ms
        if not lifetime_ms:
            return reason_for_rejection(command, self._metadata.users)
        return self._remembered(connection).get(
            claimed_username(command),
            self._clock(),
            lifetime_ms,
            lambda: reason_for_rejection(command, self._metadata.users),
        )

    def _authorize(self, connection: RemotingConnection, command: Command) -> _Denial | None:
        settings = self.settings
        derive = strict_access if settings.strict else requested_access
        try:
            accesses = derive(command, settings.cluster)
        except UnreadableRequestError:
            return _Denial("authorization", PARSE_ERROR)
        return self._first_denied(connection, command, accesses)

    def _first_denied(
        self, connection: RemotingConnection, command: Command, accesses: Sequence[RequestedAccess]
    ) -> _Denial | None:
        if command.code in self.settings.unauthorized_codes:
            return None
        source_ip = connection.remote.rpartition(":")[0]
        for access in accesses:
            reason = self._reason_for_denial(connection, command, access, source_ip)
            if reason is not None:
                return _Denial("authorization", reason, access)
        return None

    def _reason_for_denial(
        self, connection: RemotingConnection, command: Command, access: RequestedAccess, source_ip: str
    ) -> str | None:
        name = claimed_username(command)

        def decide() -> str | None:
            return self._decide(name, access, source_ip)

        lifetime_ms = self.settings.authorization_lifetime_ms
        if not lifetime_ms:
            return decide()
        return self._remembered(connection).get((name, access), self._clock(), lifetime_ms, decide)

    def _decide(self, name: str | None, access: RequestedAccess, source_ip: str) -> str | None:
        if name is None:
            return FAILED
        user = self._metadata.users.get(name)
        if user is None:
            return f"User:{name} not found."
        if user.is_super:
            return None
        acl = self._metadata.acls.get(name)
        reason = reason_for_denial(acl, access, source_ip, strict=self.settings.strict)
        return None if reason is None else denial_remark(name, access, source_ip, reason)

    def _remembered(self, connection: RemotingConnection) -> RememberedChecks:
        found = connection.attributes.get(_REMEMBERED)
        if not isinstance(found, RememberedChecks):
            found = connection.attributes[_REMEMBERED] = RememberedChecks()
        return found


def _users_of(connection: IdentifiedChannel) -> dict[str, None]:
    found: dict[str, None] = connection.attributes.setdefault(_USERS, {})
    return found


class _AuditLog:
    """Writes a line for each rejected request, `LINES_A_SECOND` at most."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def write(self, remote: str, command: Command, denial: _Denial) -> None:
        """Writes one line, or counts the rejection for the next one."""
        second = self._clock() // 1000
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= LINES_A_SECOND:
            self._left_out += 1
            return
        self._written += 1
        fields: dict[str, object] = {
            "audit": denial.check,
            "user": claimed_username(command),
            "client": remote,
            "request": command.code,
            "reason": denial.reason,
        }
        if denial.access is not None:
            fields["resource"] = denial.access.resource.key
            fields["actions"] = ",".join(action.value for action in denial.access.actions)
        if self._left_out:
            fields["rejections_left_out"] = self._left_out
            self._left_out = 0
        log.warning("access control rejected request %d of %s", command.code, remote, extra=fields)
