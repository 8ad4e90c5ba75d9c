"""Transactions: half messages, their ends, and the checks of half messages without an end."""
