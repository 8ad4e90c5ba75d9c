"""Rounds of volumes that are exchanged, emptied, copied back or damaged under running groups."""
