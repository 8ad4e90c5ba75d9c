"""Names the ext fields by which a slave tells its master which state of a table it has copied.

A table's state is a text that changes with every change of the table. It is EpochMQ's own; RocketMQ's brokers
ignore the fields and do not send them.
"""

from __future__ import annotations

from typing import Final

KNOWN_STATE: Final = "knownState"
"""In a request: the state of the slave's copy; empty if it has none."""
STATE: Final = "state"
"""In a response: the state of the table in the body."""
KNOWN_UNTIL: Final = "knownUntil"
"""In a response with topics, if the broker is not the master: `TopicTable.known_until`."""
UNCHANGED: Final = "unchanged"
"""In a response: `true` if the table is still in the known state; the body is empty then."""
