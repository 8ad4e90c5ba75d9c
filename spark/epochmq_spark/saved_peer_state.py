"""Reads the small files of a DLedger peer: `currterm` and `checkpoint` (`MemberState`,
`DLedgerMmapFileStore`)."""

from __future__ import annotations

from collections.abc import Sequence

from epochmq_formats.dledger_log import INDEX_UNIT_SIZE
from epochmq_formats.dledger_peer_files import decode_properties
from epochmq_spark import files
from epochmq_spark.checks.log_extent import SavedPeerState
from epochmq_spark.decode.entry_units import NO_UNIT_SIZE, decode_entry_units
from epochmq_spark.store_layout import StoreContents

CURRTERM, CHECKPOINT = "currterm", "checkpoint"
UNITS_TRIED_MAX = 100


def read_saved_state(contents: StoreContents) -> SavedPeerState | None:
    """The state of the peer in a store; None if the store has no DLedger log."""
    if contents.peer_folder is None:
        return None
    faults: list[tuple[str, str]] = []
    # DLedger removes a file before it renames the new one. An older term says nothing about the current one.
    terms = (CURRTERM, f"{CURRTERM}.tmp")
    checkpoints = (CHECKPOINT, f"{CHECKPOINT}.tmp", f"{CHECKPOINT}.bak")
    term = _read_number(contents.peer_folder, terms, "currTerm", faults)
    committed = _read_number(contents.peer_folder, checkpoints, "committedIndex", faults)
    return SavedPeerState(term, committed, _end_of_entry(contents, committed), faults)


def _read_number(folder: str, names: Sequence[str], key: str, faults: list[tuple[str, str]]) -> int | None:
    """The number of a properties file, or of the first of its copies. Only the file itself has faults."""
    for name in names:
        path = files.join(folder, name)
        try:
            return int(decode_properties(files.read(path))[key].strip())
        except FileNotFoundError:
            continue
        except KeyError:
            fault = f"it has no {key}"
        except (OSError, ValueError) as error:
            fault = f"{key}: {error}"
        if name == names[0]:
            faults.append((path, fault))
    return None


def _end_of_entry(contents: StoreContents, index: int | None) -> int:
    """Where an entry ends, by its unit; or another one, if that unit is damaged."""
    for number in range(index or 0, max((index or 0) - UNITS_TRIED_MAX, -1), -1):
        file = next((one for one in contents.entry_index if one.holds(number * INDEX_UNIT_SIZE)), None)
        if index is None or index < 0 or file is None:
            break
        at = number * INDEX_UNIT_SIZE - file.start
        try:
            units = decode_entry_units(files.read_range(file.location, at, at + INDEX_UNIT_SIZE), number)
        except OSError:
            break  # the pass over the index files reports it
        if len(units.sizes) and units.sizes[0] != NO_UNIT_SIZE:
            return int(units.physical[0] + units.sizes[0])
    return 0
