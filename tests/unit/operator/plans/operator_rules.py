"""Provides the rules that all random histories of groups share: an operator that is often killed, and
sidecars that stop responding."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.unit.operator.plans.fake_api import FakeApi


class OperatorRules(RuleBasedStateMachine):
    """The base of histories. A subclass sets `api`."""

    api: FakeApi

    @rule(effects=st.integers(0, 4), ticks=st.integers(0, 3))
    def work(self, effects: int, ticks: int) -> None:
        """An operator runs until it has carried out this many effects."""
        for _ in range(ticks):
            self.api.tick()
        self.api.operate(limit=effects)

    @rule(rounds=st.integers(4, 16))
    def calm(self, rounds: int) -> None:
        """An operator runs for a while."""
        for _ in range(rounds):
            self.api.tick()
            self.api.operate()

    @rule(silent=st.booleans())
    def hush(self, silent: bool) -> None:
        """The sidecars stop responding, or respond again."""
        self.api.silent = silent
