"""No request keeps an event loop from other work for long, however large it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from epochmq_controller.port_rules import CONTROLLER_RULES, NAMESERVER_RULES
from epochmq_protocol.member_requests import MemberCode
from tests.support.loop_budgets import page
from tests.support.loop_budgets.large_broker import Sizes
from tests.support.loop_budgets.measuring import BUDGET_S, Cost, calibration_s
from tests.support.loop_budgets.turn_meter import TurnMeter, run_measured
from tools.access_matrix import served_by_brokers

ROUNDS = 2
SIZES = Sizes(topics=2000, groups=1000, members=500, messages=500, users=200)
"""Smaller than those of the page: a cost that grows with a table shows all the same."""
UNITS = BUDGET_S / 0.00055
"""How often the fixed piece of work fits into the budget, on the machine of the page."""
GENEROUS = 4
"""A machine's caches and its other processes change the ratio of two pieces of work."""
SERVED = {
    "brokers": served_by_brokers(),
    "nameservers": set(map(int, NAMESERVER_RULES)) - set(map(int, MemberCode)),
    "controllers": set(map(int, CONTROLLER_RULES)) - set(map(int, MemberCode)),
}
MEASURES: dict[str, Callable[[TurnMeter, Path], Coroutine[Any, Any, list[Cost]]]] = {
    "brokers": lambda meter, folder: page.broker_costs(meter, folder, SIZES, ROUNDS),
    "nameservers": lambda meter, folder: page.nameserver_costs(meter, folder, ROUNDS),
    "controllers": lambda meter, folder: page.controller_costs(meter, folder, ROUNDS),
}


@pytest.mark.long
@pytest.mark.parametrize("process", SERVED)
def test_no_request_keeps_the_loop_for_long(process: str, tmp_path: Path) -> None:
    """The best of some rounds counts, in units of a fixed piece of work on the same machine."""
    unit_s = calibration_s()
    costs = run_measured(lambda meter: MEASURES[process](meter, tmp_path))
    assert {one.request.code for one in costs} == SERVED[process], "each code needs its largest request"
    unit_s = max(unit_s, calibration_s())
    bound = UNITS * GENEROUS
    slow = {
        f"{one.request.code}, {one.request.what}": round(one.least_s / unit_s)
        for one in costs
        if one.least_s / unit_s > bound
    }
    assert slow == {}, f"at most {bound:.0f} units"


def test_the_page_has_a_row_for_every_code() -> None:
    sections = page.PAGE.read_text().split("\n## ")[1:]
    for section in sections:
        process = section.partition("\n")[0].lower()
        rows = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
        assert rows == SERVED[process], "run .venv/bin/python -m tests.support.loop_budgets.page"
    assert len(sections) == len(SERVED)
