"""Copies groups, so that one Spark job audits many of them side by side."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epochmq_spark import store_layout
from tests.spark import damage, seeded_groups
from tests.spark.damage import InjectedDamage

NOT_COPIED = ("timerwheel",)
"""38 MB of slots, empty in these groups."""


def replicas(name: str, paths: Sequence[Path]) -> list[store_layout.AuditedReplica]:
    """The directories of a group, under a name."""
    return [store_layout.AuditedReplica(name, path.name, str(path)) for path in paths]


def copied(source: Sequence[Path], root: Path, name: str) -> list[Path]:
    """A copy of a group, with this name in its identity files."""
    target = root / name
    shutil.copytree(source[0].parent, target, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for path in target.glob("*/brokerIdentity"):
        path.write_text(path.read_text().replace(f"#{seeded_groups.NAME}#", f"#{name}#"))
    return sorted(target.iterdir())


def damaged(
    source: Sequence[Path], root: Path, kind: str, seed: object
) -> tuple[str, list[Path], InjectedDamage]:
    """A copy with one damage: its name, its directories, and the damage."""
    name = f"{kind}-{seed}"
    paths = copied(source, root, name)
    return name, paths, (damage.KINDS | damage.DLEDGER_KINDS)[kind](paths, random.Random(name))


def metadata(injected: dict[str, InjectedDamage]) -> list[dict[str, Any]]:
    """The controllers' views of all groups that have one."""
    return [one.metadata | {"brokerName": name} for name, one in injected.items() if one.metadata]
