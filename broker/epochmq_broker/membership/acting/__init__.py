"""Lets a slave act for a master that is down, in groups without controllers (RIP-32)."""
