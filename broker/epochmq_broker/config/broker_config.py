"""Reads the broker's settings: RocketMQ's own keys as one frozen struct, from RocketMQ's configuration file.

A `broker.conf` written for the Java broker works. Every key is of one of four kinds:

* a field of `BrokerConfig`: it has its effect;
* a name in `broker_keys.WITHOUT_EFFECT`: Java has the key, but nothing of this broker depends on it (thread
  pool sizes, RocksDB, metrics exporters …). It is accepted, returned by GET_BROKER_CONFIG, and reported in
  one line;
* a name in `broker_keys.REJECTED_UNLESS`: Java has the key, and ignoring it would break a promise
  (replication, access control, another store type). Only values that change nothing are accepted;
* any other name is unknown: a warning names it.

An invalid value is rejected with key, value and expected values (`ConfigError`); Java uses its default
instead. The module is longer than 600 lines because the keys are one table, with the rules that span them.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from epochmq_broker.auth.access_settings import HIDDEN, SECRET_KEYS, check_access_keys
from epochmq_broker.config.capabilities import BrokerStanding, role_of_settings
from epochmq_broker.config.role import MasterRole, ReplicaRole
from epochmq_dledger.peer_addresses import parse_peers
from epochmq_formats.batch_unit import UNIT_BYTES as BATCH_UNIT_BYTES
from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_protocol import properties, typed_config
from epochmq_protocol.broker_keys import (
    CHANGEABLE_BROKER_KEYS,
    DLEDGER_MEMBER_KEYS,
    REJECTED_UNLESS,
    WITHOUT_EFFECT,
)
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.topics import RMQ_SYS_TRACE_TOPIC
from epochmq_protocol.transport.outgoing_tls import check_pair, with_tls_file
from epochmq_protocol.transport.trusted_proxies import parse_trusted_proxies
from epochmq_store.store_config import split_paths

Port = Annotated[int, Meta(ge=1, le=65535)]
PortOrDerived = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Percent = Annotated[int, Meta(ge=1, le=100)]
Text = Annotated[str, Meta(min_length=1)]

TIMER_PRECISIONS_MS = (100, 200, 500, 1000)

_NAMES = {
    "broker_ip1": "brokerIP1",
    "broker_ip2": "brokerIP2",
    "client_ip": "clientIP",
    "use_tls": "useTLS",
    "external_ip": "externalIP",
    # RocketMQ's spelling of DLedger in its keys.
    "enable_dledger_commit_log": "enableDLegerCommitLog",
    "dledger_group": "dLegerGroup",
    "dledger_peers": "dLegerPeers",
    "dledger_self_id": "dLegerSelfId",
    "store_path_dledger_commit_log": "storePathDLedgerCommitLog",
    "join_dledger_group": "joinDLedgerGroup",
}
_ADDRESS = re.compile(r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})$")
_DLEDGER_ID = re.compile(r"^[A-Za-z][0-9]{1,4}$")
_DELAY_LEVEL = re.compile(r"^[0-9]+[smhd]$")
_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def rocketmq_key(field: str) -> str:
    """RocketMQ's spelling of a snake_case field: `flush_disk_type` becomes `flushDiskType`."""
    head, *tail = field.split("_")
    return _NAMES.get(field, head + "".join(part.capitalize() for part in tail))


