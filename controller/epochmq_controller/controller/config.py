"""Defines and loads the controller's settings: RocketMQ's keys of a `controller.conf` (ControllerConfig), and
our own.

Keys of Java's thread pools, of JRaft and of metrics exporters have no effect here. They are read and shown,
so that a Java `controller.conf` works.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Set
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from epochmq_controller import settings_file
from epochmq_controller.port_settings import FIXED_PORT_KEYS, Count, Port, PortSettings, Positive
from epochmq_controller.replica_groups.state_machine_types import ControllerStateMachineSettings
from epochmq_dledger.core.types import RaftSettings
from epochmq_dledger.peer_addresses import parse_peers
from epochmq_protocol import typed_config
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport.client import split_address
from epochmq_protocol.transport.settings import ServerSettings

FileSize = Annotated[int, Meta(ge=4096, le=(1 << 31) - 1)]

BLACK_LIST = frozenset(["configBlackList", "configStorePath", "rocketmqHome"])
"""Keys that UPDATE_CONTROLLER_CONFIG never changes; `configBlackList` adds to them."""

IMMUTABLE_KEYS = frozenset(
    {"controllerDLegerGroup", "controllerDLegerPeers", "controllerDLegerSelfId", "controllerStorePath"}
    | {"mappedFileSize", "controllerType", "heartBeatTimeIntervalMs", "writeLeaseMs"}
    | {"controllerSnapshotEntries", "joinControllerGroup"}
    | {"bindAddress", "controllerBindAddress", "listenPort", "adminSocketPath"}
    | FIXED_PORT_KEYS
)
"""Keys that cannot change while the process runs."""

_CHANGEABLE_NAMES = """
    controllerRequestThreadPoolQueueCapacity controllerThreadPoolNums electMasterMaxRetryCount
    enableElectUncleanMaster enableShutdownGracefully isProcessReadEvent
    metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
    metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader
    metricsGrpcExporterTarget metricsInDelta metricsLabel metricsPromExporterHost
    metricsPromExporterPort notifyBrokerRoleChanged scanInactiveMasterInterval
    scanNotActiveBrokerInterval serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
    serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds useEpollNativeSelector
    writeBufferHighWaterMark writeBufferLowWaterMark
"""
CHANGEABLE_KEYS = frozenset(_CHANGEABLE_NAMES.split())
"""Keys that may change while the process runs. A new key is fixed unless it is added here."""

ACK_WAIT_MAX_MS = 24 * 3600 * 1000
"""No proposal times out in the Raft core while this controller leads: the state machine must know whether it
was committed before it decides for its group again. The client gets a time-out from `request_queues`."""

WITHOUT_EFFECT = frozenset(
    {"jRaftGroupId", "jRaftServerId", "jRaftInitConf", "jRaftControllerRPCAddr", "jRaftElectionTimeoutMs"}
    | {"jRaftScanWaitTimeoutMs", "jRaftSnapshotIntervalSecs"}
    | {"clientWorkerThreads", "clientCallbackExecutorThreads", "clientOnewaySemaphoreValue"}
    | {"clientAsyncSemaphoreValue", "connectTimeoutMillis", "channelNotActiveInterval"}
    | {"clientChannelMaxIdleTimeSeconds", "clientSocketSndBufSize", "clientSocketRcvBufSize"}
)
"""Further keys of a Java `controller.conf` (JraftConfig, NettyClientConfig): shown if present, and without a
warning."""


class ControllerConfig(PortSettings, frozen=True, kw_only=True, rename="camel"):
    """One controller's settings. Defaults are those of 5.3.3 unless a field says otherwise."""

    rocketmq_home: str | None = None
    config_store_path: str = "~/controller/controller.properties"
    """Where changed settings are written: the file they were read from, if there was one."""
    controller_type: str = "DLedger"
    scan_not_active_broker_interval: Positive = 500
    """Interval of scans for brokers without heartbeats, ms. Java: 5000, which can delay the replacement of a
    dead master by five seconds."""
    controller_thread_pool_nums: Count = 16
    controller_request_thread_pool_queue_capacity: Positive = 50_000
    """Pending requests. Further ones are rejected with SYSTEM_BUSY."""
    controller_d_leger_group: str | None = msgspec.field(default=None, name="controllerDLegerGroup")
    controller_d_leger_peers: str | None = msgspec.field(default=None, name="controllerDLegerPeers")
    controller_d_leger_self_id: str | None = msgspec.field(default=None, name="controllerDLegerSelfId")
    mapped_file_size: FileSize = 1 << 30
    """Bytes of a file of the Raft log. All controllers of a group need the same value."""
    controller_store_path: str = ""
    elect_master_max_retry_count: Positive = 3
    enable_elect_unclean_master: bool = False
    """Elect a replica outside the SyncStateSet if no member is alive. Acknowledged messages may be lost."""
    is_process_read_event: bool = False
    """Confirm leadership by a quorum round trip before responses to reads. (Java appends an entry.)"""
    notify_broker_role_changed: bool = True
    scan_inactive_master_interval: Positive = 1000
    """Interval of scans for groups without a live master, ms. Java: 5000."""
    metrics_exporter_type: str = "DISABLE"
    metrics_grpc_exporter_target: str = ""
    metrics_grpc_exporter_header: str = ""
    metric_grpc_exporter_time_out_in_mills: Count = 3_000
    metric_grpc_exporter_interval_in_mills: Count = 60_000
    metric_logging_exporter_interval_in_mills: Count = 10_000
    metrics_prom_exporter_port: Port = 5557
    metrics_prom_exporter_host: str = ""
    metrics_label: str = ""
    metrics_in_delta: bool = False
    config_black_list: str = "configBlackList;configStorePath"

    # Ours
    heart_beat_time_interval_ms: Positive = 200
    """Interval of the leader's heartbeats to its peers, ms. DLedger: 2000. The election timeout is three
    intervals."""
    write_lease_ms: Positive = 300
    """How long a master may write after it requested a lease. A dead master is replaced no sooner than this.
    All controllers of a group need the same value: those that report different ones ignore each other."""
    controller_snapshot_entries: Count = 0
    """After this many entries of the log the controller saves a snapshot and drops earlier data files, if all
    controllers of the group are EpochMQ's. 0: never, so that RocketMQ's controller can open the directory."""
    join_controller_group: bool = False
    """This controller is new to a running group, and waits to be added. No effect once the log names the
    members."""

    controller_bind_address: str = ""
    """Address to listen on, if `bindAddress` is missing or belongs to the nameserver in the same process. In
    a pod this is every address: the DNS may not know the pod's name yet."""
    bind_address: str = ""
    """Address to listen on. Without one, `load` sets this peer's address among the peers. `load` always sets
    `listen_port` to the peer's port, as Java does."""

    def black_list(self) -> frozenset[str]:
        """Keys that a request cannot change."""
        return BLACK_LIST | frozenset(key.strip() for key in self.config_black_list.split(";"))

    def addresses(self) -> dict[str, str]:
        """The controllers' addresses by id."""
        return parse_peers(self.controller_d_leger_peers or "")

    def store_path(self) -> Path:
        """This peer's directory: `dledger-<id>` in the store path."""
        base = self.controller_store_path or "~/DLedgerController"
        return Path(base).expanduser() / f"dledger-{self.controller_d_leger_self_id}"

    def raft_settings(self) -> RaftSettings:
        """The settings of the Raft peer."""
        heartbeat_ms = self.heart_beat_time_interval_ms
        return RaftSettings(
            group=self.controller_d_leger_group or "",
            self_id=self.controller_d_leger_self_id or "",
            peers=tuple(self.addresses()),
            file_size=self.mapped_file_size,
            heartbeat_interval_ms=heartbeat_ms,
            vote_interval_min_ms=min(300, heartbeat_ms),
            vote_interval_max_ms=min(1000, 3 * heartbeat_ms),
            ack_wait_max_ms=ACK_WAIT_MAX_MS,
            joining=self.join_controller_group,
            shared_settings=f"writeLeaseMs={self.write_lease_ms}",
            snapshot_entries=self.controller_snapshot_entries,
        )

    def state_machine_settings(self) -> ControllerStateMachineSettings:
        """The settings of the state machine."""
        return ControllerStateMachineSettings(
            lease_ms=self.write_lease_ms,
            scan_brokers_ms=self.scan_not_active_broker_interval,
            scan_masters_ms=self.scan_inactive_master_interval,
            unclean=self.enable_elect_unclean_master,
            confirm_reads=self.is_process_read_event,
            notify=self.notify_broker_role_changed,
        )

    def server_settings(self) -> ServerSettings:
        """The settings of the transport."""
        return msgspec.structs.replace(
            super().server_settings(), max_in_flight=self.controller_request_thread_pool_queue_capacity
        )


