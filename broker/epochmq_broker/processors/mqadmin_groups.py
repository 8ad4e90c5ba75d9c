"""Subscription groups by administration: create and change (200, 225), delete (207), show (352), and
forbid a group to read a topic (353), as RocketMQ's AdminBrokerProcessor does it.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_protocol.bodies import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    from_json,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler


class MqadminGroupProcessor:
    """Everything an administrator does with subscription groups."""

    def __init__(self, parts: MqadminDependencies) -> None:
        self._parts = parts

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid,
        }

    def update(self, connection: RemotingConnection, command: Command) -> Command:
        """Creates or changes one group. 5.3.3 takes any name; an empty one would be a group nobody can
        use."""
        self._apply([from_json(SubscriptionGroupConfig, command.body)])
        return response(command, ResponseCode.SUCCESS)

    def update_list(self, connection: RemotingConnection, command: Command) -> Command:
        """Creates or changes many groups: all of them, or none when one is refused."""
        self._apply(from_json(SubscriptionGroupList, command.body).group_config_list)
        return response(command, ResponseCode.SUCCESS)

    def _apply(self, configs: list[SubscriptionGroupConfig]) -> None:
        for config in configs:
            if not config.group_name.strip():
                raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified group is blank.")
        self._parts.groups.update(configs)

    def delete(self, connection: RemotingConnection, command: Command) -> Command:
        """Forgets a group and, when asked to, its offsets. Deleting what does not exist succeeds."""
        header = DeleteSubscriptionGroupRequestHeader.decode(command.ext)
        self._parts.groups.delete(header.group_name)
        if header.clean_offset:
            self._parts.offsets.forget_group(header.group_name)
        self._parts.stats.forget_group(header.group_name)
        return response(command, ResponseCode.SUCCESS)

    def group_config(self, connection: RemotingConnection, command: Command) -> Command:
        """One group's configuration. As with every look-up of a group, an unknown one is created when groups
        may be."""
        name = GetSubscriptionGroupConfigRequestHeader.decode(command.ext).group
        config = self._parts.groups.find(name)
        if config is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return response(command, ResponseCode.SUCCESS, body=to_json(config))

    def forbid(self, connection: RemotingConnection, command: Command) -> Command:
        """Lets a group read a topic or not (`readable` absent: only tells)."""
        header = UpdateGroupForbiddenRequestHeader.decode(command.ext)
        groups = self._parts.groups
        if header.readable is not None:
            groups.forbid(header.group, header.topic, not header.readable)
        body = GroupForbidden(
            topic=header.topic,
            group=header.group,
            readable=not groups.is_forbidden(header.group, header.topic),
        )
        return response(command, ResponseCode.SUCCESS, "", body=to_json(body))
