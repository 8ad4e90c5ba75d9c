# pure: the users and ACLs of a broker in memory
"""Holds the users and ACLs of a broker, with the rules by which they change (RocketMQ's
AuthenticationMetadataManagerImpl and AuthorizationMetadataManagerImpl).

The remarks are RocketMQ's. `on_change` listeners are called after every change, and before a
merged ACL is set, `before_change` listeners are called with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

import msgspec

from epochmq_broker.auth.acls import (
    ENTRIES_AT_A_TIME,
    Acl,
    Action,
    Policy,
    PolicyEntry,
    PolicyType,
    parse_action,
    parse_decision,
    parse_policy_type,
    parse_resource,
    parse_subject,
)
from epochmq_broker.auth.address_ranges import is_address_or_range
from epochmq_broker.auth.users import (
    User,
    UserStatus,
    UserType,
    is_blank,
    parse_user_status,
    parse_user_type,
)
from epochmq_protocol.bodies import AclInfo, PolicyEntryInfo, UserInfo
from epochmq_protocol.bodies_base import Body
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.steps import finish

SYSTEM_ERROR_REMARK = "An system error occurred, please try again later."
"""RocketMQ's remark for its own failures."""


def rejection(remark: str) -> RequestError:
    """A request that access control rejects, in RocketMQ's words."""
    return RequestError(ResponseCode.NO_PERMISSION, remark)


class UsersAndAcls(Body):
    """All users and ACLs, as the file and the responses to replicas hold them."""

    acls: list[AclInfo] = msgspec.field(default_factory=list)
    users: list[UserInfo] = msgspec.field(default_factory=list)


class AuthMetadata:
    """The users by name, and the ACLs by the name of their user. `changes` counts the changes."""

    def __init__(self) -> None:
        self.changes = 0
        self.users: dict[str, User] = {}
        self.acls: dict[str, Acl] = {}
        self.on_change: list[Callable[[], None]] = []
        self.before_change: list[Callable[[Acl], Generator[None, None, None]]] = []

    # users

    def create_user(self, info: UserInfo) -> None:
        """Adds a user: normal and enabled unless the request says otherwise. Raises RequestError."""
        name = _required_name(info.username)
        if is_blank(info.password):
            raise rejection("password can not be blank")
        if name in self.users:
            raise rejection("The user is existed")
        self.users[name] = user_of(info)
        self._changed()

    def update_user(self, info: UserInfo) -> None:
        """Changes what the request names: password, type, status. Raises RequestError."""
        name = _required_name(info.username)
        old = self.users.get(name)
        if old is None:
            raise rejection("The user is not exist")
        self.users[name] = User(
            name,
            old.password if is_blank(info.password) else info.password or "",
            parse_user_type(info.user_type) or old.user_type,
            parse_user_status(info.user_status) or old.user_status,
        )
        self._changed()

    def delete_user(self, name: str | None) -> None:
        """Removes a user and its ACL. Raises RequestError for a blank name."""
        name = _required_name(name)
        known = self.users.pop(name, None) is not None
        if self.acls.pop(name, None) is not None or known:
            self._changed()

    def find_user(self, name: str | None) -> User | None:
        """The user of this name. Raises RequestError for a blank name."""
        return self.users.get(_required_name(name))

    def list_users(self, part: str | None) -> list[User]:
        """The users whose name contains the text, in the order of their names; without a text, all."""
        names = sorted(self.users, key=_bytewise)
        return [self.users[name] for name in names if is_blank(part) or (part or "") in name]

    def is_super_user(self, name: str) -> bool:
        """Whether the user may do everything. Raises RequestError for an unknown user."""
        user = self.find_user(name)
        if user is None:
            raise rejection(f"User:{name} is not found")
        return user.is_super

    # ACLs

    def merge_acl(self, info: AclInfo, subject: str | None) -> None:
        """Adds the entries of a request to the ACL of its subject, and replaces those for the same resources.
        The subject in the body comes before `subject`, that of the header. Raises RequestError."""
        finish(self.merge_steps(info, subject))

    def merge_steps(self, info: AclInfo, subject: str | None) -> Generator[None, None, None]:
        """`merge_acl` in steps. Others see nothing of the change before the last step."""
        username = parse_subject(info.subject)
        if username is None:
            username = parse_subject(subject)
        policies = _policies_of(info)
        if username is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, SYSTEM_ERROR_REMARK)
        checked = yield from _checked_steps(policies)
        while True:  # again only if another request has changed the same ACL meanwhile
            if username not in self.users:
                raise rejection(f"The subject of User:{username} is not exist.")
            old = self.acls.get(username)
            acl = Acl(username, checked) if old is None else (yield from old.merge_steps(checked))
            for prepare in self.before_change:
                yield from prepare(acl)
            if self.acls.get(username) is old and username in self.users:
                break
        self.acls[username] = acl
        self._changed()

    def delete_acl(self, subject: str | None, policy_type: str | None, resource: str | None) -> None:
        """Removes the entry for a resource from the ACL of a subject; without a resource, the policy of the
        type, and without a type, too, the whole ACL. (RocketMQ removes the whole ACL whatever the type.)
        Raises RequestError."""
        username = parse_subject(subject)
        if username is None:
            raise rejection("The subject is null.")
        if username not in self.users:
            raise rejection("The subject is not exist.")
        acl = self.acls.get(username)
        if acl is None:
            raise rejection("The acl is not exist.")
        wanted, kind = parse_resource(resource), parse_policy_type(policy_type)
        if wanted is not None:
            acl = acl.without(kind or PolicyType.CUSTOM, wanted)
        elif kind is not None and is_blank(resource):
            acl = acl.without_policy(kind)
        else:
            acl = Acl(username, ())
        if not acl.policies:
            del self.acls[username]
        else:
            self.acls[username] = acl
        self._changed()

    def find_acl(self, subject: str | None) -> Acl | None:
        """The ACL of a subject; None if the subject has none. Raises RequestError for an unknown user."""
        username = parse_subject(subject)
        if username is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"subject={subject}: expected User:NAME")
        if username not in self.users:
            raise rejection("The subject is not exist.")
        return self.acls.get(username)

    def list_acls(self, subject_part: str | None, resource_part: str | None) -> list[Acl]:
        """`list_steps` at once."""
        return finish(self.list_steps(subject_part, resource_part))

    def list_steps(
        self, subject_part: str | None, resource_part: str | None
    ) -> Generator[None, None, list[Acl]]:
        """The ACLs whose subject contains one text, with the entries whose resource contains the other. (In
        RocketMQ an ACL whose subject contains the second text keeps all entries.)"""
        acls: list[Acl] = []
        for username in sorted(self.acls, key=_bytewise):
            found = self.acls.get(username)
            if found is None:  # deleted since an earlier step
                continue
            acl = found
            if not is_blank(subject_part) and (subject_part or "") not in acl.subject:
                continue
            if not is_blank(resource_part):
                acl = yield from _with_resources(acl, resource_part or "")
            if acl.policies:
                acls.append(acl)
        return acls

    # copies

    def add(self, user: User, acl: Acl | None = None) -> None:
        """Adds a user of the broker's own settings or of RocketMQ 4's files, unless the name is taken."""
        if user.username in self.users:
            return
        self.users[user.username] = user
        if acl is not None:
            self.acls[user.username] = acl
        self._changed()

    def content(self) -> UsersAndAcls:
        """All users and ACLs."""
        return UsersAndAcls(
            acls=[self.acls[name].info() for name in sorted(self.acls)],
            users=[self.users[name].info() for name in sorted(self.users)],
        )

    def restore(self, content: UsersAndAcls) -> None:
        """Fills the tables from the file, without a call of the listeners. Raises RequestError for content
        that no broker wrote."""
        self.users = {user.username: user for user in map(user_of, content.users)}
        acls = {acl.username: acl for acl in map(_stored_acl, content.acls)}
        known = self.acls  # an equal one keeps its encoded form
        self.acls = {name: known[name] if known.get(name) == acl else acl for name, acl in acls.items()}

    def replace_all(self, content: UsersAndAcls) -> None:
        """Makes the tables a copy of a master's. Raises RequestError for content that no broker wrote."""
        before = self.users, self.acls
        self.restore(content)
        if before != (self.users, self.acls):
            self._changed()

    def _changed(self) -> None:
        self.changes += 1
        for notify in self.on_change:
            notify()


