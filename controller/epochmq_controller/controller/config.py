"""The controller's settings: RocketMQ's own keys (ControllerConfig), as `controller.conf` has them, and ours.

Keys of Java's thread pools, of JRaft and of metrics exporters are read and shown again, so that a Java
`controller.conf` works; they have no effect here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Set
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from epochmq_controller import settings_file
from epochmq_controller.port_settings import Count, Port, PortSettings, Positive
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
)
"""Keys that cannot change while the process runs."""

ACK_WAIT_MAX_MS = 24 * 3600 * 1000
"""The Raft core gives up no proposal while this controller leads: until its fate is known nothing else may be
decided about its group. The desk tells the client in time."""

WITHOUT_EFFECT = frozenset(
    {"jRaftGroupId", "jRaftServerId", "jRaftInitConf", "jRaftControllerRPCAddr", "jRaftElectionTimeoutMs"}
    | {"jRaftScanWaitTimeoutMs", "jRaftSnapshotIntervalSecs"}
    | {"clientWorkerThreads", "clientCallbackExecutorThreads", "clientOnewaySemaphoreValue"}
    | {"clientAsyncSemaphoreValue", "connectTimeoutMillis", "channelNotActiveInterval"}
    | {"clientChannelMaxIdleTimeSeconds", "clientSocketSndBufSize", "clientSocketRcvBufSize"}
)
"""More keys of a Java `controller.conf` (JraftConfig, NettyClientConfig): shown when they are there, no cause
for a warning."""


class ControllerConfig(PortSettings, frozen=True, kw_only=True, rename="camel"):
    """One controller's settings. Defaults are those of 5.3.3 unless a field says otherwise."""

    rocketmq_home: str | None = None
    config_store_path: str = "~/controller/controller.properties"
    """Where changed settings are written: the file they were read from, if there was one."""
    controller_type: str = "DLedger"
    scan_not_active_broker_interval: Positive = 500
    """How often silent brokers are looked for, ms. Java: 5000, so that a master whose machine vanished is
    replaced up to five seconds later than it could be."""
    controller_thread_pool_nums: Count = 16
    controller_request_thread_pool_queue_capacity: Positive = 50_000
    """Requests under way; more are answered SYSTEM_BUSY."""
    controller_d_leger_group: str | None = msgspec.field(default=None, name="controllerDLegerGroup")
    controller_d_leger_peers: str | None = msgspec.field(default=None, name="controllerDLegerPeers")
    controller_d_leger_self_id: str | None = msgspec.field(default=None, name="controllerDLegerSelfId")
    mapped_file_size: FileSize = 1 << 30
    """Bytes of a file of the Raft log. All controllers of a group must have the same."""
    controller_store_path: str = ""
    elect_master_max_retry_count: Positive = 3
    enable_elect_unclean_master: bool = False
    """Elect a replica outside the SyncStateSet when nobody in it lives: acknowledged messages may be lost."""
    is_process_read_event: bool = False
    """Prove leadership by a quorum round trip before reads are answered. (Java appends an entry for it.)"""
    notify_broker_role_changed: bool = True
    scan_inactive_master_interval: Positive = 1000
    """How often groups without a living master are looked for, ms. Java: 5000."""
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
    """The leader's heartbeat to its peers, ms. DLedger: 2000. Followers stand for election after three."""
    write_lease_ms: Positive = 300
    """How long a master may write after it asked for a lease. A master that vanished without a word is
    replaced no sooner than this. All controllers of a group must have the same: those that say at the
    handshake that theirs is another do not deal with each other."""
    controller_snapshot_entries: Count = 0
    """After so many entries of the log the tables are saved, and the data files before are dropped, once all
    controllers of the group are ours. 0: never, so that RocketMQ's controller can open the folder."""
    join_controller_group: bool = False
    """This controller is new to a group that is at work: it waits to be added. Without effect once the log
    says who belongs to the group."""

    controller_bind_address: str = ""
    """Where a controller listens whose `bindAddress` is the nameserver's around it, or not given. In a pod
    that is every address: the DNS may not know the pod's own name yet."""
    bind_address: str = ""
    """Where to listen. Where none is given `load` puts this peer's own address among the peers, and its port
    into `listen_port` whatever stands there, as Java does."""

    def black_list(self) -> frozenset[str]:
        """Keys that an administrator may not change."""
        return BLACK_LIST | frozenset(self.config_black_list.split(";"))

    def addresses(self) -> dict[str, str]:
        """The controllers' addresses by id."""
        return parse_peers(self.controller_d_leger_peers or "")

    def store_path(self) -> Path:
        """This peer's folder: `dledger-<id>` below the store path."""
        base = self.controller_store_path or "~/DLedgerController"
        return Path(base).expanduser() / f"dledger-{self.controller_d_leger_self_id}"

    def raft_settings(self) -> RaftSettings:
        """What the Raft core is told."""
        beat_ms = self.heart_beat_time_interval_ms
        return RaftSettings(
            group=self.controller_d_leger_group or "",
            self_id=self.controller_d_leger_self_id or "",
            peers=tuple(self.addresses()),
            file_size=self.mapped_file_size,
            heartbeat_interval_ms=beat_ms,
            vote_interval_min_ms=min(300, beat_ms),
            vote_interval_max_ms=min(1000, 3 * beat_ms),
            ack_wait_max_ms=ACK_WAIT_MAX_MS,
            joining=self.join_controller_group,
            shared_settings=f"writeLeaseMs={self.write_lease_ms}",
            snapshot_entries=self.controller_snapshot_entries,
        )

    def state_machine_settings(self) -> ControllerStateMachineSettings:
        """What the desk is told."""
        return ControllerStateMachineSettings(
            lease_ms=self.write_lease_ms,
            scan_brokers_ms=self.scan_not_active_broker_interval,
            scan_masters_ms=self.scan_inactive_master_interval,
            unclean=self.enable_elect_unclean_master,
            prove_reads=self.is_process_read_event,
            notify=self.notify_broker_role_changed,
        )

    def server_settings(self) -> ServerSettings:
        """What the transport is told."""
        return msgspec.structs.replace(
            super().server_settings(), max_in_flight=self.controller_request_thread_pool_queue_capacity
        )


LoadedControllerConfig = settings_file.LoadedSettings[ControllerConfig]
KEYS = typed_config.keys(ControllerConfig) | WITHOUT_EFFECT
"""What may stand in a `controller.conf`."""


def load(
    text: str,
    overrides: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    *,
    without: Collection[str] = (),
    known_elsewhere: Set[str] = frozenset(),
) -> LoadedControllerConfig:
    """Reads the text of a `controller.conf`; `overrides` win over it, `defaults` lose; the keys in `without`
    are meant for somebody else. ConfigError names a key, its value and what was expected."""
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
    """Rules beyond single values. ConfigError for what cannot be."""
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
