"""A DLedger peer's directory, as DLedger 0.3.1.2 writes and reads it: `data/`, `index/`, `currterm`,
`checkpoint`."""
