"""Any request of transactions, timer messages, POP, recall, users and ACLs, static topics, request modes,
filters and cold data gets a response with a code of RocketMQ's, and the broker serves on."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from epochmq_protocol.codes import RequestCode
from tests.unit.broker.auth.kit import PROVIDERS
from tests.unit.broker.kit import Bench, running, send_command
from tests.unit.broker.requests.request_fuzzer import CODES, FuzzedRequest, RequestFuzzer
from tests.unit.broker.services.pop import support as pop

SHORT, LONG = 10_000, 1_000_000
SIDE_BY_SIDE = 32
ANSWER_S = 60
BROKER_REQUESTS = 50_000
"""After so many requests a new broker starts, so that its store stays small."""
SETTINGS = PROVIDERS | {
    "aclStrict": "false",  # otherwise the first super user that a request makes ends the requests about users
    "coldDataFlowControlEnable": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "1000",
    "timerPrecisionMs": "100",
}


class UnexpectedResponses:
    """The responses with other codes than expected, and how often each code came."""

    def __init__(self) -> None:
        self.codes: Counter[tuple[int, int]] = Counter()
        self.wrong: dict[str, str] = {}
        self.silent = 0
        """Requests that get no response."""

    def add(self, fuzzed: FuzzedRequest, code: int, remark: str | None) -> None:
        """Notes a response."""
        request = fuzzed.command
        self.codes[request.code, code] += 1
        if code not in fuzzed.expected:
            self.wrong.setdefault(
                f"{RequestCode(request.code).name}: {code} {remark}", f"{request.ext} {request.body[:200]!r}"
            )


async def run_requests(bench: Bench, fuzzer: RequestFuzzer, count: int, found: UnexpectedResponses) -> None:
    """Sends requests, some at a time, and takes every response."""
    pop.send(bench, 3)
    peer = bench.peer()
    for _ in range(0, count, SIDE_BY_SIDE):
        sent = [(fuzzed := fuzzer.draw(), peer.send(fuzzed.command)) for _ in range(SIDE_BY_SIDE)]
        for fuzzed, opaque in sent:
            if fuzzed.expected:
                answer = await peer.answer(opaque, ANSWER_S)
                found.add(fuzzed, answer.code, answer.remark)
            else:
                found.silent += 1
        assert not peer.answers, "a request got a response that RocketMQ does not give"
    assert bench.broker.store.state.flags == 0
    assert bench.peer().call(send_command("alive")).code == 0


async def fuzz(directory: Path, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Sends `count` requests to one broker after another."""
    seed = int(os.environ.get("EPOCHMQ_FUZZ_SEED") or time.time())
    print(f"seed {seed}")
    fuzzer, found, started = RequestFuzzer(seed), UnexpectedResponses(), time.monotonic()
    for number, first in enumerate(range(0, count, BROKER_REQUESTS)):
        with caplog.at_level(logging.ERROR):
            async with running(directory / str(number), SETTINGS) as bench:
                await run_requests(bench, fuzzer, min(BROKER_REQUESTS, count - first), found)
        traces = [record for record in caplog.records if record.exc_info]
        assert not traces, [(record.getMessage(), record.exc_info) for record in traces[:5]]
        caplog.clear()
        assert found.wrong == {}
    total = sum(found.codes.values()) + found.silent
    print(f"{total} requests in {time.monotonic() - started:.0f} s; {len(found.codes)} pairs of codes")
    served = {request for (request, code), _ in found.codes.items() if code == 0}
    assert served >= {int(code) for code in CODES} - {int(RequestCode.POP_ROLLBACK), *RARELY_SERVED}


RARELY_SERVED = frozenset(
    {
        RequestCode.RECALL_MESSAGE,  # a handle names a message of this broker
        RequestCode.RESUME_CHECK_HALF_MESSAGE,  # the offset of a discarded half message
        RequestCode.END_TRANSACTION,  # has no response fields, but needs the offsets of a half message
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,  # needs what a POP returned
        RequestCode.PULL_MESSAGE,  # needs an offset and an expression that fit
        RequestCode.LITE_PULL_MESSAGE,
    }
)


@pytest.mark.long
async def test_every_generated_request_gets_a_response_with_a_code_of_rocketmqs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fuzz(tmp_path, SHORT, caplog)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_million_generated_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await fuzz(tmp_path, LONG, caplog)
