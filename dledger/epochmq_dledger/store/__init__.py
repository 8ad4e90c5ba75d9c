"""Stores a peer's log and state in a directory, as DLedger 0.3.1.2 does: `data/`, `index/`, `currterm`,
`checkpoint`."""
