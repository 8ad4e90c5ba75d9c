# pure: words
"""Says in a sentence what is damaged in the log, and what a person has to do if the broker does not repair
it."""

from __future__ import annotations

from epochmq_store.log.damaged_ranges import REFILL, DamagedRange


def damage_text(damaged: DamagedRange) -> str:
    """A damaged range in a sentence."""
    text = f"the log is damaged from offset {damaged.start} to {damaged.end}: {damaged.fault}"
    if damaged.repairable:
        return text
    return f"{text}. Compare the logs (epochmq audit); if this broker's is the wrong one, {REFILL}"
