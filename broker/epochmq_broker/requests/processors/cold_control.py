"""Serves mqadmin's requests about cold data: thresholds of groups (2001, 2002), the state of the flow control
(2003) and the read-ahead of the commit log (2004), as RocketMQ's AdminBrokerProcessor does."""

from __future__ import annotations

import logging
import mmap
import re
from collections.abc import Awaitable, Mapping

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.services.cold_control.flow_control import ColdDataFlowControl
from epochmq_protocol import fastjson, properties
from epochmq_protocol.bodies import to_json
from epochmq_protocol.bodies_in_turns import map_entry, with_items
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.integers import INT_MAX, INT_MIN
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import Turns, in_turns

READ_AHEAD_MODE = "READ_AHEAD_MODE"
_LONG = re.compile(r"[+-]?[0-9]+")
_LONG_BOUND = 1 << 63

log = logging.getLogger(__name__)


class ColdControlProcessor:
    """Serves requests about cold data."""

    def __init__(self, live: LiveConfig, flow: ColdDataFlowControl) -> None:
        self._live = live
        self._flow = flow

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: self.update,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: self.remove,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: self.info,
            RequestCode.SET_COMMITLOG_READ_MODE: self.set_read_mode,
        }

    def update(self, connection: RemotingConnection, command: Command) -> Command:
        """Sets thresholds. The body is a properties text: group=bytes. As in RocketMQ, an entry that is not a
        number is logged and skipped."""
        changes = properties.parse_request(command.body)
        for group, value in changes.items():
            if _LONG.fullmatch(value) and -_LONG_BOUND <= int(value) < _LONG_BOUND:
                self._flow.set_threshold(group, int(value))
            else:
                log.warning(
                    "ignored the cold read threshold %r of group %s from %s: expected a number of bytes",
                    value,
                    group,
                    connection.remote,
                )
        return response(command, ResponseCode.SUCCESS)

    def remove(self, connection: RemotingConnection, command: Command) -> Command:
        """Removes the threshold of the group that the body names."""
        self._flow.remove_threshold(command.body.decode("utf-8", "replace"))
        return response(command, ResponseCode.SUCCESS)

    def info(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Returns thresholds and counters."""
        return in_turns(self._info(command, Turns()))

    async def _info(self, command: Command, turns: Turns) -> Command:
        info = self._flow.info()
        tables = {name: dict(table) for name, table in info.items() if isinstance(table, dict)}
        body = to_json(info | {name: {} for name in tables})
        for name, table in tables.items():
            entries = []
            for group in sorted(table):
                await turns.pause()
                entries.append(map_entry(group, table[group]))
            body = with_items(body, name, b"{%b}" % b",".join(entries))
        return response(command, ResponseCode.SUCCESS, body=body)

    def set_read_mode(self, connection: RemotingConnection, command: Command) -> Command:
        """Switches the read-ahead of the kernel for the commit log: 0 on, 1 off."""
        if command.ext is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode param error")
        mode = fastjson.parse_int(command.ext.get(READ_AHEAD_MODE) or "")
        if mode is None or not INT_MIN <= mode <= INT_MAX:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode failed")
        if mode not in (mmap.MADV_NORMAL, mmap.MADV_RANDOM):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error"
            )
        self._live.update({"dataReadAheadEnable": str(mode == mmap.MADV_NORMAL).lower()})
        return response(command, ResponseCode.SUCCESS, f"set commitlog readahead mode success, mode: {mode}")
