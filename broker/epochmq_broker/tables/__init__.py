"""What a broker knows beside messages: topics, groups, offsets, clients, locks, filters, static topics,
statistics, and their state files.
It may use the settings, the access control and the store.
It must not know of roles, requests or the replicas of other brokers: rooms above change the tables."""
