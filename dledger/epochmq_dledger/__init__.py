"""Raft as DLedger does it: a pure core, its file store, and the driver that carries its calls."""
