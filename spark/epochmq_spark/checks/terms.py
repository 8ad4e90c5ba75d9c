# pure: terms of the entries of a DLedger log
"""Derives the terms of a group's DLedger logs, which take the place of epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_spark.checks.epoch_history import EpochStart, ReplicaHistory
from epochmq_spark.findings import finding

Row = dict[str, Any]


@dataclass(frozen=True)
class TermEntries:
    """The entries of a term in a log: physical offsets, and their number."""

    term: int
    start: int
    end: int
    count: int


def set_terms(
    group: str, histories: Sequence[ReplicaHistory], terms: Mapping[str, Sequence[TermEntries]]
) -> list[Row]:
    """Sets the epochs of the DLedger logs of a group to the terms of their entries; returns findings of terms
    and saved terms that contradict each other.

    A damaged header may name any term. So a term does not count if it is beyond the term that the peer has
    saved, or if it starts among the entries of another term that has more of them; and a term starts where it
    does in most replicas."""
    findings: list[Row] = []
    kept: dict[str, dict[int, int]] = {}
    for history in histories:
        if history.peer is None:
            continue
        inside = [term for term in terms.get(history.name, ()) if history.start <= term.start < history.end]
        limit = OFFSET_MAX if history.peer.term is None else history.peer.term
        for term in inside:
            if term.term > limit:
                detail = f"its term is {term.term}, the saved one {limit}"
                columns = {"epoch": term.term, "start_offset": term.start}
                findings.append(finding(group, history.name, "dledger.term-behind", **columns, detail=detail))
        kept[history.name] = {
            term.term: term.start
            for term in inside
            if term.term <= limit
            and not any(o.start < term.start < o.end and o.count > term.count for o in inside)
        }
    votes = Counter(start for starts in kept.values() for start in starts.items())
    for history in histories:
        history.entries = (
            sorted(
                (term, _elected_start(term, votes, start))
                for term, start in kept.get(history.name, {}).items()
            )
            or history.entries
        )
    return findings


def _elected_start(term: int, votes: Counter[EpochStart], own: int) -> int:
    """Where most replicas have the start of a term. Where a log begins later, its start counts for less."""
    return min(
        (start for of, start in votes if of == term),
        key=lambda start: (-votes[term, start], start),
        default=own,
    )
