"""Replicates the commit log from a group's master to its other brokers.

- `service` gives a broker its HA role and leads from one role to the next.
- `master` and `link` are the master's side of the HA connections, `replica` and `stream` the other side.
- `sync_state` is the pure core: how far each replica is, which replicas are in sync, what is confirmed.
- `epochs` says up to where two logs have a common history; `comparison` checks it by the logs' content.
- `acks` holds the sends that wait for replicas.
"""
