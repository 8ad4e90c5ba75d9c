"""Lists the kinds of damage. Each injector damages a healthy group at a position chosen by a seed.

It returns the damage: the replica, the kinds of findings that an audit must report and where, and further
kinds that may follow from it at the same replica. The audit must not report anything else."""

from __future__ import annotations

from tests.spark import damage_entries, damage_epochs, damage_files, damage_log
from tests.spark.damage_kit import DLEDGER_KINDS, KINDS, InjectedDamage, epochs, records

__all__ = [
    "DLEDGER_KINDS",
    "KINDS",
    "InjectedDamage",
    "damage_entries",
    "damage_epochs",
    "damage_files",
    "damage_log",
    "epochs",
    "records",
]
