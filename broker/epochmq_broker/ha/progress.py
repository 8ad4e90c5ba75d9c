# pure: what a master believes of a replica
"""What a master believes of what a replica reports, and where it sends from (`AutoSwitchHAConnection`,
`DefaultHAConnection`). Nothing a replica says is believed beyond what it was sent."""

from __future__ import annotations

from epochmq_protocol.errors import RemoteProtocolError


def start_position(offset: int, first: int, end: int, file_size: int, *, last_file: bool) -> int:
    """Where to send from to a replica whose log ends at `offset`; ours runs from `first` to `end`. An empty
    replica gets all of it or, with `last_file`, our last file. RemoteProtocolError for a log that is no
    beginning of ours."""
    if offset > end:
        raise RemoteProtocolError(f"its log ends at {offset}, behind ours at {end}")
    if 0 < offset < first:
        raise RemoteProtocolError(
            f"its log ends at {offset}, ours begins at {first}: it needs a copy, or to begin anew"
        )
    if offset > 0:
        return offset
    return end - end % file_size if last_file else first


def check_report(offset: int, sent_until: int) -> None:
    """RemoteProtocolError when a replica says that it has what it was not sent (#1155)."""
    if offset > sent_until:
        raise RemoteProtocolError(f"it reports {offset}, but was sent nothing behind {sent_until}")
