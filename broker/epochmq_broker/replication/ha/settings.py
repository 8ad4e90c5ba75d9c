"""Defines the settings of replication: RocketMQ's keys in snake case."""
# pure: values

from __future__ import annotations

import msgspec
from msgspec import Struct

from epochmq_protocol.ha_frames import BODY_SIZE_MAX


class HASettings(Struct, frozen=True, kw_only=True):
    """Times are in milliseconds, sizes in bytes. The defaults are those of RocketMQ 5.3.3."""

    broker_role: str = "ASYNC_MASTER"
    enable_slave_acting_master: bool = False
    bind_address: str = "0.0.0.0"
    ha_send_heartbeat_interval: int = 5000
    ha_housekeeping_interval: int = 20_000
    ha_transfer_batch_size: int = 32 * 1024
    ha_max_gap_not_in_sync: int = 256 * 1024 * 1024
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: int = 100 * 1024 * 1024
    ha_max_time_slave_not_catchup: int = 15_000
    check_sync_state_set_period: int = 5000
    slave_timeout: int = 3000
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    all_ack_in_sync_state_set: bool = False
    enable_auto_in_sync_replicas: bool = False
    sync_from_last_file: bool = False
    async_learner: bool = False

    @classmethod
    def of(cls, settings: object) -> HASettings:
        """Takes every field from the attribute of the same name, if `settings` has it."""
        names = (field.name for field in msgspec.structs.fields(cls))
        return cls(**{name: getattr(settings, name) for name in names if hasattr(settings, name)})

    @property
    def source_address(self) -> tuple[str, int] | None:
        """The local address of connections to a master: one that this broker listens at, because a returning
        master knows a slave by the host of its HA connection. None: the kernel chooses."""
        is_any = self.bind_address in ("", "0.0.0.0", "::")
        return (self.bind_address, 0) if self.enable_slave_acting_master and not is_any else None

    @property
    def block_bytes(self) -> int:
        """The largest block to send, in bytes; RocketMQ's replicas accept no frame above 4 MiB."""
        return min(self.ha_transfer_batch_size, BODY_SIZE_MAX)
