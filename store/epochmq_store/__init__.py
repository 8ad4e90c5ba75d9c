"""The message store in RocketMQ's files: commit log, consume queues, index files, checkpoint, and the
broker's state files (org.apache.rocketmq.store).
It may use the formats and the protocol.
It must not know of brokers: neither roles, requests, nor settings of others."""

from epochmq_store.appender import BatchMessage
from epochmq_store.consume_queue import ConsumeQueue
from epochmq_store.mapped_file import DiskFullError, StoreDamagedError
from epochmq_store.message_store import MessageStore
from epochmq_store.record import keys_of, property_value, tags_code_of
from epochmq_store.statuses import GetResult, GetStatus, PutStatus, QueryResult, RunningFlags
from epochmq_store.store_config import StoreConfig

__all__ = [
    "BatchMessage",
    "ConsumeQueue",
    "DiskFullError",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "PutStatus",
    "QueryResult",
    "RunningFlags",
    "StoreConfig",
    "StoreDamagedError",
    "keys_of",
    "property_value",
    "tags_code_of",
]
