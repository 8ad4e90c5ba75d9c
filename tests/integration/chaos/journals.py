"""Reads the journals of the Java producer and consumers, line by line (`tests/interop/java/Chaos*.java`)."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.integration.ack_checks import Ack

_BODY = re.compile(rb"java-(\d+)-x*")
SEND_OK = "SEND_OK"


def java_body(number: int) -> bytes:
    """The body of the Java producer's message of this number."""
    return b"java-%d-" % number + b"x" * (number * 7919 % 1000)


def number_of(body: bytes) -> int | None:
    """The number of a message of the Java producer; None for another one. Fails if the body is one that
    the producer has not sent."""
    found = _BODY.fullmatch(body)
    if found is None:
        return None
    number = int(found[1])
    assert body == java_body(number), f"the body was changed: {body!r}"
    return number


class JournalLines:
    """The lines of a file that grows, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[list[str]]:
        """The words of every complete line since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                yield line.decode().split()


class ProducerJournal:
    """The producer's journal."""

    def __init__(self, path: Path) -> None:
        self.acks: list[Ack] = []
        self.outcomes: Counter[str] = Counter()
        """How often a send ended so: a SendStatus, or the name of an exception."""
        self.last = 0
        """The greatest number it began to send."""
        self._lines = JournalLines(path)

    def read(self) -> None:
        """Reads what was written since the last call."""
        for kind, *words in self._lines.new():
            if kind == "send":
                self.last = max(self.last, int(words[0]))
            elif kind == "sent":
                self._sent(words)

    def _sent(self, words: list[str]) -> None:
        number, began_ns, ended_ns, outcome, *where = words
        self.outcomes[outcome] += 1
        if outcome != SEND_OK:
            return
        queue_id, queue_offset, message_id, _ = where
        self.acks.append(
            Ack(
                java_body(int(number)),
                int(queue_id),
                int(queue_offset),
                int(message_id[16:], 16),
                # Java's nanoTime and Python's monotonic read the same clock.
                int(began_ns) / 1e9,
                int(ended_ns) / 1e9,
                _store_host(message_id),
            )
        )


def _store_host(message_id: str) -> str:
    """The broker that stored a message, from its offset message id (MessageDecoder.createMessageId)."""
    raw = bytes.fromhex(message_id)
    return f"{socket.inet_ntoa(raw[:4])}:{int.from_bytes(raw[4:8])}"


class ConsumerJournal:
    """The consumers' journal: what each saw, as {(queue, offset): CRC-32 of the body}."""

    WHO = ("push", "pull")

    def __init__(self, path: Path) -> None:
        self.seen: dict[str, dict[tuple[int, int], int]] = {who: {} for who in self.WHO}
        self._lines = JournalLines(path)

    def read(self) -> None:
        """Reads what was written since the last call. Fails when one offset of a queue had two bodies."""
        for who, *numbers in self._lines.new():
            queue_id, offset, crc = map(int, numbers)
            known = self.seen[who].setdefault((queue_id, offset), crc)
            assert known == crc, f"{who} saw two messages at offset {offset} of queue {queue_id}"
