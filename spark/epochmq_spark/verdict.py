# pure: findings to a verdict
"""Derives the verdict and its exit code from the findings.

| verdict | exit code | |
|---|---|---|
| healthy | 0 | two replicas or more were compared, without a contradiction; there may be notes |
| damaged | 4 | at least one error |
| undecided | 5 | no error, but something could not be read or was missing, such as a second replica |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from epochmq_spark.findings import KINDS, FindingSeverity

REPLICAS_MIN: Final = 2  # replicas of a group that must be readable for a healthy verdict


class AuditVerdict(StrEnum):
    """The result of an audit."""

    HEALTHY = "healthy"
    DAMAGED = "damaged"
    UNDECIDED = "undecided"

    @property
    def exit_code(self) -> int:
        """The exit code of `epochmq audit`."""
        return {AuditVerdict.HEALTHY: 0, AuditVerdict.DAMAGED: 4, AuditVerdict.UNDECIDED: 5}[self]


def verdict_of(counts: Mapping[str, int], replicas_read: int) -> AuditVerdict:
    """The verdict of findings counted by kind. An audit that read fewer than two replicas compared no
    copies, and is never healthy."""
    severities = {KINDS[kind][0] for kind, count in counts.items() if count}
    if FindingSeverity.ERROR in severities:
        return AuditVerdict.DAMAGED
    if FindingSeverity.WARNING in severities or replicas_read < REPLICAS_MIN:
        return AuditVerdict.UNDECIDED
    return AuditVerdict.HEALTHY


def summary(
    counts: Mapping[str, int],
    replicas: Sequence[Mapping[str, Any]],
    findings: Sequence[Mapping[str, Any]],
    **more: Any,
) -> dict[str, Any]:
    """The JSON summary. `findings` may be only the first ones; `findingCounts` counts all."""
    read = sum(one["logEnd"] is not None for one in replicas)
    verdict = verdict_of(counts, read)
    return {
        "verdict": verdict.value,
        "exitCode": verdict.exit_code,
        "findingCounts": dict(sorted((kind, count) for kind, count in counts.items() if count)),
        "replicas": list(replicas),
        "findings": [{name: value for name, value in row.items() if value is not None} for row in findings],
        **more,
    }
