"""Stores messages in RocketMQ's files: commit log, consume queues, index files and checkpoint
(org.apache.rocketmq.store)."""

from epochmq_broker.store.appender import BatchMessage
from epochmq_broker.store.consume_queue import ConsumeQueue
from epochmq_broker.store.mapped_file import DiskFullError, StoreDamagedError
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.record import keys_of, property_value, tags_code_of
from epochmq_broker.store.statuses import GetResult, GetStatus, PutStatus, QueryResult, RunningFlags
from epochmq_broker.store.store_config import StoreConfig

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
