"""Whether findings are exactly what a damage calls for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from epochmq_spark.checks.record_copies import LISTED_MAX
from tests.spark.damage import InjectedDamage


def faults(done: InjectedDamage, found: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with the findings, nothing when all is right. Notes do not count. Where a list is full
    there may be `more`."""
    serious = [row for row in found if row["severity"] != "note"]
    wrong = []
    kinds = {row["kind"] for row in serious}
    if missing := done.expected - kinds:
        wrong.append(f"not found: {sorted(missing)}")
    listed = Counter(row["replica"] for row in serious if row["kind"] != "more")
    if all(listed[row["replica"]] >= LISTED_MAX for row in serious if row["kind"] == "more"):
        kinds.discard("more")
    if extra := kinds - done.expected - done.allowed:
        wrong.append(f"found too: {sorted(extra)}")
    others = {row["replica"] for row in serious} - {done.replica}
    if others and done.replica != "*":
        wrong.append(f"at {sorted(others)}, expected {done.replica}")
    if done.where and not any(
        row["kind"] in done.expected and all(row[name] == value for name, value in done.where.items())
        for row in serious
    ):
        places = [{name: row[name] for name in ("kind", *done.where)} for row in serious][:5]
        wrong.append(f"expected at {done.where}, found {places}")
    return wrong
