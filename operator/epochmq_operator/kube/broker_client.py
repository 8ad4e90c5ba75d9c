"""Asks masters for topics and users, and changes them, by RocketMQ's own requests. A request is signed if
the group has access control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from epochmq_operator.entities.broker_changes import (
    BrokerUser,
    Change,
    Permission,
    PutPermissions,
    PutTopic,
    PutUser,
    RemovePermission,
    RemoveTopic,
    RemoveUser,
)
from epochmq_protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo, from_json, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_admin import (
    CreateAclRequestHeader,
    CreateTopicRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteTopicRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetTopicConfigRequestHeader,
    GetUserRequestHeader,
    UpdateAclRequestHeader,
    UpdateUserRequestHeader,
)
from epochmq_protocol.signatures import SessionCredentials, sign
from epochmq_protocol.topics import AUTO_CREATE_TOPIC_KEY_TOPIC, TopicConfig, TopicConfigAndQueueMapping
from epochmq_protocol.transport import RemotingClient

TIMEOUT_MS = 4000
"""A change begins before this operator must stop writing, and ends before another one may begin
(`lease_rules`)."""


@dataclass(frozen=True, slots=True)
class Master:
    """A master: its address (`host:port`), its brokerName, and what requests to it are signed with."""

    address: str
    broker_name: str
    credentials: SessionCredentials | None = None


class BrokerRejectionError(EpochMQError):
    """The broker rejected a request. The text is the broker's."""


class BrokerClient:
    """A client of the masters. `close` it at the end."""

    def __init__(self) -> None:
        self._client = RemotingClient()

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()

    async def topic(self, master: Master, name: str) -> TopicConfig | None:
        """The topic of this name; None if the broker has none. BrokerRejectionError, or an EpochMQError if
        the broker does not respond."""
        header = GetTopicConfigRequestHeader(topic=name, bname=master.broker_name)
        command = request(RequestCode.GET_TOPIC_CONFIG, header)
        response = await self._call(master, command, (ResponseCode.TOPIC_NOT_EXIST,))
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        found = msgspec.structs.asdict(from_json(TopicConfigAndQueueMapping, response.body))
        if found.pop("mapping_detail") is not None:
            raise BrokerRejectionError(f"{name} is a static topic, which mqadmin updateStaticTopic changes")
        return TopicConfig(**found)

    async def user(self, master: Master, name: str, *, with_acl: bool) -> BrokerUser | None:
        """The user of this name with its ACL; None if the broker has none. Without `with_acl` a broker that
        has no ACLs rejects nothing. Errors as of `topic`."""
        command = request(RequestCode.AUTH_GET_USER, GetUserRequestHeader(username=name))
        response = await self._call(master, command)
        if not response.body:
            return None
        info = from_json(UserInfo, response.body)
        acl = AclInfo()
        try:
            command = request(RequestCode.AUTH_GET_ACL, GetAclRequestHeader(subject=f"User:{name}"))
            response = await self._call(master, command)
            acl = from_json(AclInfo, response.body) if response.body else acl
        except BrokerRejectionError:
            if with_acl:  # without authorization the broker has no ACLs
                raise
        return BrokerUser(
            username=name,
            password=info.password or "",
            type=info.user_type or "Normal",
            enabled=info.user_status != "disable",
            permissions=tuple(
                _permission(policy, entry) for policy in acl.policies or () for entry in policy.entries or ()
            ),
        )

    async def change(self, master: Master, change: Change) -> None:
        """Makes one change. Errors as of `topic`."""
        await self._call(master, _command(change, master.broker_name))

    async def _call(self, master: Master, command: Command, accepted: tuple[int, ...] = ()) -> Command:
        if master.credentials is not None:
            sign(command, master.credentials)
        response = await self._client.call(master.address, command, TIMEOUT_MS)
        if response.code not in (ResponseCode.SUCCESS, *accepted):
            raise BrokerRejectionError(response.remark or f"the broker responded with code {response.code}")
        return response


def _permission(policy: PolicyInfo, entry: PolicyEntryInfo) -> Permission:
    return Permission(
        resource=entry.resource or "",
        actions=frozenset(entry.actions or ()),
        source_ips=tuple(entry.source_ips or ()),
        decision=entry.decision or "",
        policy_type=policy.policy_type or "Custom",
    )


def _command(change: Change, broker_name: str) -> Command:
    match change:
        case PutTopic():
            return request(RequestCode.UPDATE_AND_CREATE_TOPIC, _topic_header(change.config, broker_name))
        case RemoveTopic():
            header = DeleteTopicRequestHeader(topic=change.name, bname=broker_name)
            return request(RequestCode.DELETE_TOPIC_IN_BROKER, header)
        case PutUser():
            return _user_command(change)
        case RemoveUser():
            return request(RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader(username=change.username))
        case PutPermissions():
            return _acl_command(change)
        case RemovePermission():
            return request(
                RequestCode.AUTH_DELETE_ACL,
                DeleteAclRequestHeader(
                    subject=f"User:{change.username}",
                    policy_type=change.policy_type,
                    resource=change.resource,
                ),
            )


def _topic_header(config: TopicConfig, broker_name: str) -> CreateTopicRequestHeader:
    attributes = ",".join(f"{key}={value}" for key, value in sorted(config.attributes.items()))
    return CreateTopicRequestHeader(
        bname=broker_name,
        topic=config.topic_name,
        default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=str(config.topic_filter_type),
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes or None,
    )


def _user_command(change: PutUser) -> Command:
    user = change.user
    info = UserInfo(
        username=user.username,
        password=user.password,
        user_type=user.type,
        user_status="enable" if user.enabled else "disable",
    )
    header: Any = (
        UpdateUserRequestHeader(username=user.username)
        if change.exists
        else CreateUserRequestHeader(username=user.username)
    )
    code = RequestCode.AUTH_UPDATE_USER if change.exists else RequestCode.AUTH_CREATE_USER
    return request(code, header, to_json(info))


def _acl_command(change: PutPermissions) -> Command:
    subject = f"User:{change.username}"
    policies: dict[str, list[PolicyEntryInfo]] = {}
    for one in change.permissions:
        entry = PolicyEntryInfo(
            resource=one.resource,
            actions=sorted(one.actions),
            source_ips=list(one.source_ips) or None,
            decision=one.decision,
        )
        policies.setdefault(one.policy_type, []).append(entry)
    listed = [PolicyInfo(policy_type=kind, entries=entries) for kind, entries in policies.items()]
    header: Any = (
        UpdateAclRequestHeader(subject=subject) if change.exists else CreateAclRequestHeader(subject=subject)
    )
    code = RequestCode.AUTH_UPDATE_ACL if change.exists else RequestCode.AUTH_CREATE_ACL
    return request(code, header, to_json(AclInfo(subject=subject, policies=listed)))
