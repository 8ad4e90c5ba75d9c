"""Serves the nameservers' notifications of a group's smallest broker id (RIP-32; AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.membership.modes.availability_mode import AvailabilityMode
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_controller import NotifyMinBrokerIdChangeRequestHeader
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler


class ActingMasterProcessor:
    """Serves them on the main port and on the VIP port."""

    def __init__(self, mode: AvailabilityMode) -> None:
        """Without enableSlaveActingMaster notifications succeed and have no effect."""
        self._mode = mode

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.min_id_changed}

    def unverified_handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler of requests whose sender is not known. Nameservers do not sign their
        notifications; this broker then asks them for the group itself."""
        return {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.min_id_may_have_changed}

    def min_id_changed(self, connection: RemotingConnection, command: Command) -> Command:
        """905: the smallest id of the group has changed. The name of the group is not checked, as in
        RocketMQ."""
        header = NotifyMinBrokerIdChangeRequestHeader.decode(command.ext)
        self._mode.min_id_changed(header)
        return response(command, ResponseCode.SUCCESS)

    def min_id_may_have_changed(self, connection: RemotingConnection, command: Command) -> Command:
        """905 without a signature: makes the broker poll the nameservers."""
        self._mode.min_id_may_have_changed()
        return response(command, ResponseCode.SUCCESS)
