"""The nameserver: knows broker names, their addresses and their topics."""
