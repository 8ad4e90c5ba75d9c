"""The waits after which requests are rejected, and RocketMQ's remark."""

from __future__ import annotations

import pytest

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.requests.fast_failure import UNLIMITED, FastFailure
from epochmq_protocol.codes import RequestCode


def rules(**settings: str) -> FastFailure:
    return FastFailure(LiveConfig(from_properties(settings).config))


@pytest.mark.parametrize(
    ("code", "limit_ms"),
    [
        (RequestCode.SEND_MESSAGE_V2, 200),
        (RequestCode.CONSUMER_SEND_MSG_BACK, 200),
        (RequestCode.PULL_MESSAGE, 5000),
        (RequestCode.POP_MESSAGE, 5000),
        (RequestCode.LITE_PULL_MESSAGE, 5000),
        (RequestCode.HEART_BEAT, 31_000),
        (RequestCode.END_TRANSACTION, 3000),
        (RequestCode.ACK_MESSAGE, 3000),
        (RequestCode.GET_BROKER_RUNTIME_INFO, 5000),
    ],
)
def test_a_request_has_the_limit_of_rocketmqs_queue(code: RequestCode, limit_ms: int) -> None:
    fast_failure = rules()
    assert fast_failure.rejection(code, limit_ms - 1, 7) is None
    assert fast_failure.rejection(code, limit_ms, 7) == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        f"period in queue: {limit_ms}ms, size of queue: 7"
    )


@pytest.mark.parametrize("code", [*sorted(UNLIMITED), 200900])
def test_other_requests_are_always_served(code: int) -> None:
    assert rules().rejection(code, 1_000_000, 0) is None


def test_the_keys_change_while_the_broker_runs() -> None:
    live = LiveConfig(from_properties({}).config)
    fast_failure = FastFailure(live)
    assert fast_failure.shortest_wait_ms == 200
    live.update({"waitTimeMillsInSendQueue": "9000"})
    assert fast_failure.shortest_wait_ms == 3000
    assert fast_failure.rejection(RequestCode.SEND_MESSAGE, 5000, 0) is None
    live.update({"brokerFastFailureEnable": "false"})
    assert fast_failure.shortest_wait_ms == 0
    assert fast_failure.rejection(RequestCode.PULL_MESSAGE, 1_000_000, 0) is None
