"""Defines and loads the nameserver's settings: RocketMQ's keys of a `namesrv.conf` (NamesrvConfig,
NettyServerConfig).

RocketMQ's keys of thread pools and socket buffers are keys without effect, because one event loop serves all
connections. They are accepted and shown, so that a `namesrv.conf` of RocketMQ works and the response to
GET_NAMESRV_CONFIG has the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Annotated, Literal

from msgspec import Meta

from epochmq_controller import settings_file
from epochmq_controller.port_settings import FIXED_PORT_KEYS, Count, Port, PortSettings, Positive
from epochmq_protocol import typed_config
from epochmq_protocol.errors import ConfigError

ExternalPort = Annotated[int, Meta(ge=1, le=65535)]

BLACK_LIST = frozenset(["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"])
"""Keys that UPDATE_NAMESRV_CONFIG never changes; `configBlackList` adds to them."""

IMMUTABLE_KEYS = frozenset(
    {"adminSocketPath", "bindAddress", "listenPort", "externalListenPort", "externalTlsMode"}
    | {"enableControllerInNamesrv"}
    | FIXED_PORT_KEYS
)
"""Keys that cannot change while the process runs."""

_CHANGEABLE_NAMES = """
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clusterTest defaultThreadPoolNums
    defaultThreadPoolQueueCapacity deleteTopicWithBrokerRegistration enableAllTopicList
    enableShutdownGracefully enableTopicList kvConfigMaxChars kvConfigMaxEntries needWaitForService
    notifyMinBrokerIdChanged orderMessageEnable productEnvName returnOrderTopicConfigToBroker
    scanNotActiveBrokerInterval serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
    serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds supportActingMaster
    unRegisterBrokerQueueCapacity useEpollNativeSelector waitSecondsForService writeBufferHighWaterMark
    writeBufferLowWaterMark
"""
CHANGEABLE_KEYS = frozenset(_CHANGEABLE_NAMES.split())
"""Keys that may change while the process runs. A new key is fixed unless it is added here."""


class NamesrvConfig(PortSettings, frozen=True, kw_only=True, rename="camel"):
    """One nameserver's settings. Defaults are those of 5.3.3."""

    # NamesrvConfig
    rocketmq_home: str | None = None
    kv_config_path: str = "~/namesrv/kvConfig.json"
    kv_config_max_entries: Positive = 10_000
    """A key of EpochMQ's own, as the next one: the most namespaces and keys of the KV configuration together.
    """
    kv_config_max_chars: Positive = 8 << 20
    """The most characters of all its namespaces, keys and values."""
    config_store_path: str = "~/namesrv/namesrv.properties"
    """The file that changed settings are written to: the one that they were read from, if there was one."""
    product_env_name: str = "center"
    cluster_test: bool = False
    order_message_enable: bool = False
    """Add the order configuration of the topic to routes."""
    return_order_topic_config_to_broker: bool = True
    client_request_thread_pool_nums: Count = 8
    default_thread_pool_nums: Count = 16
    client_request_thread_pool_queue_capacity: Count = 50_000
    default_thread_pool_queue_capacity: Count = 10_000
    scan_not_active_broker_interval: Positive = 5_000
    """Interval of scans for brokers without heartbeats, ms."""
    un_register_broker_queue_capacity: Positive = 3_000
    """The most unregistrations that may be pending."""
    support_acting_master: bool = False
    """Show the smallest broker id of a group without a master as the master (RIP-32)."""
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    notify_min_broker_id_changed: bool = False
    """Notify the brokers of a group when its smallest broker id changes (RIP-32)."""
    enable_controller_in_namesrv: bool = False
    """Run a controller in this process. Its keys are in the same file (ControllerConfig)."""
    need_wait_for_service: bool = False
    """Reject route queries for the first `wait_seconds_for_service`, so that all brokers can register."""
    wait_seconds_for_service: Count = 45
    delete_topic_with_broker_registration: bool = False
    """Remove topics that are missing from a registration. Needs enableSingleTopicRegister on the brokers."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"

    listen_port: Port = 9876
    external_listen_port: ExternalPort | None = None
    """A key of EpochMQ's own: the port for clients outside, which get the external addresses of brokers.
    None: no such port, and no command shows the key."""
    external_tls_mode: Literal["disabled", "permissive", "enforcing"] | None = None
    """A key of EpochMQ's own: what the external port does with plain and TLS connections. None: as
    `tls.server.mode`."""

    def black_list(self) -> frozenset[str]:
        """Keys that a request cannot change."""
        return BLACK_LIST | frozenset(key.strip() for key in self.config_black_list.split(";"))


LoadedNamesrvConfig = settings_file.LoadedSettings[NamesrvConfig]
KEYS = typed_config.keys(NamesrvConfig)


def load(
    text: str,
    overrides: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    *,
    known_elsewhere: Set[str] = frozenset(),
) -> LoadedNamesrvConfig:
    """Loads the text of a `namesrv.conf`. A key in `overrides` wins over the text, a key in the text
    over `defaults`. Raises ConfigError, which names a key, its value and what was expected."""
    loaded = settings_file.load(NamesrvConfig, text, overrides, defaults, known_elsewhere=known_elsewhere)
    check(loaded.config)
    return loaded


def check(config: NamesrvConfig) -> None:
    """Checks the rules that span several keys, and unsupported values. Raises ConfigError, which names the
    key."""
    if config.cluster_test:
        raise ConfigError("clusterTest", "true", "false: routes are not fetched from another environment")
    config.check_port()
    if config.external_listen_port == config.listen_port and config.listen_port:
        raise ConfigError("externalListenPort", str(config.external_listen_port), "not listenPort")
    if config.external_tls_mode is not None and config.external_listen_port is None:
        raise ConfigError("externalTlsMode", config.external_tls_mode, "set together with externalListenPort")
