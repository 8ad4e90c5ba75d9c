"""Reads the journals of MixedProducers and MixedConsumers, and compares them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.integration.chaos.journals import SEND_OK, JournalLines

KINDS = ("retry", "delay", "timer", "transaction", "pop", "order")
EARLY_MS = {"timer": 1000}
"""How much earlier than its time a message may be seen: RocketMQ delivers timer messages in steps of
timerPrecisionMs."""


def is_rolled_back(kind: str, number: int) -> bool:
    """Whether the producer rolls this message back, at once or when it is asked."""
    return kind == "transaction" and number % 2 == 1


class MixedProducerJournal:
    """What was sent. `acks`: the acknowledged numbers of each kind; `last`: the greatest number begun."""

    def __init__(self, path: Path) -> None:
        self.acks: dict[str, set[int]] = {kind: set() for kind in KINDS}
        self.last: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self._lines = JournalLines(path)

    def read(self) -> None:
        """Reads what was written since the last call."""
        for event, *words in self._lines.new():
            if event == "send":
                self.last[words[0]] = max(self.last[words[0]], int(words[1]))
            elif event == "sent":
                kind, number, outcome = words
                self.outcomes[outcome] += 1
                if outcome == SEND_OK:
                    self.acks[kind].add(int(number))

    @property
    def count(self) -> int:
        """The number of acknowledged messages."""
        return sum(map(len, self.acks.values()))


@dataclass(frozen=True)
class Sighting:
    """A message as a consumer got it. Times are epoch ms; `attempt` counts earlier attempts."""

    kind: str
    number: int
    due_ms: int
    queue_id: int
    offset: int
    attempt: int
    seen_ms: int


class MixedConsumerJournal:
    """What was consumed, in order."""

    def __init__(self, path: Path) -> None:
        self.sightings: list[Sighting] = []
        self.seen: dict[str, set[int]] = {kind: set() for kind in KINDS}
        self._lines = JournalLines(path)

    def read(self) -> None:
        """Reads what was written since the last call. Fails on a body that was not sent."""
        for body, *numbers in self._lines.new():
            kind, number, due_ms = body.split("-")
            assert kind in KINDS, body
            sighting = Sighting(kind, int(number), int(due_ms), *map(int, numbers))
            self.sightings.append(sighting)
            self.seen[kind].add(sighting.number)

    def repeated(self) -> int:
        """How many sightings were repetitions."""
        return len(self.sightings) - sum(map(len, self.seen.values()))


def missing(producer: MixedProducerJournal, consumer: MixedConsumerJournal) -> dict[str, list[int]]:
    """The acknowledged numbers of each kind that no consumer has seen, without those that were rolled
    back."""
    found = {}
    for kind in KINDS:
        wanted = {number for number in producer.acks[kind] if not is_rolled_back(kind, number)}
        if lacking := wanted - consumer.seen[kind]:
            found[kind] = sorted(lacking)
    return found


def contradictions(producer: MixedProducerJournal, consumer: MixedConsumerJournal) -> list[str]:
    """What must never be seen: messages that were not sent or were rolled back, messages before their time,
    and in-order messages out of order."""
    wrong = []
    last: dict[int, int] = {}
    known: set[tuple[int, int]] = set()
    for one in consumer.sightings:
        if one.number > producer.last[one.kind]:
            wrong.append(f"never sent: {one}")
        if is_rolled_back(one.kind, one.number):
            wrong.append(f"rolled back: {one}")
        if one.seen_ms < one.due_ms - EARLY_MS.get(one.kind, 0):
            wrong.append(f"{one.due_ms - one.seen_ms} ms early: {one}")
        if one.kind == "order" and (one.queue_id, one.offset) not in known:
            known.add((one.queue_id, one.offset))
            if one.offset < last.get(one.queue_id, -1):
                wrong.append(f"after offset {last[one.queue_id]}: {one}")
            last[one.queue_id] = one.offset
    return wrong
