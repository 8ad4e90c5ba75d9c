"""Names each process that uses a store, and keeps the names in the file `brokerIdentity-incarnations`.

The name of a process, its *incarnation*, is random and is on disk before the process takes part in its group.
The file also holds the names of former processes, back to the last one whose registration the controllers
acknowledged: any of the later ones may have been recorded although its response was lost. By these names the
controllers recognise copies and older versions of a store. RocketMQ's brokers ignore the file.
"""

from __future__ import annotations

import logging
import re
import secrets
from pathlib import Path
from typing import Final

from epochmq_protocol.durable_files import make_directory, replace_file

log = logging.getLogger(__name__)

SUFFIX: Final = "-incarnations"
SEPARATOR: Final = ","
NAMES_MAX: Final = 32
"""Names in the file. Beyond that the middle ones are forgotten: starts without an acknowledged
registration."""
_LINEAGE: Final = re.compile(r"[0-9a-f]{16}(,[0-9a-f]{16})*")


class IncarnationFile:
    """The names of one store. `lineage`: the present process and the former ones, the newest first, separated
    by commas; empty before `begin`."""

    def __init__(self, identity_path: Path) -> None:
        """`identity_path` is the path of `brokerIdentity`."""
        self.path = identity_path.with_name(identity_path.name + SUFFIX)
        self.lineage = ""

    def begin(self) -> None:
        """Names this process, and saves the name. If it cannot be saved the process continues under the names
        on disk: under a name that the next start does not know it would lose its broker id."""
        known = self._read()
        names = [secrets.token_hex(8), *known]
        if len(names) > NAMES_MAX:
            names = [*names[: NAMES_MAX - 1], names[-1]]
        try:
            self._write(names)
        except OSError as error:
            log.error("%s: the name of this process could not be saved: %s", self.path, error)
            names = known
        self.lineage = SEPARATOR.join(names)

    def acknowledged(self, name: str) -> None:
        """The controllers have recorded this name: earlier names are not needed at later starts."""
        if not name or name != self.lineage.partition(SEPARATOR)[0]:
            return
        try:
            if self._read() != [name]:
                self._write([name])
        except OSError as error:
            log.error("%s: the names of former processes could not be removed: %s", self.path, error)

    def _read(self) -> list[str]:
        try:
            text = self.path.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return []
        if not _LINEAGE.fullmatch(text):
            log.error("%s holds %r, expected names of 16 hexadecimal digits", self.path, text[:100])
            return []
        return text.split(SEPARATOR)

    def _write(self, names: list[str]) -> None:
        make_directory(self.path.parent)
        replace_file(self.path, SEPARATOR.join(names).encode())
