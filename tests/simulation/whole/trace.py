"""What has happened in a run, as text and as one number."""

from __future__ import annotations

import logging
import zlib
from collections import deque
from pathlib import Path

LINES_KEPT = 4000


class Trace:
    """Every event counts for the `digest`; the last ones are kept."""

    def __init__(self, directory: Path) -> None:
        """The directory's name is left out: it differs from run to run."""
        self._directory = str(directory)
        self.digest = 0
        self.events = 0
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.story: list[str] = []

    def add(self, line: str) -> None:
        """Adds an event."""
        if self._directory in line:
            line = line.replace(self._directory, "")
        self.digest = zlib.crc32(line.encode(), self.digest)
        self.events += 1
        self.lines.append(line)

    def tell(self, line: str) -> None:
        """Adds an event that a reader of the run's story wants to know."""
        self.story.append(line)
        self.add(line)


class TraceHandler(logging.Handler):
    """Puts the log lines of all processes into the trace."""

    def __init__(self, trace: Trace, describe: object) -> None:
        super().__init__(logging.INFO)
        self._trace, self._describe = trace, describe

    def emit(self, record: logging.LogRecord) -> None:
        assert callable(self._describe)
        text = f"{self._describe()} {record.levelname} {record.getMessage()}"
        if record.exc_info is not None and record.exc_info[1] is not None:
            text += f" [{record.exc_info[1]!r}]"
        if record.levelno >= logging.WARNING:
            self._trace.tell(text)
        else:
            self._trace.add(text)
