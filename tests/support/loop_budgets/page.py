"""Measures every request code of broker, nameserver and controller, and writes docs/develop/loop-budgets.md.

    python -m tests.support.loop_budgets.page

`--print` only prints the codes that take more than the budget."""

from __future__ import annotations

import argparse
import datetime
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tests.benchmarks.machine import describe_machine
from tests.support.loop_budgets import broker_requests, controller_requests, nameserver_requests
from tests.support.loop_budgets.known_costs import KNOWN, ONCE
from tests.support.loop_budgets.large_broker import SETTINGS, LargeBroker, Sizes
from tests.support.loop_budgets.measuring import BUDGET_S, Cost, measure
from tests.support.loop_budgets.turn_meter import TurnMeter, run_measured
from tests.unit.broker.kit import running
from tools.access_matrix import name_of

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "develop" / "loop-budgets.md"
ROUNDS: Final = 5


async def broker_costs(meter: TurnMeter, folder: Path, sizes: Sizes, rounds: int) -> list[Cost]:
    """The costs of a broker's requests."""
    async with running(folder, SETTINGS) as bench:
        large = LargeBroker(bench, sizes)
        large.fill()
        return await measure(meter, bench.peer, broker_requests.largest_requests(large), rounds)


async def nameserver_costs(meter: TurnMeter, folder: Path, rounds: int) -> list[Cost]:
    """The costs of a nameserver's requests."""
    async with nameserver_requests.large_nameserver(folder) as large:
        return await measure(meter, large.peer, nameserver_requests.largest_requests(large), rounds)


async def controller_costs(meter: TurnMeter, folder: Path, rounds: int) -> list[Cost]:
    """The costs of a controller's requests."""
    async with controller_requests.large_controller(folder) as server:
        requests = controller_requests.largest_requests(server)
        return await measure(meter, lambda: controller_requests.peer_of(server), requests, rounds)


def rows(process: str, costs: Iterable[Cost]) -> list[str]:
    """A row for each request."""
    known = KNOWN[process]
    return [
        f"| {one.request.code} | `{name_of(one.request.code)}` | {one.request.what} "
        f"| {_ms(one.longest_s)} | {_ms(one.median_s)} | {_ms(one.least_s)} "
        f"| {_reason(one, known.get(one.request.code, ''))} |"
        for one in costs
    ]


def _reason(cost: Cost, known: str) -> str:
    if cost.longest_s <= BUDGET_S:
        return ""
    return known or (ONCE if cost.median_s <= BUDGET_S else "")


def _ms(seconds: float) -> str:
    shown = f"{seconds * 1000:.1f}"
    return f"**{shown}**" if seconds > BUDGET_S else shown


def measured_rows(sizes: Sizes, rounds: int) -> dict[str, list[Cost]]:
    """The costs of the requests of each process."""
    found: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found["brokers"] = run_measured(lambda meter: broker_costs(meter, folder / "b", sizes, rounds))
        found["nameservers"] = run_measured(lambda meter: nameserver_costs(meter, folder, rounds))
        found["controllers"] = run_measured(lambda meter: controller_costs(meter, folder / "c", rounds))
    return found


def page(found: dict[str, list[Cost]]) -> str:
    """The page."""
    machine = describe_machine()
    return _PAGE.format(
        machine=f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"Python {machine['python']}",
        date=datetime.datetime.now(datetime.UTC).date(),
        rounds=ROUNDS,
        **{process: "\n".join(rows(process, costs)) for process, costs in found.items()},
    )


_PAGE: Final = """\
# How long one request keeps an event loop

For developers. After this page you know, for each request code, how long the largest legal request keeps the
event loop from all other work, heartbeats and lease renewals included. No turn of a loop should take more
than 5 ms.

`python -m tests.support.loop_budgets.page` measures and writes the page. It calls the real processors of a
broker, a nameserver and a controller in one process. The broker has 5,000 topics of 8 queues, 2,000 groups,
offsets of 10,000 groups of topics, 500 users, and 1,000 clients in one group. A time is the CPU time of the
loop's thread between two looks at its sockets: the longest such turn from the first byte of the request until
all of its work is done. Each request ran {rounds} times; times over 5 ms are bold. The best time says most:
other work of the machine, which shares the caches, only makes times longer.
`tests/unit/broker/requests/test_loop_budgets.py` fails for a code that has no row here, and for a request
that takes several times as long as it may, compared with a fixed piece of work on the same machine.

The access control is off: with it, the bodies of heartbeats, locks and lists are also read at once to see
what they ask for. Periodic work of the broker is not measured.

Measured on {date}: {machine}.

## Brokers

| code | name | request | longest, ms | median, ms | best, ms | why it takes longer |
|---|---|---|---|---|---|---|
{brokers}

## Nameservers

| code | name | request | longest, ms | median, ms | best, ms | why it takes longer |
|---|---|---|---|---|---|---|
{nameservers}

## Controllers

| code | name | request | longest, ms | median, ms | best, ms | why it takes longer |
|---|---|---|---|---|---|---|
{controllers}
"""


def main() -> None:
    """Measures, and writes or prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the requests over the budget only")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    found = measured_rows(Sizes(), arguments.rounds)
    if not arguments.print:
        PAGE.write_text(page(found), encoding="utf-8")
        return
    slow: Callable[[Cost], float] = lambda one: one.median_s  # noqa: E731 - one expression
    for process, costs in found.items():
        for one in sorted(costs, key=slow, reverse=True):
            if one.longest_s > BUDGET_S / 2:
                print(
                    f"{process:12} {one.request.code:6} {name_of(one.request.code):36} "
                    f"{one.longest_s * 1000:8.1f} {one.median_s * 1000:8.1f}  {one.request.what}"
                )


if __name__ == "__main__":
    main()
