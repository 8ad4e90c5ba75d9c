"""Runs a broker under controllers: gets its id, takes its role in the group, and lets it write under a lease
(RocketMQ's ReplicasManager)."""
