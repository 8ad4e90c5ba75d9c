"""Defines the store's part of the broker's configuration: RocketMQ's MessageStoreConfig keys in snake
case."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from epochmq_formats import batch_unit, queue_unit

RECORD_OVERHEAD_BYTES = 64 * 1024  # a record may exceed its largest body by so much (MessageExtEncoder)


class StoreConfig(Struct, frozen=True, kw_only=True):
    """Sizes are in bytes, times in ms, ratios in percent, unless a comment says otherwise. Defaults are those
    of RocketMQ 5.3.3."""

    store_path_root_dir: str
    store_path_commit_log: str = ""  # one path or several, separated by commas; default: <root>/commitlog
    read_only_commit_log_store_paths: str = ""  # with several paths only

    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 300_000 * queue_unit.UNIT_BYTES
    mapper_file_size_batch_consume_queue: int = 300_000 * batch_unit.UNIT_BYTES
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 48 << 20
    message_index_enable: bool = True
    message_index_safe: bool = False
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    max_msgs_num_batch: int = 64
    max_message_size: int = 4 << 20

    flush_disk_type: str = "ASYNC_FLUSH"
    sync_flush_timeout: int = 5000
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000

    max_transfer_bytes_on_message_in_memory: int = 256 * 1024
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 * 1024
    max_transfer_count_on_message_in_disk: int = 8
    max_filter_message_size: int = 16_000
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: int = 20_000
    access_message_in_memory_max_ratio: int = 40
    data_read_ahead_enable: bool = True

    delete_when: str = "04"  # hours of the day, separated by ;
    file_reserved_time: int = 72  # hours
    disk_max_used_space_ratio: int = 75
    disk_space_warning_level_ratio: int = 90
    disk_space_clean_forcibly_ratio: int = 85
    clean_file_forcibly_enable: bool = True
    delete_file_batch_max: int = 10
    clean_resource_interval: int = 10_000

    check_crc_on_recover: bool = True
    enabled_append_prop_crc: bool = False
    force_verify_prop_crc: bool = False
    # Item n-1 is the delay of level n, ms. The tag codes of delayed messages, their delivery times, are
    # computed from it.
    delays_ms: tuple[int, ...] = ()

    @classmethod
    def of(cls, settings: object) -> StoreConfig:
        """Builds the struct from the attributes of `settings` that have the names of its fields."""
        names = (field.name for field in msgspec.structs.fields(cls))
        return cls(**{name: getattr(settings, name) for name in names if hasattr(settings, name)})

    @property
    def root(self) -> Path:
        """storePathRootDir with `~` expanded."""
        return Path(self.store_path_root_dir).expanduser()

    @property
    def commit_log_dirs(self) -> list[Path]:
        """The directories of the log files, in the configured order."""
        return split_paths(self.store_path_commit_log) or [self.root / "commitlog"]

    @property
    def read_only_log_dirs(self) -> list[Path]:
        """The directories of the log that get no new files. As in RocketMQ, there are none unless
        storePathCommitLog has several paths."""
        if len(self.commit_log_dirs) < 2:
            return []
        return split_paths(self.read_only_commit_log_store_paths)

    @property
    def sync_flush(self) -> bool:
        """Whether a put is acknowledged only after its bytes are on disk."""
        return self.flush_disk_type == "SYNC_FLUSH"


def split_paths(text: str) -> list[Path]:
    """The paths of a key, separated by commas, without repetitions."""
    return list(dict.fromkeys(Path(path.strip()).expanduser() for path in text.split(",") if path.strip()))
