"""Kinds of damage, each done to a healthy group at a place that a seed chooses, and what an audit must say.

Each returns what it did: the kind that must be found, the replica, where; and which further kinds may follow
from it, at the same replica. Nothing else may be found."""

from __future__ import annotations

from tests.spark import damage_epochs, damage_files, damage_log
from tests.spark.damage_kit import KINDS, InjectedDamage, epochs, records

__all__ = ["KINDS", "InjectedDamage", "damage_epochs", "damage_files", "damage_log", "epochs", "records"]
