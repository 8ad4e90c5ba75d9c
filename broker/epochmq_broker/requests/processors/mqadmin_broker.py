"""Serves mqadmin's requests about the broker itself: its settings (25, 26), its state (28) and its statistics
(315), as RocketMQ's AdminBrokerProcessor and Configuration do."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from epochmq_broker.auth.access_settings import ACCESS_KEYS, SECRET_KEYS
from epochmq_broker.config.broker_config import BrokerConfig, normalized
from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.tables.stats import stats_window
from epochmq_protocol import properties
from epochmq_protocol.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    DataVersion,
    KVTable,
    to_json,
)
from epochmq_protocol.codes import CURRENT_VERSION, RequestCode, ResponseCode, version_name
from epochmq_protocol.errors import ConfigError, RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_admin import GetBrokerConfigResponseHeader, ViewBrokerStatsDataRequestHeader
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_store.message_store import MessageStore
from epochmq_store.state_files.state_file_io import write_state_file
from epochmq_store.statuses import RunningFlags

WARNINGS_SHOWN = 10
"""Warnings about one request that the log shows."""
SETTINGS_AT_ONCE = 100
"""A request with more settings is handled in several turns of the event loop."""
_DEFAULTS = BrokerConfig().as_properties()
ALWAYS_BLACK = frozenset(["brokerConfigPath", "rocketmqHome", "configBlackList"])

log = logging.getLogger(__name__)


class MqadminBrokerProcessor:
    """Serves requests about the broker as a whole."""

    def __init__(self, components: MqadminDependencies) -> None:
        self._components = components
        self._config_version = DataVersion(timestamp=now_ms())
        self._config_lock = asyncio.Lock()  # changes of the file run one after another

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
        """Changes settings while the broker runs; all or none. An invalid value is rejected with the key, the
        value and the expected values; RocketMQ silently keeps the old one. Unknown keys are ignored, as
        there. The changes are written into the configuration file with which the broker was started, if there
        is one."""
        changes = normalized(properties.parse_request(command.body))
        live = self._components.live
        black = ALWAYS_BLACK | {key.strip() for key in live.current.config_black_list.split(";")}
        if black & changes.keys():
            raise RequestError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        before = live.as_properties()
        known = {key: value for key, value in changes.items() if before.get(key) != value}
        if len(changes) > SETTINGS_AT_ONCE:
            await asyncio.sleep(0)
        if known:
            try:
                warnings = live.update(known)
            except ConfigError as error:
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
            if warnings:
                shown = "; ".join(warnings[:WARNINGS_SHOWN])
                log.warning("%d warnings about %s's change: %s", len(warnings), connection.remote, shown)
            if len(changes) > SETTINGS_AT_ONCE:
                await asyncio.sleep(0)
            after = live.as_properties()
            taken = {key: value for key, value in known.items() if key in after}
            if taken:
                self._config_version = self._config_version.next(now_ms())
                log.info("configuration changed by %s: %s", connection.remote, taken)
                async with self._config_lock:
                    await asyncio.to_thread(self._write_config, taken)
        if "brokerPermission" in changes:
            await self._components.registered()
        return response(command, ResponseCode.SUCCESS)

    def _write_config(self, changes: Mapping[str, str]) -> None:
        """Writes the changes into the broker's configuration file; the rest of the file stays."""
        name = self._components.live.as_properties().get("brokerConfigPath")
        if not name or not changes:
            return
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8")
            write_state_file(path, properties.rewrite(text, changes).encode())
        except OSError as error:
            # The change is in force, but a restart will lose it.
            log.error(
                "could not write the configuration change to %s, a restart will lose it: %s", path, error
            )

    def config(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns every setting with its value, and their version. As in RocketMQ, a key of access control is
        shown if it was set. A password is never shown."""
        header = GetBrokerConfigResponseHeader(version=to_json(self._config_version).decode())
        shown = {
            key: value
            for key, value in self._components.live.as_properties().items()
            if key not in SECRET_KEYS and (key not in ACCESS_KEYS or value != _DEFAULTS[key])
        }
        text = properties.format(_FOR_TOOLS | shown, is_sorted=True)
        return response(command, ResponseCode.SUCCESS, header=header, body=text.encode())

    # state

    def runtime_info(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the names and values of everything that changes while the broker runs."""
        components, now = self._components, now_ms()
        store, config = components.store, components.live.current
        used = store.disk_used_ratio
        table = {
            **components.stats.runtime_info(now),
            **components.delays.running_stats(),
            **dict.fromkeys(_THREAD_POOL_KEYS, "0"),
            **_CAPACITIES,
            **_replication(components),
            **components.group_info(),
            "brokerActive": "true" if components.delays.is_running else "false",
            "brokerVersion": str(int(CURRENT_VERSION)),
            "brokerVersionDesc": version_name(int(CURRENT_VERSION)),
            "commitLogDiskRatio": str(used),
            **_log_paths(store),
            "consumeQueueDiskRatio": str(used),
            "commitLogMinOffset": str(store.min_phy_offset),
            "commitLogMaxOffset": str(store.max_phy_offset),
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(store.lookup.earliest_time()),
            "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
            **_timer(components),
            "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
            "remainHowManyDataToFlush": readable_bytes(store.unflushed_bytes),
        }
        try:
            disk = os.statvfs(config.root_dir)
            total, free = disk.f_blocks * disk.f_frsize, disk.f_bfree * disk.f_frsize
            table["commitLogDirCapacity"] = f"Total : {readable_bytes(total)}, Free : {readable_bytes(free)}."
        except OSError as error:
            log.warning("could not read the disk capacity of %s: %s", config.root_dir, error)
        return response(command, ResponseCode.SUCCESS, body=to_json(KVTable(table=table)))

    def stats(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns one counter over the last minute, hour and day."""
        header = ViewBrokerStatsDataRequestHeader.decode(command.ext)
        item = self._components.stats.find(header.stats_name, header.stats_key)
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


def _replication(components: MqadminDependencies) -> dict[str, str]:
    """The entries that a replica under controllers adds to RocketMQ's: the last epoch of its log, the confirm
    offset, whether it is fenced or drained, and on a master which replicas the controllers refuse to add to
    the SyncStateSet, and why."""
    ha = components.ha
    if not ha.controlled:
        return {}
    refused = ha.sync_state.refused if ha.sync_state is not None else {}
    return {
        "refusedBySyncStateSet": "; ".join(
            f"broker {one}: {why.reason}" for one, why in sorted(refused.items())
        ),
        "epoch": str(ha.epochs.epochs.last_epoch),
        "confirmOffset": str(ha.confirm_offset),
        "fenced": str(bool(components.store.state.flags & RunningFlags.FENCED)).lower(),
        "drained": str(components.live.current.async_learner).lower(),
    }


def _timer(components: MqadminDependencies) -> dict[str, str]:
    """How far the timer lags, and how busy it is."""
    timer = components.timer
    if timer is None:
        return {
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }
    return {
        "timerReadBehind": str(timer.read_behind_ms // 1000),
        "timerOffsetBehind": str(timer.offset_behind),
        "timerCongestNum": str(timer.timers.pending),
        "timerEnqueueTps": str(timer.enqueue_tps),
        "timerDequeueTps": str(timer.dequeue_tps),
    }


def _log_paths(store: MessageStore) -> dict[str, str]:
    """The used share of the disk of each directory of the log."""
    measured = dict(store.log_expiry.use.log_paths)
    return {
        f"commitLogDiskRatio_{path}": str(measured.get(path, 0.0)) for path in store.config.commit_log_dirs
    }


_FOR_TOOLS = {"clientCallbackExecutorThreads": str(os.cpu_count() or 1)}
"""A client's setting that a Java broker shows among its own. `mqadmin exportMetrics` takes it as the number
of processors."""

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
"""RocketMQ's defaults. Requests wait in no queue here, but tools show these columns."""


def readable_bytes(size: int) -> str:
    """`1.5 KiB`, as MixAll.humanReadableByteCount formats it."""
    if size < 1024:
        return f"{size} B"
    value, unit = float(size), 0
    while value >= 1024 and unit < len("KMGTPE"):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {'KMGTPE'[unit - 1]}iB"
