"""Replication between the brokers of a group: epochs, the HA connection, who is in sync, what is confirmed.

- `epochs`: the epochs of a log, and where a replica's log stops being its master's. `epoch_file`: on disk.
- `sync_state`: who is in sync, how far everybody is, what is confirmed; a pure core.
- `acks`: sends that wait for replicas.
"""
