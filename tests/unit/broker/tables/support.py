"""Settings, a clock that the test advances, and channels without a network, for the tests of the broker's
tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Clock:
    """Epoch milliseconds that only the test advances."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> int:
        """Advances the clock by `ms` and returns the time."""
        self.now_ms += ms
        return self.now_ms


class FakeChannel:
    """A client's connection, as the registry sees it."""

    def __init__(self, remote: str = "10.0.0.1:4711") -> None:
        self.remote = remote
        self.closed = False

    def __repr__(self) -> str:
        return self.remote


def settings(**changes: Any) -> Any:
    """The settings that the tables read, with RocketMQ's defaults."""
    values = {
        "broker_name": "broker-a",
        "broker_cluster_name": "TestCluster",
        "auto_create_topic_enable": True,
        "default_topic_queue_nums": 8,
        "cluster_topic_enable": True,
        "broker_topic_enable": True,
        "trace_topic_enable": False,
        "msg_trace_topic_name": "RMQ_SYS_TRACE_TOPIC",
        "revive_queue_num": 8,
        "auto_create_subscription_group": True,
        "enable_create_sys_group": True,
    }
    return SimpleNamespace(**{**values, **changes})