LoadedControllerConfig = settings_file.LoadedSettings[ControllerConfig]
KEYS = typed_config.keys(ControllerConfig) | WITHOUT_EFFECT
"""The keys of a `controller.conf`."""


def load(
    text: str,
    overrides: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    *,
    without: Collection[str] = (),
    known_elsewhere: Set[str] = frozenset(),
) -> LoadedControllerConfig:
    """Loads the text of a `controller.conf`. `overrides` win over it, and it wins over `defaults`. Keys in
    `without` are ignored. ConfigError names a key, its value and what was expected."""
    loaded = settings_file.load(
        ControllerConfig,
        text,
        overrides,
        defaults,
        without=without,
        known_elsewhere=WITHOUT_EFFECT | known_elsewhere,
    )
    config = loaded.config
    check(config)
    own_host, own_port = split_address(config.addresses()[config.controller_d_leger_self_id or ""])
    config = msgspec.structs.replace(
        config,
        bind_address=config.bind_address or config.controller_bind_address or own_host,
        listen_port=own_port,
    )
    return dataclasses.replace(loaded, config=config)


def check(config: ControllerConfig) -> None:
    """Checks rules beyond single values. ConfigError names the key that breaks one."""
    if config.controller_type.lower() != "dledger":
        raise ConfigError("controllerType", config.controller_type, "DLedger (jRaft is not implemented)")
    if not config.controller_d_leger_group:
        raise ConfigError("controllerDLegerGroup", "", "the name of the controllers' Raft group")
    config.check_port()
    peers = config.controller_d_leger_peers or ""
    try:
        addresses = config.addresses()
        ports = {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}
    except ValueError as error:
        raise ConfigError("controllerDLegerPeers", peers, f"id-host:port;id-host:port;… ({error})") from None
    for name, port in ports.items():
        if not 0 < port < 1 << 16:
            raise ConfigError("controllerDLegerPeers", peers, f"a port from 1 to 65535 for {name}")
    if len(set(addresses.values())) < len(addresses):
        raise ConfigError("controllerDLegerPeers", peers, "an address of its own for every peer")
    if config.controller_d_leger_self_id not in addresses:
        raise ConfigError(
            "controllerDLegerSelfId",
            config.controller_d_leger_self_id or "",
            f"one of the ids in controllerDLegerPeers: {', '.join(addresses)}",
        )
