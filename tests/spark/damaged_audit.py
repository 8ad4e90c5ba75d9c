"""Audits a group that the test has damaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")
from epochmq_spark import audit, store_layout
from tests.spark import expectations, group_copies
from tests.spark.damage import InjectedDamage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def findings(
    spark: SparkSession, all_replicas: list[store_layout.AuditedReplica], metadata: Any, **options: Any
) -> dict[str, list[dict[str, Any]]]:
    """Findings by group."""
    result = audit.run(spark, all_replicas, metadata=metadata, **options)
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in result.findings.collect():
        by_group[row["group"]].append(row.asDict())
    return by_group


def audit_damaged(
    spark: SparkSession, root: Path, sources: Mapping[str, list[Path]], kinds: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Audits healthy groups, by name, as they are and with each of these kinds of damage, in one audit.
    Returns what is wrong with the findings, by group."""
    everything: list[store_layout.AuditedReplica] = []
    injected: dict[str, InjectedDamage] = {}
    for seed, source in sources.items():
        everything += group_copies.replicas(seed, group_copies.copied(source, root, seed))
        for kind in kinds[seed]:
            name, paths, injected_here = group_copies.damaged(source, root, kind, seed)
            injected[name] = injected_here
            everything += group_copies.replicas(name, paths)
    found = findings(spark, everything, group_copies.metadata(injected))
    wrong = {
        name: expectations.mismatches(damage_done, found[name]) for name, damage_done in injected.items()
    }
    for name in sources:
        wrong[name] = [f"found {row}" for row in found[name] if row["severity"] != "note"]
    return {name: faults for name, faults in wrong.items() if faults}
