"""Implements `epochmq logs`: prints the last lines of the logs of a run's pods, and follows them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import Final

from epochmq.exits import ExitCode, UsageError, print_error
from epochmq_operator.local.state_directory import PodRecord, StateDirectory
from epochmq_operator.pods import Component

POLL_S: Final = 0.2
TAIL_BYTES_MAX: Final = 8 * 1024 * 1024
"""How much of the end of a log is searched for its last lines."""
READ_BYTES: Final = 256 * 1024
LINE_BYTES_MAX: Final = 1024 * 1024
"""A longer line is printed in parts, so that a log without line ends needs no memory."""


def run(
    state: Path,
    name: str | None,
    *,
    lines: int,
    follow: bool,
    write: Callable[[bytes], object],
    until: Callable[[], bool] = lambda: False,
) -> int:
    """Prints the last `lines` of the logs that GROUP or GROUP/REPLICA names, None: of all pods. With `follow`
    it continues until Ctrl-C; `until` ends it in tests."""
    directory = StateDirectory(state)
    known = directory.pods() if directory.exists() else None
    if known is None or not known.pods:
        print_error(f"no pod has run in {state}; start something with: epochmq up -f FILE")
        return ExitCode.NOTHING
    pods = [(one.pod, directory.log_path(one.pod)) for one in choose_pods(known.pods, name)]
    width = max(len(pod) for pod, _ in pods)
    logs = [FollowedLog(path, f"{pod:<{width}} | " if len(pods) > 1 else "") for pod, path in pods]
    try:
        for log in logs:
            for line in log.last_lines(lines):
                write(line)
        while follow and not until():
            written = [_write_all(log, write) for log in logs]
            if not any(written):
                time.sleep(POLL_S)
    finally:
        for log in logs:
            log.close()
    return ExitCode.OK


def _write_all(log: FollowedLog, write: Callable[[bytes], object]) -> bool:
    found = log.new_lines()
    for line in found:
        write(line)
    return bool(found)


def choose_pods(records: Sequence[PodRecord], name: str | None) -> list[PodRecord]:
    """The pods that `name` means. UsageError if there are none."""
    if name is None:
        return list(records)
    group, slash, replica = name.partition("/")
    chosen = [one for one in records if one.group == group and (not slash or _is_named(one, replica))]
    if not chosen:
        pods = ", ".join(f"{one.group}/{one.pod}" for one in records)
        raise UsageError(f"{name}: expected GROUP or GROUP/REPLICA; there are: {pods}")
    return chosen


def _is_named(record: PodRecord, replica: str) -> bool:
    """Whether `replica` is the name of the pod or, of a broker, its ordinal."""
    is_ordinal = record.component is Component.BROKER and record.pod.rpartition("-")[2] == replica
    return is_ordinal or record.pod == replica


class FollowedLog:
    """The log of one pod, read up to where it ends now. Also follows it when it is rotated, which truncates
    it, and when it is made anew."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path = path
        self._prefix = prefix.encode()
        self._file: FileIO | None = None
        self._rest = b""

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def last_lines(self, count: int) -> Sequence[bytes]:
        """The last lines, with the prefix; following begins behind them."""
        file = self._open()
        if file is None:
            return []
        end = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, end - TAIL_BYTES_MAX))
        text = file.read(end - start)
        whole, newline, rest = text.rpartition(b"\n")
        self._rest = rest
        found = whole.split(b"\n") if newline else []
        return [self._prefix + line + b"\n" for line in (found[-count:] if count else [])]

    def new_lines(self) -> Sequence[bytes]:
        """The whole lines since the last call, with the prefix; of a long log a part, the rest next time."""
        file = self._open()
        if file is None:
            return []
        if os.fstat(file.fileno()).st_size < file.tell():
            file.seek(0)
            self._rest = b""
        *found, self._rest = (self._rest + file.read(READ_BYTES)).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            found.append(self._rest)
            self._rest = b""
        return [self._prefix + line + b"\n" for line in found]

    def _open(self) -> FileIO | None:
        """The file; None as long as there is none."""
        if self._file is None:
            try:
                self._file = self._path.open("rb", buffering=0)
            except OSError:
                return None
        return self._file
