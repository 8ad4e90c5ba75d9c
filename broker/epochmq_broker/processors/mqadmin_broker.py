"""The broker itself by administration: its settings (25, 26), its state (28) and its counters (315), as
RocketMQ's AdminBrokerProcessor and Configuration do it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from epochmq_broker.processors.mqadmin_dependencies import MqadminDependencies, now_ms
from epochmq_broker.stats import stats_window
from epochmq_broker.store.config_files import write_config
from epochmq_broker.store.statuses import RunningFlags
from epochmq_protocol import properties
from epochmq_protocol.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    DataVersion,
    KVTable,
    to_json,
)
from epochmq_protocol.codes import CURRENT_VERSION, RequestCode, ResponseCode
from epochmq_protocol.errors import ConfigError, RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers import GetBrokerConfigResponseHeader, ViewBrokerStatsDataRequestHeader
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

ALWAYS_BLACK = frozenset(["brokerConfigPath", "rocketmqHome", "configBlackList"])

FIXED_AT_START = frozenset(
    [
        "adminSocketPath",
        "bindAddress",
        "brokerClusterName",
        "brokerIP1",
        "brokerIP2",
        "brokerId",
        "brokerName",
        "brokerRole",
        "clientIP",
        "haListenPort",
        "listenPort",
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "maxHashSlotNum",
        "maxIndexNum",
        "messageDelayLevel",
        "serverChannelMaxIdleTimeSeconds",
        "storePathCommitLog",
        "storePathRootDir",
        "tlsServerCertPath",
        "tlsServerKeyPath",
        "tlsServerMode",
        "tlsServerNeedClientAuth",
        "tlsServerTrustCertPath",
    ]
)
"""What is read once, at the start. RocketMQ takes such a change, shows the new value and goes on with the old
one."""

log = logging.getLogger(__name__)


class MqadminBrokerProcessor:
    """What an administrator asks of the broker as a whole."""

    def __init__(self, parts: MqadminDependencies) -> None:
        self._parts = parts
        self._config_version = DataVersion(timestamp=now_ms())
        self._config_lock = asyncio.Lock()  # one change of the file after the other

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats,
        }

    # settings

    async def update_config(self, connection: RemotingConnection, command: Command) -> Command:
        """Changes settings while the broker runs: all of them or none. A value that cannot be is refused with
        the key, the value and what was expected, where RocketMQ silently keeps the old one; unknown keys are
        ignored, as there. The changes go into the configuration file the broker was started with, if any."""
        try:
            changes = properties.parse(command.body.decode("utf-8"))
        except UnicodeDecodeError:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None
        live = self._parts.live
        black = ALWAYS_BLACK | set(live.current.config_black_list.split(";"))
        if black & changes.keys():
            raise RequestError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        before = live.as_properties()
        known = {key: value for key, value in changes.items() if before.get(key) != value}
        for key in sorted(FIXED_AT_START & known.keys()):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{key}={known[key]}: expected {before.get(key, '')}, for it is fixed while the broker runs; "
                "change it in the configuration file and restart the broker",
            )
        if known:
            try:
                warnings = live.update(known)
            except ConfigError as error:
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
            for warning in warnings:
                log.warning("update of the configuration by %s: %s", connection.remote, warning)
            after = live.as_properties()
            taken = {key: value for key, value in known.items() if key in after}
            if taken:
                self._config_version = self._config_version.next(now_ms())
                log.info("configuration changed by %s: %s", connection.remote, taken)
                async with self._config_lock:
                    await asyncio.to_thread(self._write_config, taken)
        if "brokerPermission" in changes:
            await self._parts.registered()
        return response(command, ResponseCode.SUCCESS)

    def _write_config(self, changes: Mapping[str, str]) -> None:
        """Puts the changes into the file the broker was started with, leaving what else stands there."""
        name = self._parts.live.as_properties().get("brokerConfigPath")
        if not name or not changes:
            return
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8")
            write_config(path, properties.rewrite(text, changes).encode())
        except OSError as error:
            # The change is in force; that it will not outlive the process is for a person to know.
            log.error("%s keeps its old content: %s", path, error)

    def config(self, connection: RemotingConnection, command: Command) -> Command:
        """Every setting with its value, and the version of them all."""
        header = GetBrokerConfigResponseHeader(version=to_json(self._config_version).decode())
        text = properties.format(_FOR_TOOLS | self._parts.live.as_properties(), is_sorted=True)
        return response(command, ResponseCode.SUCCESS, header=header, body=text.encode())

    # state

    def runtime_info(self, connection: RemotingConnection, command: Command) -> Command:
        """Names and values of everything that changes while the broker runs."""
        parts, now = self._parts, now_ms()
        store, config = parts.store, parts.live.current
        log_dir = str(store.config.commit_log_dir)
        used = store.disk_used_ratio
        table = {
            **parts.stats.runtime_info(now),
            **parts.delays.running_stats(),
            **dict.fromkeys(_THREAD_POOL_KEYS, "0"),
            **_CAPACITIES,
            **_replication(parts),
            "brokerActive": "true",
            "brokerVersion": str(int(CURRENT_VERSION)),
            "brokerVersionDesc": version_name(int(CURRENT_VERSION)),
            "commitLogDiskRatio": str(used),
            f"commitLogDiskRatio_{log_dir}": str(used),
            "consumeQueueDiskRatio": str(used),
            "commitLogMinOffset": str(store.min_phy_offset),
            "commitLogMaxOffset": str(store.max_phy_offset),
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(store.lookup.earliest_time()),
            "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
            "remainHowManyDataToFlush": readable_bytes(store.unflushed_bytes),
        }
        try:
            disk = os.statvfs(config.root_dir)
            total, free = disk.f_blocks * disk.f_frsize, disk.f_bfree * disk.f_frsize
            table["commitLogDirCapacity"] = f"Total : {readable_bytes(total)}, Free : {readable_bytes(free)}."
        except OSError as error:
            log.warning("the size of the disk of %s is unknown: %s", config.root_dir, error)
        return response(command, ResponseCode.SUCCESS, body=to_json(KVTable(table=table)))

    def stats(self, connection: RemotingConnection, command: Command) -> Command:
        """One counter over the last minute, hour and day."""
        header = ViewBrokerStatsDataRequestHeader.decode(command.ext)
        item = self._parts.stats.find(header.stats_name, header.stats_key)
        if item is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        minute, hour, day = (
            BrokerStatsItem(sum=found.sum, tps=found.tps, avgpt=found.avgpt)
            for found in map(stats_window, (item.minute, item.hour, item.day))
        )
        body = BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))


def _replication(parts: MqadminDependencies) -> dict[str, str]:
    """What a replica under controllers adds to RocketMQ's figures: the epoch of the end of its log, up to
    where it is confirmed, and whether it was fenced or drained."""
    ha = parts.ha
    if not ha.controlled:
        return {}
    return {
        "epoch": str(ha.epochs.epochs.last_epoch),
        "confirmOffset": str(ha.confirm_offset),
        "fenced": str(bool(parts.store.state.flags & RunningFlags.FENCED)).lower(),
        "drained": str(parts.live.current.async_learner).lower(),
    }


_FOR_TOOLS = {"clientCallbackExecutorThreads": str(os.cpu_count() or 1), "useTLS": "false"}
"""Client settings that a Java broker shows among its own: exportMetrics takes the first for the number of
processors, exportConfigs copies the second."""

_POOLS = ("send", "pull", "litePull", "query", "ack")
_THREAD_POOL_KEYS = (
    *(f"{pool}ThreadPoolQueueSize" for pool in _POOLS),
    *(f"{pool}ThreadPoolQueueHeadWaitTimeMills" for pool in _POOLS),
    "EndTransactionQueueSize",
)
_CAPACITIES = {
    "sendThreadPoolQueueCapacity": "10000",
    "pullThreadPoolQueueCapacity": "100000",
    "litePullThreadPoolQueueCapacity": "100000",
    "queryThreadPoolQueueCapacity": "20000",
    "ackThreadPoolQueueCapacity": "100000",
    "EndTransactionThreadPoolQueueCapacity": "100000",
}
"""RocketMQ's defaults. Requests wait in no queue here; tools show these columns all the same."""


def version_name(version: int) -> str:
    """`V5_3_3` for 479: every release takes two numbers, its snapshot's and its own (MQVersion)."""
    # Only the versions this broker can be are named; a new one belongs here when CURRENT_VERSION moves.
    return {479: "V5_3_3"}.get(version, str(version))


def readable_bytes(size: int) -> str:
    """`1.5 KiB`, as MixAll.humanReadableByteCount spells it."""
    if size < 1024:
        return f"{size} B"
    value, unit = float(size), 0
    while value >= 1024 and unit < len("KMGTPE"):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {'KMGTPE'[unit - 1]}iB"
