"""Serves mqadmin's requests about subscription groups: create and change (200, 225), delete (207), show
(352), and forbid a group to read a topic (353), as RocketMQ's AdminBrokerProcessor does."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_protocol.bodies import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    from_request,
    to_json,
)
from epochmq_protocol.bodies_in_turns import decode_steps
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_admin import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import Turns, in_turns

SLICE = 20
"""Groups of a list that are changed in one turn of the event loop."""


class MqadminGroupProcessor:
    """Serves requests about subscription groups."""

    def __init__(self, components: MqadminDependencies) -> None:
        self._components = components

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
        """Creates or changes one group. RocketMQ 5.3.3 accepts any name; this broker rejects an empty one,
        which no client could use."""
        config = from_request(SubscriptionGroupConfig, command.body)
        with self._components.timed(self._components.stats.group_changes_ms):
            _check_name(config)
            self._components.groups.update([config])
        return response(command, ResponseCode.SUCCESS)

    def update_list(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Creates or changes many groups: all, or none if one is rejected."""
        return in_turns(self._update_list(command, Turns()))

    async def _update_list(self, command: Command, turns: Turns) -> Command:
        body = await turns.run(decode_steps(SubscriptionGroupList, command.body))
        configs, groups = body.group_config_list, self._components.groups
        with self._components.timed(self._components.stats.group_changes_ms):
            for config in configs:
                await turns.pause()
                _check_name(config)
                groups.altered([config])
            for start in range(0, len(configs), SLICE):
                groups.update(configs[start : start + SLICE])
                if len(configs) > SLICE:
                    await turns.end()
        return response(command, ResponseCode.SUCCESS)

    def delete(self, connection: RemotingConnection, command: Command) -> Command:
        """Deletes a group and, if requested, its offsets. Succeeds if the group does not exist."""
        header = DeleteSubscriptionGroupRequestHeader.decode(command.ext)
        self._components.groups.delete(header.group_name)
        if header.clean_offset:
            self._components.offsets.forget_group(header.group_name)
        self._components.stats.forget_group(header.group_name)
        return response(command, ResponseCode.SUCCESS)

    def group_config(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns one group's configuration. As with every lookup of a group, an unknown one is created if
        autoCreateSubscriptionGroup is on."""
        name = GetSubscriptionGroupConfigRequestHeader.decode(command.ext).group
        config = self._components.groups.find(name)
        if config is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return response(command, ResponseCode.SUCCESS, body=to_json(config))

    def forbid(self, connection: RemotingConnection, command: Command) -> Command:
        """Allows or forbids a group to read a topic; without `readable`, only returns the present state."""
        header = UpdateGroupForbiddenRequestHeader.decode(command.ext)
        groups = self._components.groups
        if header.readable is not None:
            groups.forbid(header.group, header.topic, not header.readable)
        body = GroupForbidden(
            topic=header.topic,
            group=header.group,
            readable=not groups.is_forbidden(header.group, header.topic),
        )
        return response(command, ResponseCode.SUCCESS, "", body=to_json(body))


def _check_name(config: SubscriptionGroupConfig) -> None:
    if not config.group_name.strip():
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified group is blank.")
