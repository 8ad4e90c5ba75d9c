"""Replicates the commit log from a group's master to its other brokers.

- `service` gives a broker its HA role and leads from one role to the next.
- `server` and `connection` are the master's side of the HA connections, `client` and `client_connection` the
  replica's.
- `sync_state` is the pure core: how far each replica is, which replicas are in sync, what is confirmed.
- `epochs` says up to where two logs have a common history; `checksum_comparison` checks it by their content.
- `replication_waiters` holds the sends that wait for replicas.
"""
