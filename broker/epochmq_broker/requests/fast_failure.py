"""Says after which wait a request is rejected in place of being served (BrokerFastFailure).

RocketMQ has a queue in front of each of its thread pools, and a limit for the wait in it. Here all requests
wait in the same place, for the event loop, but each has the limit of RocketMQ's queue for its code. Requests
whose queue has no limit in RocketMQ are always served, and so are those from replicas and controllers.
"""
# pure: values and rules only

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from epochmq_broker.requests.request_rules import PROCESSORS, processor_codes
from epochmq_protocol.codes import RequestCode

if TYPE_CHECKING:
    from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig

_LIMITS: Final[dict[str, Callable[[BrokerConfig], int]]] = {
    "send": lambda config: config.wait_time_mills_in_send_queue,
    "pull": lambda config: config.wait_time_mills_in_pull_queue,
    "lite_pull": lambda config: config.wait_time_mills_in_lite_pull_queue,
    "heartbeat": lambda config: config.wait_time_mills_in_heartbeat_queue,
    "transaction": lambda config: config.wait_time_mills_in_transaction_queue,
    "ack": lambda config: config.wait_time_mills_in_ack_queue,
}
"""Processor → the limit of its queue; `admin` has the limit for all codes without a processor."""
UNLIMITED: Final = frozenset(
    [
        *(code for name in PROCESSORS if name not in _LIMITS for code in processor_codes(name)),
        # from controllers and brokers
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
    ]
)


def wait_limits_ms(config: BrokerConfig) -> dict[int, int]:
    """Request code → the wait, in ms, after which a request is rejected. Empty while fast failure is off."""
    if not config.broker_fast_failure_enable:
        return {}
    limits: dict[int, int] = {
        code: limit(config) for name, limit in _LIMITS.items() for code in processor_codes(name)
    }
    admin: Iterable[int] = (code for code in RequestCode if code not in UNLIMITED)
    return dict.fromkeys(admin, config.wait_time_mills_in_admin_broker_queue) | limits


class FastFailure:
    """The limits in force (`late_requests.LateRequestPolicy`)."""

    def __init__(self, live: LiveConfig) -> None:
        self._apply(live.current, live.current)
        live.on_change.append(self._apply)

    @property
    def shortest_wait_ms(self) -> int:
        """The shortest wait after which any request is rejected; 0 for never."""
        return self._shortest_ms

    def rejection(self, code: int, waited_ms: int, ready: int) -> str | None:
        """RocketMQ's remark for a request that has waited too long; None for one that is served. `ready`, the
        number of sockets with requests, stands for the size of RocketMQ's queue."""
        limit_ms = self._limits_ms.get(code)
        if limit_ms is None or waited_ms < limit_ms:
            return None
        return (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {waited_ms}ms, size of queue: {ready}"
        )

    def _apply(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self._limits_ms = wait_limits_ms(after)
        # A limit of 0 would reject everything, also without any wait; the loop measures whole milliseconds.
        self._shortest_ms = max(min(self._limits_ms.values()), 1) if self._limits_ms else 0
