"""Fails a read at the file that it opens."""

from __future__ import annotations

from collections.abc import Sequence

from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.files.queue_files import QueueFile


class Guard:
    """A `PageResidency` that knows nothing yet. It notes the bytes of the log that it is asked for in
    `asked`, and the ranges that it should know in `spans`."""

    def __init__(self, asked: set[int]) -> None:
        self.asked = asked
        self.spans: list[tuple[int, int]] = []

    def knows(self, file: MappedFile, at: int, end: int) -> bool:
        self.spans.append((file.start + at, file.start + end))
        return False

    def require(self, file: MappedFile | QueueFile, at: int, size: int) -> None:
        if isinstance(file, MappedFile):
            self.asked.update(range(file.start + at, file.start + at + size))

    def require_all(self, file: MappedFile, pieces: Sequence[tuple[int, int]]) -> None:
        for at, size in pieces:
            self.require(file, at, size)
