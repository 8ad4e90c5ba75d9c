"""Sends requests to a dispatcher as a client does, and measures the longest turn of the loop for each."""

from __future__ import annotations

import asyncio
import gc
import re
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from epochmq_protocol.frame import Command, encode
from tests.support.loop_budgets.turn_meter import TurnMeter
from tests.unit.broker.kit import Peer

READ_BYTES = 65_536
"""What a server reads from a socket at a time."""
HEADER_BYTES = 2 << 20
"""The longest header of a response."""
TURNS_AFTER = 50
"""Turns after the response in which the rest of the work is done: files that are written, for example."""
ANSWER_S = 20.0
BUDGET_S = 0.005
"""What no turn of a loop should take."""


def nothing() -> None:
    """Prepares nothing."""


@dataclass(frozen=True)
class LargestRequest:
    """The largest legal request of a code. `what`: its size, in words. `before`: prepares each round."""

    code: int
    what: str
    make: Callable[[], Command]
    before: Callable[[], object] = nothing
    answer: int | None = 0
    """The code of the response; None: any."""
    frame: Callable[[int], bytes] | None = None
    """Makes the bytes with this opaque, where `encode` would write others."""


@dataclass
class Cost:
    """What the rounds of a request took: the longest turn of each, in seconds of CPU time."""

    request: LargestRequest
    turns_s: list[float] = field(default_factory=list)

    @property
    def least_s(self) -> float:
        """The longest turn of the best round. Other work of the machine only makes rounds longer."""
        return min(self.turns_s)

    @property
    def median_s(self) -> float:
        """The longest turn of the median round."""
        return statistics.median(self.turns_s)

    @property
    def longest_s(self) -> float:
        """The longest turn of all rounds."""
        return max(self.turns_s)


async def measure_one(meter: TurnMeter, peer: Peer, request: LargestRequest, cost: Cost) -> None:
    """One round: sends the request, and adds the longest turn until all of its work is done."""
    command = request.make()
    command.opaque = peer.next_opaque()
    frame = encode(command) if request.frame is None else request.frame(command.opaque)
    request.before()
    peer.wire.written.clear()
    peer.wire.wrote.clear()
    await _turns(TURNS_AFTER)
    meter.restart()
    for start in range(0, len(frame), READ_BYTES):
        peer.connection.data_received(frame[start : start + READ_BYTES])
        await asyncio.sleep(0)
    longest_s = 0.0
    async with asyncio.timeout(ANSWER_S):
        while True:
            await peer.wire.wrote.wait()
            peer.wire.wrote.clear()
            longest_s = max(longest_s, meter.longest_s)
            if _is_answered(peer, command.opaque):
                break
    meter.restart()
    await _turns(TURNS_AFTER)
    cost.turns_s.append(max(longest_s, meter.longest_s))
    answer = await peer.answer(command.opaque, ANSWER_S)
    if request.answer not in (None, answer.code):
        raise UnexpectedAnswerError(f"{request.code}, {request.what}: {answer.code} {answer.remark}")


def _is_answered(peer: Peer, opaque: int) -> bool:
    """Whether the response has been written; decoding it would count as work of the loop."""
    response = re.compile(rb'"flag":1,"language":"\w+","opaque":%d,' % opaque)
    return any(response.search(data, 0, HEADER_BYTES) for data in peer.wire.written)


class UnexpectedAnswerError(Exception):
    """A request got another response than the one whose costs are to be measured."""


async def measure(
    meter: TurnMeter, peer_of: Callable[[], Peer], requests: Iterable[LargestRequest], rounds: int
) -> list[Cost]:
    """The costs of requests, each over a connection of its own. ExceptionGroup: of all requests without their
    expected response."""
    costs, wrong = [], []
    for request in requests:
        gc.collect()
        gc.freeze()  # the objects of the requests before, of which most are the tool's own
        peer, cost = peer_of(), Cost(request)
        try:
            for _ in range(rounds):
                await measure_one(meter, peer, request, cost)
        except (UnexpectedAnswerError, TimeoutError) as error:
            error.add_note(f"{request.code}, {request.what}")
            wrong.append(error)
        peer.close()
        costs.append(cost)
    if wrong:
        raise ExceptionGroup("requests without their expected response", wrong)
    return costs


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


UNIT_LOOPS = 1000


def calibration_s(rounds: int = 20) -> float:
    """The CPU time of a fixed piece of work on this machine: the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        table = {}
        for number in range(UNIT_LOOPS):
            table[f"topic-{number}"] = (number, str(number))
        ",".join(sorted(table))
        best = min(best, time.thread_time() - began)
    return best