class BrokerConfig(Struct, frozen=True, kw_only=True, rename=rocketmq_key):
    """RocketMQ's BrokerConfig, BrokerIdentity, MessageStoreConfig and NettyServerConfig in one, with the
    defaults of 5.3.3. Times are in milliseconds and sizes in bytes unless the comment says otherwise."""

    # identity
    broker_name: Text = ""  # default: the host's name
    broker_cluster_name: Text = "DefaultCluster"
    broker_id: NotNegative = 0
    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    region_id: str = "DefaultRegion"

    # addresses
    bind_address: Text = "0.0.0.0"
    listen_port: Port = 10911  # the VIP port is two below
    ha_listen_port: PortOrDerived = 0  # 0: one above listenPort
    broker_ip1: str = ""  # advertised; default: this host's first address that is not loopback
    broker_ip2: str = ""  # advertised to slaves; default: brokerIP1's default
    # EpochMQ's own: the address that nameservers, and so clients, get if brokerIP1 is a name that stays with
    # the broker; Java caches a resolved name for 30 s. Default, and in place of an IPv6 address: brokerIP1.
    client_ip: str = ""
    namesrv_addr: str = ""  # `host:port;host:port`; default: the environment's NAMESRV_ADDR
    fetch_name_srv_addr_by_dns_lookup: bool = False  # namesrvAddr is one name for all of them
    update_name_server_addr_period: Positive = 120_000  # ms between two lookups
    server_channel_max_idle_time_seconds: Positive = 120
    # EpochMQ's own: the longest header of a request, in bytes. A message's properties have at most 32,767.
    max_header_size: Annotated[int, Meta(ge=65_536, le=16_777_216)] = 262_144
    # EpochMQ's own: bytes of unfinished frames that the process holds (0: a quarter of its memory limit), and
    # for each port the time for a frame, connections of one address, and those it opens in a second
    # (0: no limit)
    max_received_bytes: NotNegative = 0
    frame_timeout_millis: NotNegative = 120_000
    max_connections_per_address: NotNegative = 16_384
    max_new_connections_per_address: NotNegative = 1_000
    # EpochMQ's own: addresses whose PROXY protocol headers count; empty: everybody's, with access control
    # nobody's
    proxy_protocol_from: str = ""
    # EpochMQ's own: the file of the secrets by which members authenticate each other (empty: nobody proves
    # anything), and whether members without a proof are accepted
    member_secret_path: str = ""
    allow_unauthenticated_members: bool = False
    admin_socket_path: str = ""  # EpochMQ's own: the admin socket of this broker; empty: none
    # TLS on the same port; Java's spelling as system properties (`tls.server.mode`) is accepted, too.
    tls_server_mode: Literal["disabled", "permissive", "enforcing"] = "permissive"
    tls_server_cert_path: str = ""  # empty: no TLS
    tls_server_key_path: str = ""
    tls_server_trust_cert_path: str = ""
    tls_server_need_client_auth: Literal["none", "optional", "require"] = "none"
    # TLS of the connections that this broker opens; `tls.enable` is another name of useTLS. Defaults: TLS if
    # tls.server.mode is enforcing; servers are verified if there are authorities to verify them with.
    use_tls: bool = False
    tls_client_cert_path: str = ""
    tls_client_key_path: str = ""
    tls_client_trust_cert_path: str = ""
    tls_client_auth_server: bool = False
    ha_tls_mode: Literal["disabled", "permissive", "enforcing"] = (
        "disabled"  # EpochMQ's own: TLS at the HA port
    )
    tls_config_file: str = ""  # RocketMQ's tls.properties, whose keys win over those of broker.conf
    # EpochMQ's own: the listener for clients outside the network of the brokers. Nameservers give its address
    # to clients that ask at the nameserver's own external port.
    external_listen_port: PortOrDerived = 0  # 0: none
    external_ip: str = ""  # advertised, an address or a name; default: clientIP
    external_port: PortOrDerived = 0  # advertised; 0: externalListenPort
    external_tls_mode: Literal["", "disabled", "permissive", "enforcing"] = ""  # default: tls.server.mode

    # registration
    register_name_server_period: Annotated[int, Meta(ge=1000)] = 30_000  # Java uses it within 10–60 s
    register_broker_timeout_mills: Positive = 24_000
    force_register: bool = True
    send_heartbeat_timeout_millis: Positive = 1000
    broker_heartbeat_interval: Positive = 1000
    broker_not_active_timeout_millis: Positive = 10_000

    # slave acting master (RIP-32)
    enable_slave_acting_master: bool = False
    enable_remote_escape: bool = False  # an acting master sends special messages to other groups
    compatible_with_old_name_srv: bool = True
    sync_broker_member_group_period: Annotated[int, Meta(ge=10)] = 1000
    skip_pre_online: bool = False
    lock_in_strict_mode: bool = False

    # a DLedger commit log: the brokers elect their master by Raft
    enable_dledger_commit_log: bool = False
    dledger_group: str = ""
    dledger_peers: str = ""  # n0-host:port;n1-host:port of all brokers of the group
    dledger_self_id: str = ""  # n0: this broker's id in dLegerPeers
    join_dledger_group: bool = False  # this broker is new to a group at work, and waits to be added
    preferred_leader_id: str = ""  # n0 or n0;n1: the brokers that shall be master when they can
    store_path_dledger_commit_log: str = ""  # default: dledger-ID/data below storePathRootDir

    # replication
    ha_master_address: str = ""  # of a SLAVE; default: what the nameserver says
    ha_send_heartbeat_interval: Positive = 5000
    ha_housekeeping_interval: Positive = 20_000
    ha_transfer_batch_size: Positive = 32 * 1024
    ha_max_gap_not_in_sync: Positive = 256 * 1024 * 1024
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: Positive = 100 * 1024 * 1024
    ha_max_time_slave_not_catchup: Positive = 15_000
    check_sync_state_set_period: Annotated[int, Meta(ge=10)] = 5000
    slave_timeout: Positive = 3000
    total_replicas: Positive = 1
    in_sync_replicas: Positive = 1
    min_in_sync_replicas: Positive = 1
    all_ack_in_sync_state_set: bool = False
    enable_auto_in_sync_replicas: bool = False
    sync_from_last_file: bool = False
    async_learner: bool = False
    sync_master_flush_offset_when_startup: bool = False
    store_path_epoch_file: str = ""  # default: <storePathRootDir>/epochFileCheckpoint
    # EpochMQ's own: reads the old files of the log again and again, to find damage on the disk.
    scrub_bytes_per_second: NotNegative = 4 * 1024 * 1024  # 0: off
    scrub_first_delay_ms: NotNegative = 60_000  # between the start and the first read
    scrub_pass_interval_ms: Positive = 3_600_000  # at least, between the beginnings of two passes

    # controllers; with enableControllerMode they determine brokerId and brokerRole
    enable_controller_mode: bool = False
    controller_addr: str = ""  # `host:port;host:port`
    fetch_controller_addr_by_dns_lookup: bool = False  # controllerAddr is one name for all of them
    controller_heart_beat_timeout_mills: Positive = 10_000
    sync_broker_metadata_period: Annotated[int, Meta(ge=10)] = 5000
    sync_controller_metadata_period: Annotated[int, Meta(ge=10)] = 10_000
    broker_election_priority: int = 2**31 - 1  # a smaller value is preferred
    store_path_broker_identity: str = ""  # default: <storePathRootDir>/brokerIdentity

    # access control (AuthConfig); classes by their Java name, JSON as RocketMQ parses it
    authentication_enabled: bool = False
    authentication_provider: str = ""
    authentication_metadata_provider: str = ""
    authentication_strategy: str = ""
    authentication_whitelist: str = ""  # request codes, separated by commas
    acl_strict: bool = True  # EpochMQ's own: every request has a rule; false: RocketMQ's rules and their gaps
    auth_secrets_path: str = ""  # EpochMQ's own: a file with the next two keys, apart from broker.conf
    init_authentication_user: str = ""  # {"username":…,"password":…}, created as a super user
    inner_client_authentication_credentials: str = ""  # {"accessKey":…,"secretKey":…}, of this broker
    authorization_enabled: bool = False
    authorization_provider: str = ""
    authorization_metadata_provider: str = ""
    authorization_strategy: str = ""
    authorization_whitelist: str = ""
    migrate_auth_from_v1_enabled: bool = False  # adds the accounts of plain_acl.yml as users
    stateful_authentication_cache_expired_second: Positive = 60
    stateful_authorization_cache_expired_second: Positive = 60
    acl_enable: bool = False  # RocketMQ 4's access control; 5.3 ignores the key

    # topics and groups
    broker_permission: Annotated[int, Meta(ge=0, le=7)] = 6
    default_topic_queue_nums: Positive = 8
    auto_create_topic_enable: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    enable_create_sys_group: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: Text = RMQ_SYS_TRACE_TOPIC
    trace_on: bool = True
    timer_wheel_enable: bool = True
    validate_system_topic_when_update_topic: bool = True
    enable_mixed_message_type: bool = False
    clear_retry_topic_when_delete_topic: bool = True
    forward_timeout: Positive = 3000  # of requests about static topics to other brokers
    config_black_list: str = "configBlackList;brokerConfigPath"

    # sending
    max_message_size: Positive = 4 * 1024 * 1024
    reject_transaction_message: bool = False
    reject_system_topic_sends: bool = True
    """Whether only other brokers may send to the topics that services of the broker read. Not of RocketMQ."""
    start_accept_send_request_time_stamp: NotNegative = 0  # epoch ms
    store_reply_message_enable: bool = True
    default_query_max_num: Positive = 32

    # pulling
    long_polling_enable: bool = True
    short_polling_time_mills: Positive = 1000
    slave_read_enable: bool = False
    offset_check_in_slave: bool = False
    enable_property_filter: bool = False  # SQL92 expressions
    filter_support_retry: bool = False
    filter_data_clean_time_span: NotNegative = 24 * 3600 * 1000
    enable_calc_filter_bit_map: bool = False
    expect_consumer_num_use_filter: Positive = 32  # with the next one, the size of filter bit maps
    max_error_rate_of_bloom_filter: Annotated[int, Meta(ge=1, le=99)] = 20
    lite_pull_message_enable: bool = True
    reject_pull_consumer_enable: bool = False
    use_server_side_reset_offset: bool = True
    max_transfer_bytes_on_message_in_memory: Positive = 256 * 1024
    max_transfer_count_on_message_in_memory: Positive = 32
    max_transfer_bytes_on_message_in_disk: Positive = 64 * 1024
    max_transfer_count_on_message_in_disk: Positive = 8
    max_filter_message_size: Positive = 16_000
    estimate_accumulation: bool = True
    max_consume_queue_scan: Positive = 20_000
    sample_count_threshold: NotNegative = 5000
    access_message_in_memory_max_ratio: Percent = 40

    # cold data: messages that are probably not in the page cache
    cold_data_flow_control_enable: bool = False
    cold_data_scan_enable: bool = False
    timer_cold_data_check_interval_ms: Positive = 60_000
    sample_steps: int = 32
    access_message_in_memory_hot_ratio: NotNegative = 26  # percent of the memory
    data_read_ahead_enable: bool = True
    cold_ctr_strategy_enable: bool = False
    use_pid_cold_ctr_strategy: bool = msgspec.field(name="usePIDColdCtrStrategy", default=True)
    cg_cold_read_threshold: int = 3 * 1024 * 1024  # bytes that a group may read in five seconds
    global_cold_read_threshold: int = 100 * 1024 * 1024

    # POP
    revive_queue_num: Positive = 8
    revive_interval: Positive = 1000
    revive_ack_wait_ms: NotNegative = 180_000
    enable_skip_long_awaiting_ack: bool = False
    skip_when_ck_re_put_reach_max_times: bool = msgspec.field(
        name="skipWhenCKRePutReachMaxTimes", default=False
    )
    enable_pop_buffer_merge: bool = False
    enable_pop_batch_ack: bool = False
    pop_ck_stay_buffer_time: NotNegative = 10_000
    pop_ck_stay_buffer_time_out: NotNegative = 3000
    pop_ck_max_buffer_size: NotNegative = 200_000
    pop_ck_offset_max_queue_size: Positive = 20_000
    pop_polling_size: Positive = 1024
    pop_polling_map_size: Positive = 100_000
    max_pop_polling_size: Positive = 100_000

    # bounds of what one request may ask for, which the event loop does at once. Not of RocketMQ
    max_groups_per_heartbeat: Positive = 1000
    """Producer groups and consumer groups together."""
    max_subscriptions_per_heartbeat: Positive = 5000
    max_queues_per_lock: Positive = 5000
    pop_long_polling_force_notify_interval: int = 800
    pop_from_retry_probability: Annotated[int, Meta(ge=0, le=100)] = 20
    pop_from_retry_probability_for_priority: Annotated[int, Meta(ge=0, le=100)] = 0
    """How many of 100 POPs by priority look into the retry topic first (RocketMQ 5.4)."""
    priority_order_asc: bool = True
    """Whether 0 is the lowest priority (RocketMQ 5.4)."""
    enable_retry_topic_v2: bool = False
    retrieve_message_from_pop_retry_topic_v1: bool = True
    pop_response_return_actual_retry_topic: bool = False
    init_pop_offset_by_check_msg_in_mem: bool = True
    enable_pop_message_threshold: bool = False
    pop_inflight_message_threshold: NotNegative = 10_000
    enable_notify_after_pop_order_lock_release: bool = True
    server_load_balancer_enable: bool = True
    load_balance_poll_name_server_interval: Positive = 30_000
    default_message_request_mode: Literal["PULL", "POP"] = "PULL"
    default_pop_share_queue_num: int = -1

    # clients
    notify_consumer_ids_changed_enable: bool = True
    channel_expired_timeout: Positive = 120_000
    subscription_expired_timeout: Positive = 600_000
    flush_consumer_offset_interval: Positive = 5000
    consumer_offset_update_version_step: Positive = 500
    enable_register_producer: bool = True

    # requests that have waited too long
    broker_fast_failure_enable: bool = True
    wait_time_mills_in_send_queue: NotNegative = 200
    wait_time_mills_in_pull_queue: NotNegative = 5000
    wait_time_mills_in_lite_pull_queue: NotNegative = 5000
    wait_time_mills_in_heartbeat_queue: NotNegative = 31_000
    wait_time_mills_in_transaction_queue: NotNegative = 3000
    wait_time_mills_in_ack_queue: NotNegative = 3000
    wait_time_mills_in_admin_broker_queue: NotNegative = 5000

    # delay levels
    message_delay_level: Text = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    flush_delay_offset_interval: Positive = 10_000
    delay_offset_update_version_step: Positive = 200

    # timer messages
    timer_precision_ms: int = 1000  # 100, 200, 500 or 1000; others are rounded down to one of these
    timer_max_delay_sec: NotNegative = 3 * 24 * 3600  # seconds
    timer_roll_window_slot: int = 2 * 24 * 3600  # slots, each of timerPrecisionMs
    timer_congest_num_each_slot: NotNegative = 2**31 - 1
    timer_flush_interval_ms: Positive = 1000
    timer_stop_enqueue: bool = False
    timer_stop_dequeue: bool = False
    mapped_file_size_timer_log: Annotated[int, Meta(ge=4096, le=2**31 - 1)] = 100 * 1024 * 1024
    recall_message_enable: bool = False
    allow_recall_when_broker_not_writeable: bool = True

    # transactions
    transaction_check_interval: Positive = 30_000
    transaction_check_max: Positive = 15
    transaction_time_out: Positive = 6000
    transaction_op_msg_max_size: Positive = 4096  # bytes
    transaction_op_batch_interval: Positive = 3000
    transaction_metric_flush_interval: Positive = 3000

    # the store
    store_path_root_dir: Text = "~/store"
    store_path_commit_log: str = ""  # several separated by commas; default: <storePathRootDir>/commitlog
    read_only_commit_log_store_paths: str = ""  # among several of storePathCommitLog, or besides them
    mapped_file_size_commit_log: Annotated[int, Meta(ge=4096, le=2**31 - 1)] = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: Annotated[int, Meta(ge=UNIT_BYTES)] = 300_000 * UNIT_BYTES
    mapper_file_size_batch_consume_queue: Annotated[int, Meta(ge=BATCH_UNIT_BYTES)] = (
        300_000 * BATCH_UNIT_BYTES
    )
    enable_compaction: bool = True
    compaction_mapped_file_size: Annotated[int, Meta(ge=4096, le=2**31 - 1)] = 100 * 1024 * 1024
    compaction_cq_mapped_file_size: Annotated[int, Meta(ge=4 * BATCH_UNIT_BYTES, le=2**31 - 1)] = (
        10 * 1024 * 1024
    )
    compaction_schedule_internal: Positive = 15 * 60 * 1000
    max_offset_map_size: Positive = 100 * 1024 * 1024  # bytes
    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"] = "ASYNC_FLUSH"
    sync_flush_timeout: Positive = 5000
    flush_interval_commit_log: Positive = 500
    flush_commit_log_least_pages: NotNegative = 4
    flush_commit_log_thorough_interval: Positive = 10_000
    flush_interval_consume_queue: Positive = 1000
    flush_consume_queue_least_pages: NotNegative = 2
    flush_consume_queue_thorough_interval: Positive = 60_000
    message_index_enable: bool = True
    message_index_safe: bool = False
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: Annotated[int, Meta(ge=65_536)] = 48 << 20
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: NotNegative = 20_000
    enable_lmq_stats: bool = False
    max_hash_slot_num: Positive = 5_000_000
    max_index_num: Positive = 20_000_000
    max_msgs_num_batch: Positive = 64
    delete_when: Text = "04"  # hours of the day, separated by ;
    file_reserved_time: NotNegative = 72  # hours
    disk_max_used_space_ratio: Annotated[int, Meta(ge=10, le=95)] = 75
    disk_space_warning_level_ratio: Percent = 90
    disk_space_clean_forcibly_ratio: Percent = 85
    clean_file_forcibly_enable: bool = True
    delete_file_batch_max: Positive = 10
    clean_resource_interval: Positive = 10_000
    destroy_maped_file_interval_forcibly: Positive = 120_000
    delete_commit_log_files_interval: NotNegative = 100
    delete_consume_queue_files_interval: NotNegative = 100
    redelete_hanged_file_interval: Positive = 120_000
    check_crc_on_recover: bool = msgspec.field(name="checkCRCOnRecover", default=True)
    enabled_append_prop_crc: bool = msgspec.field(name="enabledAppendPropCRC", default=False)
    force_verify_prop_crc: bool = msgspec.field(name="forceVerifyPropCRC", default=False)
    os_page_cache_busy_time_out_mills: Positive = 1000
    warm_maped_file_enable: bool = False
    enable_schedule_message_stats: bool = True

    @property
    def vip_port(self) -> int:
        """The second port, which serves no pulls (RocketMQ: fastListenPort)."""
        return self.listen_port - 2

    @property
    def broker_addr(self) -> str:
        """The address for replicas and controllers: `brokerIP1:listenPort`."""
        return f"{self.broker_ip1}:{self.listen_port}"

    @property
    def client_addr(self) -> str:
        """The address for nameservers, and so for clients: `clientIP:listenPort`."""
        return f"{self.client_ip}:{self.listen_port}"

    @property
    def external_addr(self) -> str | None:
        """The address for clients outside: `externalIP:externalPort`; None without an external listener."""
        if not self.external_listen_port:
            return None
        return f"{self.external_ip or self.client_ip}:{self.external_port or self.external_listen_port}"

    @property
    def ha_server_addr(self) -> str:
        """The address for slaves: `brokerIP2:haListenPort`."""
        return f"{self.broker_ip2}:{self.ha_listen_port}"

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The nameservers' addresses in the configured order, without duplicates; with
        `fetchNameSrvAddrByDnsLookup` their common name."""
        return tuple(dict.fromkeys(addr.strip() for addr in self.namesrv_addr.split(";") if addr.strip()))

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers' addresses in the configured order, without duplicates."""
        return tuple(dict.fromkeys(addr.strip() for addr in self.controller_addr.split(";") if addr.strip()))

    @property
    def preferred_leaders(self) -> tuple[str, ...]:
        """The ids of preferredLeaderId."""
        return tuple(dict.fromkeys(one.strip() for one in self.preferred_leader_id.split(";") if one.strip()))

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of every level in ms; level n is item n-1 (ScheduleMessageService.parseDelayLevel)."""
        return tuple(
            int(word[:-1]) * _DELAY_UNITS_MS[word[-1]] for word in self.message_delay_level.split(" ") if word
        )

    @property
    def timer_precision(self) -> int:
        """The precision of the timer in ms (MessageStoreConfig.setTimerPrecisionMs)."""
        return max((one for one in TIMER_PRECISIONS_MS if one <= self.timer_precision_ms), default=100)

    @property
    def root_dir(self) -> Path:
        """storePathRootDir as a path, with `~` expanded."""
        return Path(self.store_path_root_dir).expanduser()

    @property
    def config_dir(self) -> Path:
        """The directory of topics.json, consumerOffset.json and so on."""
        return self.root_dir / "config"

    def as_properties(self) -> dict[str, str]:
        """Every key of this struct with its value in Java's properties format, sorted."""
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in sorted(msgspec.to_builtins(self).items())
        }


