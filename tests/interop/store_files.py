"""The files of stores that RocketMQ and EpochMQ write alike."""

from __future__ import annotations

from epochmq_protocol import message as records

QUEUE_FILE = 20 * 1000
SLOTS, ENTRIES = 5000, 30_000
DELAYS_MS = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
V4 = records.encode_host("127.0.0.2", 40000)
STORE_HOST = records.encode_host("127.0.0.1", 10911)
