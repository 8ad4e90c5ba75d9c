# pure: checks of what a replica reports
"""Checks the offsets that a replica reports, and chooses where to send from (`AutoSwitchHAConnection`,
`DefaultHAConnection`). A report beyond the bytes that were sent is a protocol error."""

from __future__ import annotations

from epochmq_protocol.errors import RemoteProtocolError


def start_position(offset: int, first: int, end: int, file_size: int, *, last_file: bool) -> int:
    """The offset to send from to a replica whose log ends at `offset`. The master's log runs from `first` to
    `end`. An empty replica gets the whole log or, with `last_file`, the last file only. Raises
    RemoteProtocolError if the replica's log cannot be continued from the master's."""
    if offset > end:
        raise RemoteProtocolError(
            f"the replica's log ends at {offset}, after the end of the master's log at {end}"
        )
    if 0 < offset < first:
        raise RemoteProtocolError(
            f"the replica's log ends at {offset}, before the start of the master's log at {first}: "
            "clear the replica's store, or restore a newer copy into it"
        )
    if offset > 0:
        return offset
    return end - end % file_size if last_file else first


def check_report(offset: int, sent_until: int) -> None:
    """Raises RemoteProtocolError if a replica reports an offset that it was not sent (#1155)."""
    if offset > sent_until:
        raise RemoteProtocolError(
            f"the replica reports offset {offset}, but the master sent bytes only up to {sent_until}"
        )