class LoadedBrokerConfig(Struct, frozen=True):
    """The content of a configuration file: settings, warnings for the log, and the keys without effect.
    `overrides` are the settings that took precedence over the file."""

    config: BrokerConfig
    warnings: tuple[str, ...] = ()
    without_effect: dict[str, str] = {}
    overrides: dict[str, str] = {}


class LiveConfig:
    """The settings in force, and the listeners that are called when UPDATE_BROKER_CONFIG changes them.

    `current` is replaced as a whole. An object that copied a value out of it reads it again in
    `on_change`.
    """

    __slots__ = (
        "_looked_up",
        "_overrides",
        "current",
        "master_epoch",
        "on_change",
        "standing",
        "version",
        "without_effect",
    )

    def __init__(
        self,
        config: BrokerConfig,
        without_effect: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.current = config
        self._overrides = dict(overrides or {})
        self.without_effect: dict[str, str] = dict(without_effect or {})
        self.version = ""
        """The version of the file that `reload` applied last; empty: the broker has the file of its start."""
        self.on_change: list[Callable[[BrokerConfig, BrokerConfig], None]] = []
        self._looked_up: tuple[str, ...] = ()
        self.standing = BrokerStanding(role_of_settings(config.broker_id, config.broker_role), config)
        """The role in force, and what it permits."""
        self.master_epoch = 0
        """The master epoch under which this broker has its role; 0 without controllers."""

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The nameservers' addresses: those of namesrvAddr, or those that its name was found to have."""
        if self.current.fetch_name_srv_addr_by_dns_lookup:
            return self._looked_up
        return self.current.nameservers

    def set_nameservers(self, addresses: tuple[str, ...]) -> None:
        """Sets the addresses that the name in namesrvAddr has, and calls the listeners."""
        self._looked_up = addresses
        for notify in self.on_change:
            notify(self.current, self.current)

    def update(self, changes: Mapping[str, str]) -> list[str]:
        """Changes RocketMQ keys; all or none. Returns warnings about unknown keys. Raises ConfigError."""
        loaded = from_properties(self.current.as_properties() | dict(changes))
        self._replace(loaded, self.without_effect | loaded.without_effect)
        return list(loaded.warnings)

    def reload(self, file: Mapping[str, str], version: str) -> list[str]:
        """Applies a whole configuration file to the running broker: a key that is not in the file gets its
        default value, unless it is fixed. The settings that took precedence over the file at the start still
        do. The keys that name the members of a DLedger group keep their values. All or none. Returns warnings
        about unknown keys. Raises ConfigError for an invalid value, and for another value of a fixed key."""
        fixed = {
            key: value
            for key, value in self.current.as_properties().items()
            if key not in CHANGEABLE_BROKER_KEYS
        }
        path = {key: self.without_effect[key] for key in ("brokerConfigPath",) if key in self.without_effect}
        wanted = {key: value for key, value in with_tls_file(file).items() if key not in DLEDGER_MEMBER_KEYS}
        loaded = from_properties(fixed | path | wanted | self._overrides)
        self._replace(loaded, loaded.without_effect)
        self.version = version
        return list(loaded.warnings)

    def _replace(self, loaded: LoadedBrokerConfig, without_effect: dict[str, str]) -> None:
        """Puts other settings in force. Raises ConfigError if a fixed key changes."""
        _check_fixed_keys(self.current, loaded.config)
        before, self.current = self.current, loaded.config
        self.without_effect = without_effect
        self.standing.settings_changed(self.current)
        if before != self.current:
            for notify in self.on_change:
                notify(before, self.current)

    def set_role(self, broker_id: int, role: Literal["SYNC_MASTER", "SLAVE"]) -> None:
        """Takes the role that the group decided, and sets brokerId and brokerRole to it, as RocketMQ does.
        Raises IllegalRoleTransitionError."""
        before = self.current
        taken = ReplicaRole(broker_id) if role == "SLAVE" else MasterRole(self.master_epoch)
        self.standing.become(taken)
        self.current = msgspec.structs.replace(before, broker_id=broker_id, broker_role=role)
        self.standing.settings_changed(self.current)
        if before != self.current:
            for notify in self.on_change:
                notify(before, self.current)

    def state_version(self) -> int:
        """The state version of the tables: the master epoch."""
        return self.master_epoch

    def as_properties(self) -> dict[str, str]:
        """Every key with its value, keys without effect included, as GET_BROKER_CONFIG returns them."""
        return self.without_effect | self.current.as_properties()


def _check_fixed_keys(before: BrokerConfig, after: BrokerConfig) -> None:
    """Raises ConfigError if a key changes that is not in CHANGEABLE_BROKER_KEYS."""
    present, wanted = before.as_properties(), after.as_properties()
    for key in sorted(wanted.keys() - CHANGEABLE_BROKER_KEYS):
        if wanted[key] == present[key]:
            continue
        if key in SECRET_KEYS:
            wanted[key] = present[key] = HIDDEN
        if before.enable_controller_mode and key in ("brokerId", "brokerRole"):
            raise ConfigError(key, wanted[key], f"{present[key]}, because the controllers decide it")
        raise ConfigError(
            key,
            wanted[key],
            f"{present[key]}, because the key cannot change while the broker runs; change it in the "
            "configuration file and restart the broker",
        )


def load_broker_config(
    path: str | Path | None, overrides: Mapping[str, str] | None = None
) -> LoadedBrokerConfig:
    """Reads a `broker.conf` (a Java properties file). `overrides` take precedence. Raises ConfigError."""
    text: dict[str, str] = {}
    if path is not None:
        text = _read_properties("brokerConfigPath", path)
        text["brokerConfigPath"] = str(path)
    given = dict(overrides or {})
    text |= given
    text = with_tls_file(text)
    secrets = text.get("authSecretsPath", "").strip()
    if secrets:
        text = _read_secrets(secrets) | text
    return msgspec.structs.replace(from_properties(text), overrides=given)


def _read_secrets(path: str) -> dict[str, str]:
    found = _read_properties("authSecretsPath", path)
    for key in found.keys() - SECRET_KEYS.keys():
        raise ConfigError("authSecretsPath", path, f"a file with {' and '.join(SECRET_KEYS)} only, not {key}")
    return found


def _read_properties(key: str, path: str | Path) -> dict[str, str]:
    try:
        return properties.parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(key, str(path), f"a readable file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(key, str(path), "a file in UTF-8") from error


def normalized(text: Mapping[str, str]) -> dict[str, str]:
    """The same settings by their names: without blanks around keys, and `tls.server.certPath` as
    `tlsServerCertPath`."""
    found: dict[str, str] = {}
    for name, value in text.items():
        key = name.strip()
        if key.startswith("tls."):
            key = rocketmq_key(re.sub("([A-Z])", lambda found: "_" + found[1].lower(), key).replace(".", "_"))
        found[key] = value
    return found


def from_properties(text: Mapping[str, str]) -> LoadedBrokerConfig:
    """Builds settings from RocketMQ keys, fills in defaults and checks the rules that span keys. Raises
    ConfigError."""
    entries: dict[str, str] = {}
    without_effect: dict[str, str] = {}
    for key, value in normalized(text).items():
        if key in REJECTED_UNLESS:
            accepted, reason = REJECTED_UNLESS[key]
            if value.strip().lower() not in accepted:
                raise ConfigError(key, value, f"{accepted[0] or 'nothing'}: {reason}")
            without_effect[key] = value
        elif key in WITHOUT_EFFECT:
            without_effect[key] = value
        else:
            entries[key] = value.strip()
    _complete_tls(entries)
    if entries.get("brokerId") == "-1" and any(
        entries.get(mode, "").lower() == "true" for mode in ("enableControllerMode", "enableDLegerCommitLog")
    ):
        del entries["brokerId"]  # RocketMQ sets -1 itself, and prints it: the group assigns the id
    config, warnings = typed_config.load(BrokerConfig, entries)
    return LoadedBrokerConfig(_complete(config), tuple(warnings), without_effect)


def _complete_tls(entries: dict[str, str]) -> None:
    """Fills in what RocketMQ derives from other keys of TLS."""
    enabled = entries.pop("tlsEnable", "") or str(entries.get("tlsServerMode") == "enforcing").lower()
    if not entries.get("useTLS"):
        entries["useTLS"] = enabled
    if not entries.get("tlsClientAuthServer"):
        entries["tlsClientAuthServer"] = str(bool(entries.get("tlsClientTrustCertPath"))).lower()


def _complete(config: BrokerConfig) -> BrokerConfig:
    """Fills in settings that depend on this host or on other keys, then checks the rules that span keys."""
    fill: dict[str, Any] = {}
    if not config.broker_name:
        fill["broker_name"] = socket.gethostname() or "DEFAULT_BROKER"
    if not config.broker_ip1:
        fill["broker_ip1"] = advertised_address(config.bind_address)
    if not config.broker_ip2:
        fill["broker_ip2"] = config.broker_ip1 or fill["broker_ip1"]
    if not config.client_ip or ":" in config.client_ip:
        fill["client_ip"] = config.broker_ip1 or fill["broker_ip1"]
    if not config.ha_listen_port:
        fill["ha_listen_port"] = config.listen_port + 1
    if not config.namesrv_addr:
        fill["namesrv_addr"] = os.environ.get("NAMESRV_ADDR", "")
    if config.mapped_file_size_consume_queue % UNIT_BYTES:
        # Round up to whole units, as Java does.
        units = -(-config.mapped_file_size_consume_queue // UNIT_BYTES)
        fill["mapped_file_size_consume_queue"] = units * UNIT_BYTES
    config = msgspec.structs.replace(config, **fill)
    _check(config)
    return config


def _check(config: BrokerConfig) -> None:
    parse_trusted_proxies(config.proxy_protocol_from)
    if config.listen_port < 3 or config.listen_port > 65534:
        raise ConfigError(
            "listenPort",
            str(config.listen_port),
            "3 to 65534, because the VIP port is two below and the HA port one above",
        )
    if config.ha_listen_port in (config.listen_port, config.vip_port):
        raise ConfigError("haListenPort", str(config.ha_listen_port), "neither listenPort nor listenPort-2")
    if config.mapper_file_size_batch_consume_queue % BATCH_UNIT_BYTES:
        size = config.mapper_file_size_batch_consume_queue
        raise ConfigError(
            "mapperFileSizeBatchConsumeQueue", str(size), "a multiple of 46, the bytes of a unit"
        )
    if config.fetch_name_srv_addr_by_dns_lookup and len(config.nameservers) != 1:
        expected = "one host:port whose name resolves to all nameservers"
        raise ConfigError("namesrvAddr", config.namesrv_addr, expected)
    for addr in config.nameservers:
        match = _ADDRESS.match(addr)
        if match is None or not 0 < int(match.group(2)) < 65536:
            raise ConfigError("namesrvAddr", config.namesrv_addr, "host:port, several separated by ';'")
    words = config.message_delay_level.split(" ")
    if not all(_DELAY_LEVEL.match(word) for word in words):
        raise ConfigError(
            "messageDelayLevel", config.message_delay_level, "such as '1s 5s 1m 2h 1d', one blank between"
        )
    for hour in config.delete_when.split(";"):
        if not (hour.strip().isdigit() and int(hour) < 24):
            raise ConfigError("deleteWhen", config.delete_when, "hours 00 to 23, several separated by ';'")
    paths = split_paths(config.store_path_commit_log)
    read_only = config.read_only_commit_log_store_paths
    if len(paths) > 1 and not set(paths) - set(split_paths(read_only)):
        raise ConfigError(
            "readOnlyCommitLogStorePaths", read_only, "at least one path of storePathCommitLog not in it"
        )
    if config.max_message_size + 64 * 1024 + 8 > config.mapped_file_size_commit_log:
        raise ConfigError(
            "maxMessageSize",
            str(config.max_message_size),
            "a message that fits, with 64 KiB more for its record, into one file of mappedFileSizeCommitLog",
        )
    check_access_keys(config)
    if config.enable_dledger_commit_log:
        _check_dledger(config)
    elif config.enable_controller_mode:
        _check_controllers(config)
    elif (config.broker_id != 0) != (config.broker_role == "SLAVE"):
        raise ConfigError("brokerId", str(config.broker_id), "0 for a master, any other for brokerRole=SLAVE")
    if config.ha_master_address and not _ADDRESS.match(config.ha_master_address):
        raise ConfigError("haMasterAddress", config.ha_master_address, "host:port")
    if bool(config.tls_server_cert_path) != bool(config.tls_server_key_path):
        raise ConfigError(
            "tlsServerKeyPath", config.tls_server_key_path, "set together with tlsServerCertPath"
        )
    if config.tls_server_mode == "enforcing" and not config.tls_server_cert_path:
        raise ConfigError(
            "tlsServerMode", "enforcing", "a certificate: tlsServerCertPath and tlsServerKeyPath"
        )
    check_pair(config.tls_client_cert_path, config.tls_client_key_path)
    if config.tls_client_auth_server and config.use_tls and not config.tls_client_trust_cert_path:
        expected = "a file, since tls.client.authServer is true"
        raise ConfigError("tlsClientTrustCertPath", "", expected)
    _check_ha_tls(config)
    _check_external_listener(config)


def _check_ha_tls(config: BrokerConfig) -> None:
    needed = {
        "tls.server.certPath": config.tls_server_cert_path,
        "tls.client.certPath": config.tls_client_cert_path,
        "tls.client.trustCertPath": config.tls_client_trust_cert_path,
    }
    missing = [key for key, value in needed.items() if not value]
    if config.ha_tls_mode != "disabled" and missing:
        expected = f"disabled, or {' and '.join(missing)} set, since both sides verify certificates"
        raise ConfigError("haTlsMode", config.ha_tls_mode, expected)


def _check_external_listener(config: BrokerConfig) -> None:
    port = config.external_listen_port
    if port and port in (config.listen_port, config.vip_port, config.ha_listen_port):
        raise ConfigError(
            "externalListenPort", str(port), "neither listenPort, listenPort-2 nor haListenPort"
        )
    if config.external_ip and not _ADDRESS.match(f"{config.external_ip}:1"):
        raise ConfigError("externalIP", config.external_ip, "a name or an IPv4 address")
    needs_port = {
        "externalIP": config.external_ip,
        "externalPort": config.external_port,
        "externalTlsMode": config.external_tls_mode,
    }
    for key, value in needs_port.items():
        if value and not port:
            raise ConfigError(key, str(value), "set together with externalListenPort")
    if config.external_tls_mode == "enforcing" and not config.tls_server_cert_path:
        raise ConfigError(
            "externalTlsMode", "enforcing", "a certificate: tlsServerCertPath and tlsServerKeyPath"
        )


def _check_dledger(config: BrokerConfig) -> None:
    try:
        peers = parse_peers(config.dledger_peers)
    except ValueError as error:
        raise ConfigError(
            "dLegerPeers", config.dledger_peers, f"n0-host:port;n1-host:port of all brokers ({error})"
        ) from error
    for peer in peers:
        if not _DLEDGER_ID.match(peer):
            raise ConfigError(
                "dLegerPeers",
                config.dledger_peers,
                f"ids such as n0 with a number after one letter, not {peer}",
            )
    if config.dledger_self_id not in peers:
        raise ConfigError("dLegerSelfId", config.dledger_self_id, f"one of {', '.join(peers)} in dLegerPeers")
    if config.join_dledger_group and len(peers) < 2:
        raise ConfigError(
            "dLegerPeers", config.dledger_peers, "with joinDLedgerGroup the present brokers and this one"
        )
    for peer in config.preferred_leaders:
        if not _DLEDGER_ID.match(peer):
            raise ConfigError("preferredLeaderId", config.preferred_leader_id, "ids such as n0, or n0;n1")
    if not config.dledger_group:
        raise ConfigError("dLegerGroup", "", "a name for the group, equal on all of its brokers")
    for key, excluded in (
        ("enableControllerMode", config.enable_controller_mode),
        ("enableSlaveActingMaster", config.enable_slave_acting_master),
        ("enableLmq", config.enable_lmq),
    ):
        if excluded:
            raise ConfigError(key, "true", "false with enableDLegerCommitLog")


def _check_controllers(config: BrokerConfig) -> None:
    addresses = config.controllers
    single = config.fetch_controller_addr_by_dns_lookup
    if not addresses or (single and len(addresses) > 1):
        expected = (
            "one host:port whose name resolves to all controllers"
            if single
            else "host:port of every controller"
        )
        raise ConfigError("controllerAddr", config.controller_addr, expected)
    for addr in addresses:
        match = _ADDRESS.match(addr)
        if match is None or not 0 < int(match.group(2)) < 65536:
            raise ConfigError("controllerAddr", config.controller_addr, "host:port, several separated by ';'")
    if "#" in config.broker_name + config.broker_cluster_name:
        raise ConfigError("brokerName", config.broker_name, "no '#' in it or in brokerClusterName")


def advertised_address(bind_address: str) -> str:
    """The address under which others reach this host: the bound address, or the source address of a packet to
    the outside."""
    if bind_address not in ("0.0.0.0", "::", ""):
        return bind_address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