def user_of(info: UserInfo) -> User:
    """The user that a request describes; normal and enabled unless it says otherwise."""
    return User(
        info.username or "",
        info.password or "",
        parse_user_type(info.user_type) or UserType.NORMAL,
        parse_user_status(info.user_status) or UserStatus.ENABLE,
    )


def _required_name(name: str | None) -> str:
    if name is None or is_blank(name):
        raise rejection("username can not be blank")
    return name


def _bytewise(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _with_resources(acl: Acl, part: str) -> Generator[None, None, Acl]:
    policies: list[Policy] = []
    for policy in acl.policies:
        entries: list[PolicyEntry] = []
        for start in range(0, len(policy.entries), ENTRIES_AT_A_TIME):
            some = policy.entries[start : start + ENTRIES_AT_A_TIME]
            entries += [entry for entry in some if part in entry.resource.key]
            yield
        if entries:
            policies.append(Policy(policy.type, tuple(entries)))
    return Acl(acl.username, tuple(policies))


_Draft = tuple[PolicyType, list[PolicyEntryInfo]]


def _policies_of(info: AclInfo) -> list[_Draft]:
    """The policies of a request that have entries."""
    drafts: list[_Draft] = []
    for policy in info.policies or ():
        for entry in policy.entries or ():
            if entry.actions is None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, "actions: missing, expected a list of actions")
        if policy.entries:
            drafts.append((parse_policy_type(policy.policy_type) or PolicyType.CUSTOM, policy.entries))
    return drafts


def _checked_steps(drafts: Iterable[_Draft]) -> Generator[None, None, tuple[Policy, ...]]:
    policies: list[Policy] = []
    for kind, infos in drafts:
        entries: list[PolicyEntry] = []
        for start in range(0, len(infos), ENTRIES_AT_A_TIME):
            entries += map(_checked_entry, infos[start : start + ENTRIES_AT_A_TIME])
            yield
        policies.append(Policy(kind, tuple(entries)))
    if not policies:
        raise rejection("The policies is empty.")
    return tuple(policies)


def _checked_entry(info: PolicyEntryInfo) -> PolicyEntry:
    resource = parse_resource(info.resource)
    if resource is None:
        raise rejection("The resource is null.")
    actions = tuple(action for name in info.actions or () if (action := parse_action(name)) is not None)
    if not actions:
        raise rejection("The actions is empty.")
    if Action.ANY in actions:
        raise rejection("The actions can not be Any.")
    for source_ip in info.source_ips or ():
        if is_blank(source_ip):
            raise rejection("The source ip is empty.")
        if not is_address_or_range(source_ip):
            raise rejection("The source ip is invalid.")
    decision = parse_decision(info.decision)
    if decision is None:
        raise rejection("The decision is null or illegal.")
    return PolicyEntry(resource, actions, tuple(info.source_ips or ()), decision)


def _stored_acl(info: AclInfo) -> Acl:
    username = parse_subject(info.subject)
    if username is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"subject={info.subject}: expected User:NAME")
    return Acl(username, finish(_checked_steps(_policies_of(info))))
