"""Measures the CPU time of the store's append path, in microseconds for each message, with and without the
index.

`python -m tests.benchmarks.append_path [messages]` prints a table for 1 KB bodies, keys as clients create
them, and one queue or 1,000 queues. The store is in a temporary directory, so that writes go to the page
cache only."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable

from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import StoreConfig

BODY = bytes(range(256)) * 4
HOST = b"\x7f\0\0\x01\0\0\x9c\x40"
SUFFIX = (
    b"\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
)
CHUNK = 10_000

Message = tuple[bytes, str, str]  # properties, unique key, keys


def messages(count: int, keys: bool) -> list[Message]:
    """Messages with the unique keys of one client and, with `keys`, a business key each."""
    made = []
    for number in range(count):
        uniq_key = f"7F0000010A1E18B4AAC2{123_456 + number // 20:08X}{number & 0xFFFF:04X}"
        key = f"order-{number}" if keys else ""
        properties = b"UNIQ_KEY\x01" + uniq_key.encode() + SUFFIX
        if keys:
            properties += b"KEYS\x01" + key.encode() + b"\x02"
        made.append((properties, uniq_key, key))
    return made


def measure(sent: list[Message], queue_count: int, *, index: bool) -> float:
    """The CPU time for each message in µs, of the fastest CHUNK messages: those during which no other work
    used the processor's caches."""
    best = float("inf")
    with tempfile.TemporaryDirectory() as directory:
        config = StoreConfig(
            store_path_root_dir=directory, mapped_file_size_commit_log=1 << 30, message_index_enable=index
        )
        store = MessageStore(config)
        store.load()
        queues = [store.queue("orders", number) for number in range(queue_count)]
        append, ok = store.append, PutStatus.PUT_OK
        gc.collect()
        for first in range(0, len(sent), CHUNK):
            started = time.process_time()
            for number, (properties, uniq_key, key) in enumerate(sent[first : first + CHUNK]):
                status, _, _, _ = append(
                    queues[number % queue_count],
                    body=BODY,
                    properties=properties,
                    born_timestamp=1_700_000_000_000,
                    born_host=HOST,
                    tags_code=2598919,
                    uniq_key=uniq_key,
                    keys=key,
                )
                assert status is ok
            store.appender.build_index()
            best = min(best, (time.process_time() - started) / CHUNK * 1e6)
        store.stop()
    return best


def main(say: Callable[[str], None] = print) -> None:
    """Prints the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    say(f"{count} messages of {len(BODY)} bytes, the fastest {CHUNK} of them, us for each message")
    for name, keys, index in (
        ("no index", False, False),
        ("unique key", False, True),
        ("and KEYS", True, True),
    ):
        sent = messages(count, keys)
        for queue_count in (1, 64):
            say(f"  {name:<12}{queue_count:>5} queues  {measure(sent, queue_count, index=index):6.2f}")


if __name__ == "__main__":
    main()
