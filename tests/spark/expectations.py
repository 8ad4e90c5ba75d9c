"""Compares the findings of an audit with those that an injected damage must cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from epochmq_spark.checks.record_copies import LISTED_MAX
from tests.spark.damage import InjectedDamage


def mismatches(damage: InjectedDamage, findings: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with the findings; empty if they are as expected. Notes do not count, and a `more` is
    accepted where a list is full."""
    serious = [row for row in findings if row["severity"] != "note"]
    wrong = []
    kinds = {row["kind"] for row in serious}
    if missing := damage.expected - kinds:
        wrong.append(f"not found: {sorted(missing)}")
    listed = Counter(row["replica"] for row in serious if row["kind"] != "more")
    if all(listed[row["replica"]] >= LISTED_MAX for row in serious if row["kind"] == "more"):
        kinds.discard("more")
    if extra := kinds - damage.expected - damage.allowed:
        wrong.append(f"not expected: {sorted(extra)}")
    others = {row["replica"] for row in serious} - {damage.replica}
    if others and damage.replica != "*":
        wrong.append(f"at {sorted(others)}, expected {damage.replica}")
    if damage.where and not any(
        row["kind"] in damage.expected and all(row[name] == value for name, value in damage.where.items())
        for row in serious
    ):
        found = [{name: row[name] for name in ("kind", *damage.where)} for row in serious][:5]
        wrong.append(f"expected at {damage.where}, found {found}")
    return wrong
